"""`mmspec serve`: models behind an HTTP server in the shapes of the OpenAI API."""

import os
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any

from mmspec.commands import common
from mmspec.commands.common import HOW, WHAT, option
from mmspec.commands.services.drafters import drafters_by_kind
from mmspec.utils.names import unknown
from mmspec.utils.screen import spinner

EXAMPLES = """Examples:

\b
  mmspec serve --text mini
  mmspec serve --text ./big --drafter ./small --max-rows 16 --port 9000
  mmspec serve --text mini --image mini --speech mini --drafter speech=vadusa
  mmspec serve --recognizer openai/whisper-base --drafter lookup
  mmspec serve --text ./big --engine ray --replicas 4 --max-replicas 8
  MMSPEC_API_KEYS=one,two mmspec serve --recommender ./shop --host 0.0.0.0
"""
SERVER, LIMITS = "Server", "Limits"
ENGINES = ("local", "ray")
_TEXT = "Language model (mini, vlm, a folder, a GGUF file or a hub name), for /v1/completions and /v1/chat/completions."
_IMAGE = "Image model, as of mmspec image. At /v1/images/generations."
_SPEECH = "Text-to-speech model, as of mmspec speech. At /v1/audio/speech."
_RECOGNIZER = "Recogniser, as of mmspec transcribe. At /v1/audio/transcriptions."
_RECOMMENDER = "Recommender, as of mmspec recommend. At /v1/recommendations."
_DRAFTER = "As of the command for that kind of model; KIND=NAME, such as text=lookup, if several models are served. May be repeated."
_HOST = "Address to listen on; 127.0.0.1 by default, which other machines cannot reach."
_BODY = "Largest body in bytes; 33554432 by default. Larger ones get 413."
_SOUND = "Longest recording, and longest sound that is made; 3600 by default."
_TIMEOUT = "Seconds that a request may take; 300 by default. Then it is cancelled and gets 504."
_ENGINE = "local (one process, the default) or ray: replicas behind one address, by Ray Serve."
_REPLICAS = "Replicas of the ray engine, each with its own models; 1 by default."
_MOST = "Most replicas of the ray engine: it adds and ends some with the load. --replicas by default."
_GRACE = "Seconds that running requests may take to finish after SIGTERM or Ctrl+C; 10 by default. Then they are cancelled."
_ORIGINS = "Origins of web pages that may send requests (CORS), with commas between; * for all. None by default."
_CONNECTIONS = "Most connections; 1024 by default. /health and /metrics are answered above it, too."
_ADDRESS = "Most connections of one address; 512 by default."
_INPUTS = "Most outputs of one request (prompts times n, pictures, histories), and most pictures of a chat; 16 by default."


def serve(
    text: Annotated[str | None, option(WHAT, _TEXT, metavar="PATH")] = None,
    image: Annotated[str | None, option(WHAT, _IMAGE, metavar="PATH")] = None,
    speech: Annotated[str | None, option(WHAT, _SPEECH, metavar="PATH")] = None,
    recognizer: Annotated[str | None, option(WHAT, _RECOGNIZER, metavar="PATH")] = None,
    recommender: Annotated[str | None, option(WHAT, _RECOMMENDER, metavar="PATH")] = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    drafter: Annotated[list[str] | None, option(HOW, _DRAFTER, metavar="[KIND=]NAME")] = None,
    draft_length: common.LENGTH = None,
    tree: common.TREE = None,
    host: Annotated[str, option(SERVER, _HOST, metavar="NAME")] = "127.0.0.1",
    port: Annotated[int, option(SERVER, "Port; 8000 by default, 0 for a free one.", metavar="N")] = 8000,
    cors_origins: Annotated[str | None, option(SERVER, _ORIGINS, metavar="LIST")] = None,
    grace: Annotated[float, option(SERVER, _GRACE, metavar="S")] = 10.0,
    engine: Annotated[str, option(SERVER, _ENGINE, metavar="NAME")] = "local",
    replicas: Annotated[int | None, option(SERVER, _REPLICAS, metavar="N")] = None,
    max_replicas: Annotated[int | None, option(SERVER, _MOST, metavar="N")] = None,
    max_rows: Annotated[
        int,
        option(
            LIMITS,
            "Requests of a model that run at a time where rows can join, and histories searched together; 8 by default.",
            metavar="N",
        ),
    ] = 8,
    max_queue: Annotated[int, option(LIMITS, "Requests of a model that wait; 256 by default. Others get 429.", metavar="N")] = 256,
    max_tokens: Annotated[int, option(LIMITS, "Most new tokens of a text request; 1024 by default.", metavar="N")] = 1024,
    max_inputs: Annotated[int, option(LIMITS, _INPUTS, metavar="N")] = 16,
    max_body: Annotated[int, option(LIMITS, _BODY, metavar="N")] = 32 * 2**20,
    max_seconds: Annotated[float, option(LIMITS, _SOUND, metavar="S")] = 3600.0,
    timeout: Annotated[float, option(LIMITS, _TIMEOUT, metavar="S")] = 300.0,
    max_connections: Annotated[int, option(LIMITS, _CONNECTIONS, metavar="N")] = 1024,
    max_per_address: Annotated[int, option(LIMITS, _ADDRESS, metavar="N")] = 512,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Serve models over HTTP, in the shapes of the OpenAI API: the outputs of the other commands, many requests at a time."""
    given = dict(locals())
    _check_installed()
    from mmspec.serving.http.options import ServerLimits, ServerOptions, api_keys

    limits = ServerLimits(**{each.name: given[each.name] for each in fields(ServerLimits)})
    origins = tuple(each.strip() for each in (cors_origins or "").split(",") if each.strip())
    options = ServerOptions(host, port, limits, api_keys(), grace, origins)
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine != "ray":
        common.refuse_unread("is for replicas: give --engine ray too, or leave it out", "--replicas", "--max-replicas")
    kinds = {kind: given[kind] for kind in ("text", "image", "speech", "recognizer", "recommender") if given[kind] is not None}
    if not kinds:
        raise ValueError("no model: give --text, --image, --speech, --recognizer or --recommender")
    drafters = drafters_by_kind(drafter or [], list(kinds), "served")
    if text is None:
        common.refuse_unread("is for text models: give --text too, or leave it out", "--draft-length", "--tree", "--max-tokens")
    if list(kinds) == ["recognizer"]:
        common.refuse_unread("is not for recognisers, which run one request at a time: leave it out", "--max-rows")
    _serve(given, kinds, drafters, options)


def _check_installed() -> None:
    """Raise ImportError, in one line, without the optional dependencies."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(f"mmspec serve needs {error.name}: pip install mmspec[serve]") from None


def _serve(given: dict[str, Any], kinds: dict[str, str], drafters: dict[str, str], options: Any) -> None:
    common.begin(given["verbose"])
    from mmspec.serving.http.loading import ModelNames, model_id

    shared = {"device": given["device"] or "auto", "dtype": given["dtype"] or "float32"}
    config = None
    if "text" in kinds:
        words = {"model": kinds["text"], "drafter": drafters.get("text"), "draft_length": given["draft_length"], "tree": given["tree"]}
        config = common.config_of(words | shared)
    names = ModelNames(config, {kind: name for kind, name in kinds.items() if kind != "text"}, drafters, **shared)
    ids = {kind: model_id(kind, name) for kind, name in kinds.items()}

    def tell(url: str) -> None:
        if given["as_json"]:
            common.emit({"url": url, "models": ids, "keys": len(options.keys)})
            sys.stdout.flush()  # the process goes on
        _tell(url, ids, options)

    serve_models = _serve_replicas if given["engine"] == "ray" else _serve_here
    serve_models(given, names, options, tell)


def _serve_here(given: dict[str, Any], names: Any, options: Any, tell: Callable[[str], None]) -> None:
    from mmspec.serving.http.endpoints.app import create_app
    from mmspec.serving.http.loading import load_served
    from mmspec.serving.http.options import client_names
    from mmspec.serving.http.server import address_of, allow_connections, bound_socket, serve_app

    allow_connections(options.limits.max_connections)
    with bound_socket(options) as bound:
        with spinner("loading") as say:
            models = load_served(names, options.limits, lambda name: say(f"loading {name}"), clients=client_names(options.keys))
        app = create_app(models, options.limits, options.keys, origins=options.origins)
        tell(address_of(bound))
        serve_app(app, bound, options)


def _serve_replicas(given: dict[str, Any], names: Any, options: Any, tell: Callable[[str], None]) -> None:
    from mmspec.serving.replicas.deployment import ReplicaCount, ReplicaPlan
    from mmspec.serving.replicas.service import serve_replicas

    count = ReplicaCount(1 if given["replicas"] is None else given["replicas"], given["max_replicas"])
    serve_replicas(ReplicaPlan(names, options.limits, options.keys, os.getcwd(), options.origins), count, options, tell)


def _tell(url: str, ids: dict[str, str], options: Any) -> None:
    common.note(f"{', '.join(f'{kind} {name}' for kind, name in ids.items())} at {url}; Ctrl+C ends the server")
    if not options.keys and options.host not in ("127.0.0.1", "::1", "localhost"):
        common.note("no API key is asked for: set MMSPEC_API_KEYS before others can reach this address")
