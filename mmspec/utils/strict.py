"""Arguments of public calls compared with their annotations, so that a wrong one is refused in one line before any work begins."""

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union

from mmspec.utils.names import wrong

_LARGEST = 2**63  # whole numbers below it fit a tensor
_LOOKED_AT = 1024  # entries of a list whose types are compared with an annotation
F = TypeVar("F", bound=Callable[..., Any])


def strict(function: F, checks: Mapping[str, Callable[[str, Any], None]] | None = None) -> F:
    """Make a function, or the constructor of a class, refuse arguments that are not what its annotations say.

    Args:
        function: a public call, or a class.
        checks: checks by a parameter's name, before those by annotation; called with the name and the value.

    Returns:
        The function with these checks before it; the same class.
    """
    if isinstance(function, type):
        plain, checked = function.__init__, strict(function.__init__, checks)  # type: ignore[misc]

        @functools.wraps(plain)
        def construct(self: Any, *args: Any, **kwargs: Any) -> None:
            own = type(self).__init__ is construct  # else of a subclass, whose annotations may say something else
            (checked if own else plain)(self, *args, **kwargs)

        function.__init__ = construct  # type: ignore[misc]
        return function  # pyright: ignore[reportReturnType]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_call(function, checks or {}, *args, **kwargs)
        return function(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


def check_call(function: Callable[..., Any], checks: Mapping[str, Callable[[str, Any], None]], *args: Any, **kwargs: Any) -> None:
    """Check the arguments of a call.

    Args:
        function: what is called; its parameters are annotated.
        checks: checks by a parameter's name, called with the name and the value.
        args, kwargs: the arguments. A default is not checked.

    Raises:
        ValueError: for the first argument that fails the check of its name, or is not what its annotation says.
        TypeError: for unknown, missing and repeated arguments.
    """
    signature, hints = parameters_of(function)
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"{function.__name__}() {error}") from None
    for name, value in bound.items():
        parameter, hint = signature.parameters[name], hints.get(name, Any)
        if value is parameter.default or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if name in checks and (value is not None or hint is Any):
            checks[name](name, value)
            continue
        for one in value if parameter.kind is inspect.Parameter.VAR_POSITIONAL else (value,):  # pyright: ignore[reportOptionalIterable]
            if not fits(one, hint):
                raise wrong(name, one, f"give {' or '.join(dict.fromkeys(_described(hint)))}")


@functools.cache
def parameters_of(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return a function's signature, and its parameters' annotations; Any for those that only a type checker can resolve."""
    signature = inspect.signature(function)
    names = getattr(inspect.unwrap(function), "__globals__", {})
    hints = {name: parameter.annotation for name, parameter in signature.parameters.items() if parameter.annotation is not parameter.empty}
    for name, hint in hints.items():
        if isinstance(hint, str):
            try:
                hints[name] = eval(hint, names)
            except NameError:
                hints[name] = Any
    return signature, hints


def fits(value: Any, hint: Any) -> bool:
    """Return True if a value is what an annotation says: stricter than isinstance for numbers and texts, looser for duck types.

    Args:
        value: any object.
        hint: a resolved annotation. True is no int, NaN and infinity are no float, numbers must fit 64 bits, and a text is no sequence.

    Returns:
        Whether it fits. Annotations that cannot be compared, such as Any, are fitted by everything.
    """
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if kind is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if kind in _SIMPLE:
        return _SIMPLE[kind](value)
    if kind is Any or not isinstance(kind, type):
        return True
    if getattr(kind, "_is_protocol", False):
        return not _is_plain(value)
    if kind in (list, tuple, Sequence, Iterable, Collection):
        return _is_several(value, kind, parts) and _entries_fit(value, parts)
    return isinstance(value, kind)


def _is_several(value: Any, kind: Any, parts: Sequence[Any]) -> bool:
    sized = kind is Iterable or (hasattr(value, "__len__") and hasattr(value, "__getitem__"))
    several = sized and hasattr(value, "__iter__") and not isinstance(value, str | bytes | Mapping | type)
    numbers = not parts or parts[0] is Any or isinstance(parts[0], TypeVar) or getattr(parts[0], "__name__", "") in ("Tensor", "Hashable")
    return several and (not hasattr(value, "dtype") or numbers or fits(0, parts[0]))


def _entries_fit(value: Any, parts: Sequence[Any]) -> bool:
    if not isinstance(value, list | tuple) or not parts:
        return True
    if len(parts) > 1 and parts[1] is not ...:
        return len(value) == len(parts) and all(map(fits, value, parts))
    return all(fits(each, parts[0]) for each in value[:_LOOKED_AT])


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and -_LARGEST <= int(value) < _LARGEST


def _is_plain(value: Any) -> bool:
    """True for values that are never an object with methods of mmspec's."""
    return value is None or isinstance(value, bool | int | float | str | bytes | list | tuple | dict | type) or type(value) is object


_SIMPLE: dict[Any, Callable[[Any], bool]] = {
    None: lambda value: value is None,
    NoneType: lambda value: value is None,
    bool: lambda value: isinstance(value, bool),
    int: _is_whole,
    float: lambda value: _is_whole(value) or (isinstance(value, Real) and not isinstance(value, Integral) and isfinite(value)),
    str: lambda value: isinstance(value, str),
    type: lambda value: isinstance(value, type),
    Callable: callable,
}
_WORDS: dict[Any, str] = {
    None: "None",
    NoneType: "None",
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    Path: "a path",
    type: "a class",
    Callable: "a function",
    Mapping: "the dict that a tokenizer or processor returned",
    Iterator: "an iterator",
}


def _described(hint: Any) -> Iterator[str]:
    """Yield what an annotation stands for, in words."""
    kind, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (Union, UnionType):
        for part in parts:
            yield from _described(part)
    elif kind is Literal:
        yield from map(repr, parts)
    elif kind in (list, tuple, Sequence, Iterable, Collection):
        words = " or ".join(dict.fromkeys(word for part in parts if part is not ... for word in _described(part)))
        yield f"a list of {words}" if words else "a list"
    elif kind in _WORDS:
        yield _WORDS[kind]
    elif isinstance(kind, type):
        yield f"a {kind.__name__}"
