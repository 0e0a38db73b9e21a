"""Names and values in error messages: suggestions, the error for names that are in no table, and values in short."""

from collections.abc import Iterable
from difflib import get_close_matches
from math import log10
from pathlib import Path
from typing import Any


def nearest(name: str, valid: Iterable[str]) -> str:
    """The words " (did you mean NAME?)" for the valid name nearest to `name`; nothing where none is near."""
    near = get_close_matches(name.lower(), list(valid), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def unknown(what: str, name: Any, valid: Iterable[str], *also: str) -> ValueError:
    """The error for a name that is in no table, with the nearest valid name.

    Args:
        what: the kind of name, such as "drafter".
        name: what was given.
        valid: the valid names.
        also: what may stand in place of a name, such as "a model's path".

    Returns:
        A ValueError of one line, to be raised by the caller.
    """
    names = [str(each) for each in valid]
    shown = name if isinstance(name, str) and len(name) <= 60 else f"{str(name)[:60]}..." if isinstance(name, str) else name
    text = f"unknown {what} {shown!r}" if isinstance(name, str) else f"{what} is a {type(name).__name__}: give a name"
    meant = nearest(name, names) if isinstance(name, str) else ""
    return ValueError(f"{text}{meant}; valid: {', '.join([*names, *also])}")


def shown(value: Any) -> str:
    """Return `value` for an error message: short, on one line, objects by their class."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | bytes | int | float | list | tuple | dict | Path):
        if isinstance(value, int) and abs(value) > 10**18:
            return f"{'-' if value < 0 else ''}1e{int(log10(abs(value)))}"
        text = " ".join(_written(value).split())
        return text if len(text) <= 60 else f"{text[:60]}..."
    return f"a {type(value).__name__}"


def _written(value: Any) -> str:
    """`repr(value)`, or the class of what is too deep or too long to be written."""
    try:
        return repr(value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__}"


def wrong(name: str, value: Any, words: str) -> ValueError:
    """The error for an argument of a wrong value: its name, the value in short and `words`, what to give instead."""
    return ValueError(f"{name} is {shown(value)}: {words}")
