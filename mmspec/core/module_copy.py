"""A second module tree over the same weights: what a forward needs changed is changed there, never on the caller's model.

Hooks and replaced `forward`s go on `own_copy(model)`. Each thread has its own copy of a model, so threads that run one model with
different changes do not affect each other, and `model.generate` never sees a change. Parameters and buffers are shared: a copy costs a
few milliseconds and no memory.
"""

import functools
import threading
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import nn

_HOOKS = tuple(name for name in vars(nn.Module()) if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")))
_copies: "WeakSet[nn.Module]" = WeakSet()
_local = threading.local()


def own_copy(model: Any) -> Any:
    """This thread's copy of `model`, made on first use; a copy is its own copy, and so is anything that is no plain module tree.

    Changes must last for one forward only: the next caller in this thread is handed the same copy.
    """
    if not isinstance(model, nn.Module) or model in _copies or hasattr(model, "_orig_mod"):  # the last: torch.compile's wrapper
        return model
    mine = _of_this_thread()
    if model not in mine:
        refresh(model)
    return mine[model][1]


def refresh(model: Any) -> None:
    """Make this thread's copy anew if modules, hooks or modes of `model` have changed since it was made. Called once a session."""
    if not isinstance(model, nn.Module) or model in _copies or hasattr(model, "_orig_mod"):
        return
    mine, shape = _of_this_thread(), _shape(model)
    if model not in mine or mine[model][0] != shape:
        mine[model] = (shape, _copied(model))


def _of_this_thread() -> "WeakKeyDictionary[nn.Module, tuple[Any, nn.Module]]":
    if not hasattr(_local, "copies"):
        _local.copies = WeakKeyDictionary()
    return _local.copies


def _shape(model: nn.Module) -> tuple[Any, ...]:
    """What a copy depends on besides tensors, which are shared."""
    return tuple((id(m), m.training, id(vars(m).get("forward")), *(tuple(getattr(m, name)) for name in _HOOKS)) for m in model.modules())


def _copied(model: nn.Module) -> nn.Module:
    found: dict[int, nn.Module] = {}
    modules = list(model.modules())
    for module in modules:
        found[id(module)] = module.__class__.__new__(module.__class__)
    for module in modules:
        own = {name: _rebound(value, found) for name, value in vars(module).items()}
        own |= {name: type(getattr(module, name))(getattr(module, name)) for name in _HOOKS}
        own["_modules"] = {name: None if child is None else found[id(child)] for name, child in module._modules.items()}
        vars(found[id(module)]).update(own)
        _copies.add(found[id(module)])
    return found[id(model)]


def _rebound(value: Any, found: dict[int, nn.Module]) -> Any:
    """`value` of a module's own attribute, with modules of the tree replaced by their copies. Anything else is shared."""
    if id(value) in found:
        return found[id(value)]
    if isinstance(value, MethodType) and id(value.__self__) in found:
        return MethodType(value.__func__, found[id(value.__self__)])
    if type(value) is functools.partial:  # accelerate's wrapper around `forward`
        parts = [_rebound(part, found) for part in value.args]
        again = functools.partial(_rebound(value.func, found), *parts, **{name: _rebound(v, found) for name, v in value.keywords.items()})
        vars(again).update({name: _rebound(part, found) for name, part in vars(value).items()})
        return again
    if type(value) in (list, tuple) and any(id(part) in found for part in value):
        return type(value)(_rebound(part, found) for part in value)
    if type(value) is dict and any(id(part) in found for part in value.values()):
        return {name: _rebound(part, found) for name, part in value.items()}
    return value
