"""Image methods by name: `METHODS`, and `PUBLISHED` settings of relaxed ones."""

from dataclasses import replace
from typing import Any

from mmspec.drafters.jacobi.initialisers import Initialiser
from mmspec.utils.names import unknown
from mmspec.vision.codes.methods import METHODS, Method, short
from mmspec.vision.codes.published import PUBLISHED


def method_of(method: str | Method, **changes: Any) -> Method:
    """Return the method called `method`, with `changes` (None: no change). ValueError lists the names."""
    if isinstance(method, str):
        method = METHODS.get(method) or PUBLISHED.get(method) or method
    if not isinstance(method, Method):
        raise unknown("method", method, (*METHODS, *PUBLISHED))
    for name, change in changes.items():
        fits = isinstance(change, Initialiser) if name == "init" else callable(change) or hasattr(change, "exactness")
        if change is not None and not fits:
            raise ValueError(f"{name} is {short(change)}: give an object that takes the place of the method's own, or leave {name} out")
    return replace(method, **{name: change for name, change in changes.items() if change is not None})
