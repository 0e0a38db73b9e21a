"""Resolves `guidance=`: the scale of classifier-free guidance."""

from collections.abc import Sequence
from math import inf


def scale_of(guidance: float | Sequence[float] | None, usual: str = "2 to 8") -> float | tuple[float, ...] | None:
    """Return the guidance scale.

    Args:
        guidance: one number, or one a row; None and 1 mean no guidance.
        usual: a common value, for messages.

    Returns:
        The scale, one a row as a tuple; None for no guidance.

    Raises:
        ValueError: for anything but numbers from 0 on.
    """
    for one in guidance if isinstance(guidance, Sequence) else (guidance,):
        if one is not None and not (isinstance(one, (int, float)) and 0 <= one < inf):
            raise ValueError(f"guidance is {one!r}: a scale is a number from 0 on; 1 or None is no guidance, {usual} is usual")
    if isinstance(guidance, Sequence):
        return tuple(float(one) for one in guidance)
    return None if guidance is None or guidance == 1 else float(guidance)
