"""Image methods by name: `METHODS`, and `PUBLISHED` settings of relaxed ones; which arguments a method reads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mmspec.drafters.jacobi.initialisers import Initialiser
from mmspec.run.request import refuse
from mmspec.utils.names import unknown
from mmspec.vision.codes.methods import METHODS, Method, short
from mmspec.vision.codes.published import PUBLISHED
from mmspec.vision.families.base import ImageModel


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


def can_draw(model: ImageModel, method: str | Method) -> bool:
    """Return True if the model has the trained net or the smaller image model that the method drafts with, or it needs none."""
    plan = method_of(method)
    return (plan.shape is None or model.drafter is not None) and (not plan.assisted or model.assistant is not None)


def check_read(plan: Method, method: Any, **given: Any) -> None:
    """Raise ValueError for an argument that the method does not use."""
    name = f"method {method!r}" if isinstance(method, str) else "this method"
    if plan.rows is not None:
        refuse(f"methods that judge draft tokens, and {name} writes rows side by side", **given)
    elif plan.assisted:
        refuse(
            f"methods that draft by a window or a tree of their own, and {name} drafts with a smaller image model",
            couple=given["couple"], init=given["init"], tree=given["tree"],
        )  # fmt: skip
    elif plan.shape is not None:
        refuse(f"methods that draft by a window, and {name} drafts with a trained net", couple=given["couple"], init=given["init"])
    elif plan.couple is not None:
        refuse(
            f"methods that draft with a trained net, and {name} drafts from the target itself", drafter=given["drafter"], tree=given["tree"]
        )
    else:
        window = None if given["window"] == 1 else given["window"]
        unread = {"drafter": given["drafter"], "tree": given["tree"], "window": window, "init": given["init"]}
        refuse(f"methods that draft, and {name} does not", **unread)


def names_method(value: Any) -> bool:
    """Return whether a value is a method or the name of one; a string that is a folder's path is a drafter.

    Args:
        value: the third argument of `mmspec.vision.generate`, which was the method in 0.1.
    """
    return isinstance(value, Method) or (isinstance(value, str) and not Path(value).expanduser().is_dir())
