"""Modules and names of 0.1, for one release: importing one warns and gives the thing from where it is now.

The tables are moved_modules.txt and moved_names.txt beside this file. See decision 014.
"""

import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


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


def old_names(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module of 0.1.

    Args:
        module: the module's name in 0.1.

    Returns:
        A function that finds a name of 0.1 where it is now, and warns. AttributeError for names it never had.
    """

    def get(name: str) -> Any:
        home = _homes().get((module, name)) or _modules().get(module)
        if name.startswith("__") or home is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = _names().get(f"{home}:{name}") or _names().get(name) or name
        home = _homes().get((module, new)) or home
        found = import_module(home)
        if not hasattr(found, new):
            raise AttributeError(f"module {module!r} has no attribute {name!r}; it is {home} now")
        warnings.warn(f"{module}.{name} is now {home}.{new}; the old name goes in 0.3", DeprecationWarning, stacklevel=2)
        return getattr(found, new)

    return get


class _Old(MetaPathFinder, Loader):
    """Finds modules that have moved."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith("mmspec.") or fullname not in _modules():
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: Any) -> None:
        module.__getattr__ = old_names(module.__name__)


def install() -> None:
    """Make modules of 0.1 importable. They are looked for only after all others."""
    if not any(isinstance(finder, _Old) for finder in sys.meta_path):
        sys.meta_path.append(_Old())
