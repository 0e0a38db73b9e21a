"""Options of a command as a validated config, and parsers for option values that several commands share."""

from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.utils.names import shown, unknown
from mmspec.utils.places import reads

if TYPE_CHECKING:
    from mmspec.run.config import Config

WORDS: ContextVar[tuple[str, ...]] = ContextVar("words", default=())
"""The words of the command line that is being run."""
_PLACES = {
    "model": ("target", "path"),
    "device": ("target", "device"),
    "dtype": ("target", "dtype"),
    "max_new_tokens": ("run", "max_new_tokens"),
    "temperature": ("run", "temperature"),
    "top_k": ("run", "top_k"),
    "top_p": ("run", "top_p"),
    "repetition_penalty": ("run", "repetition_penalty"),
    "seed": ("run", "seed"),
}
_TREES = ("comb", "cape", "expand", "opt", "dynamic", "beams", "best-first", "none")


def config_of(given: dict[str, Any]) -> "Config":
    """Build the config from the options of a command. Options that were not given (None) keep the config file's values or the defaults.

    Args:
        given: option values by parameter name.

    Raises:
        ValueError: for an invalid value, in one line that names the entry of the config.
    """
    from mmspec.run.config import changed

    config, path = _base(given), given.get("config")
    for name, (section, key) in _PLACES.items():
        if given.get(name) is not None:
            config = changed(config, section, **{key: given[name]})
    if given.get("drafter") is not None:
        config = changed(config, "drafter", **_drafter(given["drafter"]))
    elif path is None and not any(change.partition("=")[0].strip() == "drafter.kind" for change in given.get("changes") or ()):
        config = changed(config, "drafter", kind="model" if config.target.path in ("mini", "vlm") else "lookup")
    if given.get("draft_length") is not None:
        config = changed(config, "drafter", length=length_of(given["draft_length"]))
    if given.get("tree") is not None:
        config = changed(config, "drafter", tree=tree_of(given["tree"]))
    if given.get("stop_below") is not None:
        config = changed(config, "drafter", options=config.drafter.options | {"stop_below": stop_of(given["stop_below"])})
    if given.get("references") is not None:
        config = changed(config, "drafter", references=given["references"])
    if given.get("accept") is not None:
        config = changed(config, "accept", kind=given["accept"], options={})
    for name, place in (("the target of --config", config.target.path), ("the drafter of --config", config.drafter.path)):
        if path is not None and place is not None:
            reads(place, name)
    return config


def _base(given: dict[str, Any]) -> "Config":
    from mmspec.run.config import load_config

    allow_code, changes = bool(given.get("allow_code")), given.get("changes") or ()
    if given.get("config") is not None:
        return load_config(given["config"], changes, allow_code=allow_code)
    return load_config(None, ("target.device=auto", *changes), allow_code=allow_code)


def _drafter(name: str) -> dict[str, Any]:
    from mmspec.loading.text import named_drafter

    kind, path = named_drafter(name)
    return {"kind": kind, "path": path, "options": {}}


def refuse_unread(reason: str, *names: str) -> None:
    """Refuse options that this request does not read.

    Args:
        reason: the reason, as text behind the option's name.
        names: options such as "--batch-size".

    Raises:
        ValueError: for the first of them that was given.
    """
    given = {word.partition("=")[0] for word in WORDS.get()}
    for name in names:
        if name in given:
            raise ValueError(f"{name} {reason}")


def check_counts(given: dict[str, Any], *names: str, most: int = 1 << 20) -> None:
    """Raise ValueError for the first of the parameters `names` that is given and not in 1 to `most`."""
    for name in names:
        value = given.get(name)
        if value is not None and not 1 <= value <= most:
            raise ValueError(f"--{name.replace('_', '-')} is {shown(value)}: give at least 1, at most {most}")


def length_of(text: str) -> int | str:
    """Parse --draft-length: a number of draft tokens, or a name. ValueError for anything else."""
    if text in ("auto", "thompson"):
        return text
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"--draft-length is {text!r}: give a number of draft tokens, auto or thompson")
    return _number("--draft-length", text)


def stop_of(text: str) -> float | str:
    """Parse --stop-below: a probability, "adaptive", or a folder. ValueError for a number out of range."""
    try:
        number = float(text)
    except ValueError:
        if text != "adaptive" and not (text.strip() and len(text) < 4096 and Path(text).expanduser().is_dir()):
            wanted = "give a probability, 0 to 1, adaptive, or the folder of an acceptance head"
            raise ValueError(f"--stop-below is {shown(text)}: {wanted}") from None
        return text
    if not 0 <= number <= 1:
        raise ValueError(f"--stop-below is {shown(number)}: give a probability, 0 to 1")
    return number


def tree_of(text: str) -> list[int] | str | None:
    """Parse --tree: a name, a template's file, or children per level. ValueError for anything else."""
    if text in _TREES or text.endswith(".json"):
        return None if text == "none" else text
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise unknown("tree", text, _TREES, "children per level such as 4,2,1", "a template (*.json)")
    return [_number("--tree", part) for part in parts]


def _number(name: str, digits: str) -> int:
    """Return `digits` as an int. ValueError for more than nine digits."""
    if len(digits.lstrip("0")) > 9:
        raise ValueError(f"{name} holds {digits[:20]}{'...' if len(digits) > 20 else ''}: give a smaller number")
    return int(digits)


def with_defaults(given: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Return `given` with `values` for options that were left out, unless a config file was given."""
    if given.get("config") is not None:
        values = {name: value for name, value in values.items() if name not in _PLACES and name != "draft_length"}
    given.update({name: value for name, value in values.items() if given.get(name) is None})
    return given
