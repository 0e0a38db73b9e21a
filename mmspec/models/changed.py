"""Changes to a model's modules for the length of one forward. They are made on `own_copy(model)`, never on the caller's model."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

_MISSING = object()


@contextmanager
def replaced(*changes: tuple[nn.Module, str, Any]) -> Iterator[None]:
    """Inside, each module has `value` as its own attribute `name`; what it had before is put back.

    Args:
        changes: (module, name, value). Modules are those of an `own_copy`.
    """
    before = [(module, name, vars(module).get(name, _MISSING)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            vars(module)[name] = value
        yield
    finally:
        for module, name, value in before:
            if value is _MISSING:
                vars(module).pop(name, None)
            else:
                vars(module)[name] = value


@contextmanager
def with_arguments(modules: Iterable[nn.Module], change: Callable[[nn.Module, dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
    """Inside, each of `modules` is called with the keyword arguments `change(module, kwargs)` makes of its own.

    Args:
        modules: modules of an `own_copy`.
        change: returns the new keyword arguments; the old ones must not be changed.
    """

    def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return args, change(module, kwargs)

    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield
