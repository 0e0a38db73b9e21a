"""`mmspec ui`: a page on which models are tried, plain and speculative decoding side by side."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from typing import Annotated, Any

from mmspec.commands import common
from mmspec.commands.common import HOW, WHAT, option
from mmspec.commands.services.drafters import drafters_by_kind
from mmspec.utils.screen import spinner

EXAMPLES = """Examples:

\b
  mmspec ui
  mmspec ui --text ./big --drafter ./small --device cuda
  mmspec ui --text mini --speech mini --drafter text=eagle3 --drafter speech=vadusa
  mmspec ui --port 0 --json
"""
SERVER = "Server"
_TEXT = "Language model: mini, a folder, a GGUF file or a hub name. Without any model all minis are shown."
_IMAGE = "Image model, as of mmspec image."
_SPEECH = "Text-to-speech model, as of mmspec speech."
_RECOMMENDER = "Recommender, as of mmspec recommend."
_DRAFTER = "As of the command for that kind of model; KIND=NAME, such as text=lookup, if several are shown. May be repeated."
_LENGTH = "Draft tokens a round that the forms begin with: a number (4 by default for minis) or auto (by default for others)."
_HOST = "Address to listen on; 127.0.0.1 by default, which other machines cannot reach."


def ui(
    text: Annotated[str | None, option(WHAT, _TEXT, metavar="PATH")] = None,
    image: Annotated[str | None, option(WHAT, _IMAGE, metavar="PATH")] = None,
    speech: Annotated[str | None, option(WHAT, _SPEECH, metavar="PATH")] = None,
    recommender: Annotated[str | None, option(WHAT, _RECOMMENDER, metavar="PATH")] = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    drafter: Annotated[list[str] | None, option(HOW, _DRAFTER, metavar="[KIND=]NAME")] = None,
    draft_length: Annotated[str | None, option(HOW, _LENGTH, metavar="N")] = None,
    seed: Annotated[int, option(common.DRAWING, "Seed that the forms begin with; 0 by default.", metavar="SEED")] = 0,
    host: Annotated[str, option(SERVER, _HOST, metavar="NAME")] = "127.0.0.1",
    port: Annotated[int, option(SERVER, "Port; 7860 by default, 0 for a free one.", metavar="N")] = 7860,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Try models on a page in the browser: plain and speculative decoding side by side as they run."""
    given = dict(locals())
    _check_installed()
    from mmspec.serving.http.options import ServerOptions
    from mmspec.serving.ui.settings import draft_length_field

    options = ServerOptions(host, port, grace=1.0)
    kinds = {kind: given[kind] for kind in ("text", "image", "speech", "recommender") if given[kind] is not None}
    kinds = kinds or dict.fromkeys(("text", "image", "speech", "recommender"), "mini")
    drafters = drafters_by_kind(drafter or [], list(kinds), "shown")
    usual = "4" if set(kinds.values()) == {"mini"} else "auto"
    length = usual if draft_length is None else str(draft_length_field("--draft-length", draft_length))
    _show(given, kinds, drafters, length, options)


def _check_installed() -> None:
    """Raise ImportError, in one line, without the optional dependency."""
    from importlib.util import find_spec

    if find_spec("gradio") is None:
        raise ImportError("mmspec ui needs gradio: pip install mmspec[ui]")


@contextmanager
def _environment() -> Iterator[None]:
    """Variables that Gradio and the draft lengths read, as they were afterwards."""
    before = dict(os.environ)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when Gradio is imported; nothing is sent anywhere
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("MMSPEC_DRAFT_RECORDS", "0")  # seconds of rounds that take turns are not kept for other requests
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


def _show(given: dict[str, Any], kinds: dict[str, str], drafters: dict[str, str], length: str, options: Any) -> None:
    common.begin(given["verbose"])
    from mmspec.serving.http.loading import ModelNames
    from mmspec.serving.http.server import address_of, bound_socket, serve_app
    from mmspec.serving.ui.models import load_ui_models

    with _environment(), bound_socket(options) as bound:
        shared = {"device": given["device"] or "auto", "dtype": given["dtype"] or "float32"}
        config = None
        if "text" in kinds:
            config = common.config_of({"model": kinds["text"], "drafter": drafters.get("text")} | shared)
        others = {kind: name for kind, name in kinds.items() if kind != "text"}
        with spinner("loading") as say:
            models = load_ui_models(ModelNames(config, others, drafters, **shared), lambda name: say(f"loading {name}"))
            from mmspec.serving.ui.app import create_ui

            app = create_ui(models, given["seed"], length)
        bound.listen()
        url, ids = address_of(bound), {kind: model.served.id for kind, model in models.items()}
        if given["as_json"]:
            common.emit({"url": url, "models": ids})
            sys.stdout.flush()  # the process goes on
        common.note(f"{', '.join(f'{kind} {name}' for kind, name in ids.items())} at {url}; Ctrl+C ends the page")
        if options.host not in ("127.0.0.1", "::1", "localhost"):
            common.note("the page asks for no password: whoever can reach this address can use it")
        getLogger("uvicorn.error").setLevel("CRITICAL")  # an open page keeps a connection, whose end at Ctrl+C is no error
        try:
            serve_app(app, bound, options)
        finally:
            app.state.stop()
