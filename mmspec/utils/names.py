"""Suggestions and the error for names that are in no table."""

from collections.abc import Iterable
from difflib import get_close_matches
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
