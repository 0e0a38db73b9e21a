"""Modules, names and positional arguments of 0.1, for one release: each still works, with a DeprecationWarning.

The tables are moved_modules.txt, moved_names.txt and old_names.txt beside this file. See decision 014.
"""

import functools
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

_HERE = Path(__file__).parent
P = ParamSpec("P")
R = TypeVar("R")


@cache
def _lines(table: str) -> tuple[tuple[str, str], ...]:
    """(old, new) of a table."""
    lines = [line.split("#")[0] for line in (_HERE / table).read_text(encoding="utf-8").splitlines()]
    pairs = [line.partition("->") for line in lines if "->" in line]
    return tuple((old.strip(), new.strip()) for old, _, new in pairs)


@cache
def _modules() -> dict[str, str]:
    return {old: new for old, new in _lines("moved_modules.txt") if ":" not in old}


@cache
def _homes() -> dict[tuple[str, str], str]:
    """(old module, name) -> new module, for names that were taken out of their module."""
    lines = [(*old.split(":"), new) for old, new in _lines("moved_modules.txt") if ":" in old]
    return {(module, name.strip()): new for module, names, new in lines for name in names.split(",")}


@cache
def _names() -> dict[str, str]:
    """ "name" or "module:name" -> new name; modules are those of today."""
    return {old.removeprefix("name "): new for old, new in _lines("moved_names.txt") if old.startswith("name ") or ":" in old}


@cache
def _places() -> dict[tuple[str, str], tuple[str, str]]:
    """(old module, old name) -> (module, name) of today, from old_names.txt."""
    pairs = [(old.split(":"), new.split(":")) for old, new in _lines("old_names.txt")]
    return {(old[0], old[1]): (new[0], new[1]) for old, new in pairs}


def old_names(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module of 0.1.

    Args:
        module: the module's name in 0.1.

    Returns:
        A function that finds a name of 0.1 where it is now, and warns. AttributeError for names it never had.
    """

    def get(name: str) -> Any:
        place = _places().get((module, name))
        home = (_homes().get((module, name)) or _modules().get(module)) if place is None else place[0]
        if name.startswith("__") or home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if place is None:
            new = _names().get(f"{home}:{name}") or _names().get(name) or name
            home = _homes().get((module, new)) or home
        else:
            new = place[1]
        found = import_module(home)
        if not hasattr(found, new):
            raise AttributeError(f"module {module!r} has no attribute {name!r}; it is {home} now")
        warnings.warn(f"{module}.{name} is now {home}.{new}; the old name goes in 0.3", DeprecationWarning, stacklevel=2)
        return getattr(found, new)

    return get


class _CallableModule(ModuleType):
    """A module of 0.1 with the name of a function that its package exports: importing it must not hide the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(_modules()[self.__name__]), self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Old(MetaPathFinder, Loader):
    """Finds modules that have moved."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith("mmspec.") or fullname not in _modules():
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: Any) -> None:
        module.__getattr__ = old_names(module.__name__)
        package, _, name = module.__name__.rpartition(".")
        if name in getattr(import_module(package), "__all__", ()):
            module.__class__ = _CallableModule


def install() -> None:
    """Make modules of 0.1 importable. They are looked for only after all others."""
    if not any(isinstance(finder, _Old) for finder in sys.meta_path):
        sys.meta_path.append(_Old())


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
