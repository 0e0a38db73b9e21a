"""A second module tree over the same weights, on which a forward's changes are made instead of on the caller's model.

Hooks and replaced `forward`s go on `own_copy(model)`. Each thread has its own copy of a model, so threads that run one model with
different changes do not affect each other, and `model.generate` never sees a change. Parameters and buffers are shared: a copy costs a
few milliseconds and no memory. What a forward assigns to a module (a rope's buffers, a recorded offset) stays on the copy.

Modules that `torch.compile` has wrapped are copied without the wrapper: a compiled graph runs the modules it was traced from, so hooks
on a copy would have no effect in it. Scripted modules are shared as they are.
"""

import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

_HOOKS = frozenset(name for name in vars(nn.Module()) if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")))
_MARK = "_is_copied_module"  # an attribute of copies
_MOST = 16  # copies a thread keeps: a model that its own hooks refer to would otherwise never be freed
_local = threading.local()
_lock = threading.Lock()
_shared: "WeakKeyDictionary[nn.Module, _Copied]" = WeakKeyDictionary()  # of compiled models
_newest: "WeakKeyDictionary[nn.Module, tuple[Any, ...]]" = WeakKeyDictionary()  # the state of each model when a session last began


@dataclass(frozen=True, eq=False)
class _Copied:
    """One thread's copy of one model."""

    state: tuple[Any, ...]  # of the model when it was copied
    root: nn.Module
    found: dict[int, Any]  # from the id of a module to its copy
    held: list[Any]  # attributes that `state` has the ids of: as long as they live, no other object has these ids


def own_copy(model: Any) -> Any:
    """Return this thread's copy of a model, made on first use.

    Changes must last for one forward only: the next caller in this thread gets the same copy.

    Args:
        model: a model. A copy is its own copy, and so is anything that is no `nn.Module`.

    Returns:
        The copy.
    """
    return model if not isinstance(model, nn.Module) or is_copy(model) else _entry(uncompiled(model)).root


def is_copy(module: Any) -> bool:
    """Tell whether a module belongs to a copy, so that it may be changed for the length of a forward.

    Args:
        module: any object with attributes.

    Returns:
        True if it does.
    """
    return _MARK in vars(module)


def on_copy(holder: Any, model: Any, shared: bool = False) -> Any:
    """Replace the modules that an object refers to by those of this thread's copy.

    Args:
        holder: an object whose attributes are modules of `model`, their methods, or lists, tuples and dicts of modules.
        model: the model.
        shared: by those of the process's copy, `shared_copy`.

    Returns:
        A changed copy of `holder`; `holder` itself where it refers to no module.
    """
    if not isinstance(model, nn.Module) or is_copy(model) or not hasattr(holder, "__dict__"):
        return holder
    found = _shared_entry(model).found if shared else _entry(uncompiled(model)).found
    changed = {name: new for name, value in vars(holder).items() if (new := _rebound(value, found, depth=1)) is not value}
    if not changed:
        return holder
    other = holder.__class__.__new__(holder.__class__)
    vars(other).update(vars(holder) | changed)
    return other


def refresh(model: Any) -> None:
    """Record the modules, hooks, modes and attributes of a model. Copies made before a change are then made anew.

    Args:
        model: a model, at the beginning of a session.
    """
    if not isinstance(model, nn.Module) or is_copy(model):
        return
    model = uncompiled(model)
    state = state_of(model)
    with _lock:
        if _newest.get(model) != state:
            _newest[model] = state


def shared_copy(model: nn.Module) -> nn.Module:
    """Return the process's copy of a model, for compiled forwards. It is never hooked, and made anew when the model has changed.

    Args:
        model: a model.

    Returns:
        The copy.
    """
    return _shared_entry(model).root


def _shared_entry(model: nn.Module) -> _Copied:
    model = uncompiled(model)
    state = state_of(model)
    with _lock:
        if model not in _shared or _shared[model].state != state:
            _shared[model] = _copied(model, state)
        return _shared[model]


def throwaway_copy(model: nn.Module) -> Any:
    """Make a copy that nothing else uses, so that attributes a forward leaves on its modules are dropped with it.

    Args:
        model: a model.

    Returns:
        The copy.
    """
    return _copied(uncompiled(model), state_of(model)).root


def state_of(model: nn.Module) -> tuple[Any, ...]:
    """Describe what a copy depends on besides the shared tensors.

    Args:
        model: a model.

    Returns:
        A value that is equal as long as a copy of `model` is valid.
    """
    state: list[Any] = []
    for module in module_tree(uncompiled(model)):
        _add_state(state, module)
    return tuple(state)


def _entry(model: nn.Module) -> _Copied:
    if not hasattr(_local, "copies"):
        _local.copies = WeakKeyDictionary()
    copies: WeakKeyDictionary[nn.Module, _Copied] = _local.copies
    with _lock:
        state = _newest.get(model)
    if state is None:
        refresh(model)
        return _entry(model)
    if model not in copies or copies[model].state is not state:
        copies.pop(model, None)
        copies[model] = _copied(model, state)
        while len(copies) > _MOST:
            copies.pop(next(iter(copies)))
    return copies[model]


def uncompiled(module: nn.Module) -> nn.Module:
    """Remove the wrapper of `torch.compile`.

    Args:
        module: a module, compiled or not.

    Returns:
        The module that was compiled, or `module` itself.
    """
    inner = module._modules.get("_orig_mod")
    return module if inner is None else uncompiled(inner)


def _scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def module_tree(root: nn.Module) -> list[nn.Module]:
    """Every module once, parents first, compiled ones without their wrappers."""
    found: dict[int, nn.Module] = {}
    left = [root]
    while left:
        module = left.pop()
        if id(module) not in found:
            found[id(module)] = module
            if (children := module._modules) and not _scripted(module):
                left += [uncompiled(child) for child in reversed(list(children.values())) if child is not None]
    return list(found.values())


def _add_state(state: list[Any], module: nn.Module) -> None:
    """Append the names and ids of a module's attributes, and what its hooks, modules and buffers are: for every module of every request."""
    own = vars(module)
    values = list(own.values())
    plain = MethodType not in map(type, values)
    state += (id(module), *own)
    state += map(id, values) if plain else [(id(v.__func__), id(v.__self__)) if type(v) is MethodType else id(v) for v in values]
    for name in _HOOKS:
        if hooks := own.get(name):
            state += (name, *hooks)  # numbers that are never given twice
    for name in ("_modules", "_buffers"):
        if inner := own.get(name):
            state += (name, *list(inner), *map(id, list(inner.values())))


def _copied(model: nn.Module, state: tuple[Any, ...]) -> _Copied:
    modules, held = module_tree(model), []
    found: dict[int, Any] = {id(module): module if _scripted(module) else module.__class__.__new__(module.__class__) for module in modules}
    for module in modules:
        other = found[id(module)]
        if other is module:
            continue
        own = {name: _rebound(value, found) for name, value in vars(module).items() if name not in _HOOKS}
        held += [own[name] for name in own if name != "_modules" and own[name] is vars(module)[name]]
        own |= {name: _own_hooks(vars(module)[name], found) for name in _HOOKS & vars(module).keys()}
        own["_modules"] = {name: None if child is None else found[id(uncompiled(child))] for name, child in module._modules.items()}
        own["_buffers"] = dict(module._buffers)  # ropes replace theirs
        if hasattr(module, "_hf_hook"):
            own["_parameters"] = dict(module._parameters)  # accelerate's hooks bring weights in and take them out again
        own["_compiled_call_impl"] = None
        vars(other).update(own | {_MARK: True})
    return _Copied(state, found[id(model)], found, held)


def _own_hooks(hooks: Any, found: dict[int, Any]) -> Any:
    """A new dict of hooks; those that are methods of a module of the tree are methods of its copy."""
    own = type(hooks)(hooks)
    for key, hook in hooks.items():
        if isinstance(hook, MethodType):
            own[key] = _rebound(hook, found)
    return own


def _rebound(value: Any, found: dict[int, Any], depth: int = 4) -> Any:
    """The attribute `value` with modules of the tree replaced by their copies, also within containers, methods and closures.

    Returns `value` itself where it holds none within `depth` levels.
    """
    if isinstance(value, nn.Module):
        return found.get(id(uncompiled(value)), value)
    if depth == 0:
        return value
    if (original := getattr(value, "_torchdynamo_orig_callable", None)) is not None:  # a compiled function
        return value if (again := _rebound(original, found, depth - 1)) is original else again
    if isinstance(value, MethodType):
        again = _rebound(value.__self__, found, depth - 1)
        return value if again is value.__self__ else MethodType(value.__func__, again)
    if type(value) is functools.partial:  # accelerate's wrapper around `forward`
        return _rebound_partial(value, found, depth - 1)
    if isinstance(value, FunctionType) and value.__closure__:
        return _rebound_function(value, found, depth - 1)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        parts = [_rebound(part, found, depth - 1) for part in value]
        return type(value)(parts) if _differ(parts, value) else value
    if type(value) is dict:
        parts = [_rebound(part, found, depth - 1) for part in value.values()]
        return dict(zip(value, parts, strict=True)) if _differ(parts, value.values()) else value
    return value


def _differ(parts: list[Any], before: Any) -> bool:
    return any(new is not old for new, old in zip(parts, before, strict=True))


def _rebound_partial(value: functools.partial, found: dict[int, Any], depth: int) -> functools.partial:
    before = [value.func, *value.args, *value.keywords.values(), *vars(value).values()]
    if not _differ([_rebound(part, found, depth) for part in before], before):
        return value
    function, parts = _rebound(value.func, found, depth), [_rebound(part, found, depth) for part in value.args]
    again = functools.partial(function, *parts, **{name: _rebound(part, found, depth) for name, part in value.keywords.items()})
    vars(again).update({name: _rebound(part, found, depth) for name, part in vars(value).items()})
    return again


def _rebound_function(value: FunctionType, found: dict[int, Any], depth: int) -> FunctionType:
    """A function set on a module that wraps what was there before: it must wrap the copy's."""
    before = list(_contents(value))
    parts = [_rebound(part, found, depth) for part in before]
    if not _differ(parts, before):
        return value
    again = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, tuple(CellType(part) for part in parts))
    again.__kwdefaults__ = value.__kwdefaults__
    vars(again).update({name: _rebound(part, found, depth) for name, part in vars(value).items()})
    return again


def _contents(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None
