"""Values of a form as arguments: what is empty or no number is refused by name."""

from math import isfinite
from typing import Any

LENGTHS = ("auto", "1", "2", "3", "4", "5", "6", "8", "12", "16")
"""Draft lengths that the page offers; another number may be typed."""
MOST_LENGTH = 256


def whole_field(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number.

    Args:
        name: the field, for messages.
        value: what the form holds.
        least: the smallest one allowed; None for any.

    Raises:
        ValueError: for an empty field, and for anything else.
    """
    number = number_field(name, value)
    if number != int(number) or abs(number) >= 2**53:
        raise ValueError(f"{name} is {number:g}: give a whole number")
    if least is not None and number < least:
        raise ValueError(f"{name} is {number:g}: give at least {least}")
    return int(number)


def number_field(name: str, value: Any) -> float:
    """Return a number.

    Args:
        name: the field, for messages.
        value: what the form holds.

    Raises:
        ValueError: for an empty field, and for what is no finite number.
    """
    if value is None or value == "":
        raise ValueError(f"{name} is empty: give a number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{name} is {value!r:.40}: give a number")
    return value


def text_field(name: str, value: Any, remedy: str) -> str:
    """Return a text that is not empty.

    Args:
        name: the field, for messages.
        value: what the form holds.
        remedy: what to do about an empty one.

    Raises:
        ValueError: for an empty field.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is empty: {remedy}")
    return value


def draft_length_field(name: str, value: Any) -> int | str:
    """Return a draft length as the public calls take it.

    Args:
        name: the field, for messages.
        value: "auto", or the digits of a number.

    Returns:
        "auto" or the number.

    Raises:
        ValueError: for anything else.
    """
    text = str(value).strip()
    if text == "auto":
        return text
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) <= MOST_LENGTH):
        raise ValueError(f"{name} is {text!r:.40}: give a number from 0 to {MOST_LENGTH}, or auto")
    return int(text)
