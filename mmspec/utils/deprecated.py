"""Calls as the release before took them, still accepted with a DeprecationWarning."""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def once_positional(
    names: Sequence[str], is_old: Callable[[Any], bool] = lambda value: False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function of (model, inputs, drafter, *, ...) that took other positional arguments in 0.1.

    Args:
        names: the names, in order, of what stood behind `inputs`.
        is_old: tells by the third argument that a call is of the old form; calls with four arguments or more always are.

    Returns:
        A decorator. The decorated function passes the arguments of an old call by name, and warns.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> R:
            if len(args) > 3 or (len(args) == 3 and is_old(args[2])):
                if len(args) - 2 > len(names):
                    raise TypeError(f"{function.__name__}() takes at most {len(names) + 2} positional arguments, not {len(args)}")
                given = dict(zip(names, args[2:], strict=False))
                twice = [name for name in given if name in kwargs]
                if twice:
                    raise TypeError(f"{function.__name__}() got {twice[0]} twice")
                shown = ", ".join(given)
                warnings.warn(f"{function.__name__}(): pass {shown} by name; positions go in 0.3", DeprecationWarning, stacklevel=2)
                args, kwargs = args[:2], {**given, **kwargs}
            return function(*args, **kwargs)  # pyright: ignore[reportCallIssue]

        return call

    return decorate
