"""Packages whose public names are imported when they are first used, so that `import mmspec` loads no heavy library."""

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(
    package: str, modules: Mapping[str, str], renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package that imports its public names on first use (PEP 562).

    Bind them in the `else` of `if TYPE_CHECKING:`, whose body holds the same names as ordinary imports for editors and type checkers.

    Args:
        package: the package's `__name__`.
        modules: public name -> the module that defines it, relative to the package or beginning with "mmspec.", or "module:name" where it
            has another name there. A submodule that is public itself maps to "".
        renamed: names of the release before -> their new names; using one warns.

    Returns:
        `(__getattr__, __dir__)`. Unknown names raise AttributeError, which lists the public ones.
    """

    def get(name: str) -> Any:
        if renamed and name in renamed:
            new = renamed[name]
            warnings.warn(f"{package}.{name} is now {package}.{new}; the old name goes in 0.3", DeprecationWarning, stacklevel=2)
            return get(new)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(modules))}")
        where, _, own = modules[name].partition(":")
        path = where if where.startswith("mmspec.") else f"{package}.{where or name}"
        found = getattr(import_module(path), own or name) if where else import_module(path)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return get, names
