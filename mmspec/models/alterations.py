"""What of a model is not as its class in transformers defines it: hooks, methods of its own, modules and weights of other types.

A class and its config stand for what a model computes only where nothing of this is found. Anything else is tested on the model itself.
"""

import copy
import json
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import ref

import torch
from torch import nn

from mmspec.models.compat import attention_function, global_hooks, hooks_of, is_sharded, only_brings_weights
from mmspec.models.module_copy import module_tree, uncompiled

_CALLABLE = {FunctionType, MethodType, partial}
_OURS = ("torch", "transformers", "diffusers", "mmspec")
_LIBRARIES = tuple(f"{Path(each.origin or '').parent}/" for each in map(find_spec, _OURS) if each)
_MODULES = ("torch.nn.modules.", "transformers.", "diffusers.", "mmspec.")
_PYTHON, _INSTALLED = (f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib"))
_MOST = 64
_built: dict[tuple[type, str], dict[str, type]] = {}
_lock = Lock()


def state(model: nn.Module) -> tuple[Any, ...]:
    """All that `alterations` depends on, and the modes of all modules: equal as long as its answer is."""
    model = uncompiled(model)
    found: list[Any] = [*global_hooks()]
    kinds: dict[type, None] = {}
    for module in module_tree(model):  # for every module of every request
        kind, own = type(module), vars(module)
        kinds[kind] = None
        found += (id(module), kind, own.get("training"), *map(type, own.get("_parameters", {}).values()))
        found += (*own.get("_forward_hooks", ()), *own.get("_forward_pre_hooks", ()))
        if not _CALLABLE.isdisjoint(map(type, own.values())):
            found += (ref(each) for _, each in _own_callables(module))
    for kind in kinds:
        found += (ref(each) for _, each in _functions(kind))
    found += (ref(each) for _, each in _helpers(kinds, model))
    return tuple(found)


@dataclass(frozen=True)
class Alteration:
    """One thing that is not as the class defines it.

    Attributes:
        what: in a few words.
        arithmetic: other modules or weights compute, which may round more coarsely, as int8 does.
    """

    what: str
    arithmetic: bool = False


def alterations(model: nn.Module) -> Iterator[Alteration]:
    """All that is not as the class of `model` defines it."""
    model = uncompiled(model)
    if not all(map(_trusted, global_hooks().values())):
        yield Alteration("torch has a hook of all forwards")
    built, kinds = _modules_of(type(model), getattr(model, "config", None)), {}
    for name, module in _named(model):
        place = name or "the model"
        kinds[type(module)] = None
        if not _same(built.get(name), kind := type(module)):
            yield Alteration(f"{place} is a {full_name(kind)}", not kind.__module__.startswith(_MODULES))
        if not all(map(_trusted, hooks_of(module).values())):
            yield Alteration(f"{place} has a forward hook")
        for own, each in _own_callables(module):
            if not _trusted(each, module) and not (own == "forward" and only_brings_weights(module)):
                yield Alteration(f"{place} has a {own} of its own")
        for own, weight in module._parameters.items():
            if weight is not None and type(weight) not in (nn.Parameter, torch.Tensor) and not is_sharded(weight):
                yield Alteration(f"{place}.{own} is a {full_name(type(weight))}", True)
    file = getattr(sys.modules.get(type(model).__module__), "__file__", None)
    methods = [(name, each) for kind in kinds for name, each in _functions(kind) if each.__code__.co_filename != file]
    for name, each in (*methods, *_helpers(kinds, model)):
        if not _trusted(each):
            yield Alteration(f"{name} is replaced")


def _same(built: type | None, kind: type) -> bool:
    """Whether a module is of the class that a constructor makes. torch makes a class for every parametrized module anew."""
    again = built is not None and built.__module__ == kind.__module__ == "torch.nn.utils.parametrize"
    return built is kind or (again and built.__bases__ == kind.__bases__)


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, with its name; compiled ones without their wrappers."""
    left, seen = [("", uncompiled(model))], set()
    while left:
        name, module = left.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        front = f"{name}." if name else ""
        left += [(front + own, uncompiled(child)) for own, child in reversed(module._modules.items()) if child is not None]


def _modules_of(kind: type, config: Any) -> dict[str, type]:
    """Name -> type of the modules that `kind` makes from `config`; empty where it makes none."""
    if config is None:
        return {}
    fields = dict(config) if isinstance(config, Mapping) else getattr(config, "to_dict", lambda: vars(config))()
    key = kind, json.dumps(fields, sort_keys=True, default=str)
    with _lock:
        if key not in _built:
            while len(_built) >= _MOST:
                _built.pop(next(iter(_built)))
            try:
                with torch.device("meta"):
                    made = getattr(kind, "from_config", kind)(copy.deepcopy(config))  # diffusers has the one, transformers the other
                _built[key] = {name: type(module) for name, module in made.named_modules()}
            except Exception:  # a constructor may raise anything on this device; the model is then tested itself
                _built[key] = {}
        return _built[key]


def _own_callables(module: nn.Module) -> list[tuple[str, Callable[..., Any]]]:
    """Functions and methods that are attributes of `module` itself, by name."""
    return [(name, each) for name, each in vars(module).items() if type(each) in _CALLABLE]


def _functions(kind: type) -> list[tuple[str, Callable[..., Any]]]:
    """The methods of a class and its bases, by name."""
    bases = (base for base in kind.__mro__ if base is not object)
    return [(f"{base.__name__}.{name}", each) for base in bases for name, each in vars(base).items() if type(each) is FunctionType]


def _helpers(kinds: Any, model: Any) -> list[tuple[str, Callable[..., Any]]]:
    """Functions in the files of models that define `kinds`, and the attention function of `model`, by name."""
    files: dict[str, ModuleType] = {
        k.__module__: sys.modules[k.__module__] for k in kinds if k.__module__.startswith("transformers.models.")
    }
    found = [(f"{name}.{own}", each) for name, file in files.items() for own, each in vars(file).items() if type(each) is FunctionType]
    attention = attention_function(getattr(uncompiled(model), "config", None))
    return found if attention is None else [*found, ("the attention function", attention)]


def _trusted(each: Any, module: nn.Module | None = None) -> bool:
    """Whether a function and all that it wraps are of torch, transformers or Python; a method must be of `module`, if that is given."""
    if isinstance(each, BuiltinFunctionType):
        return True
    if isinstance(each, MethodType):
        return (module is None or each.__self__ is module) and _trusted(each.__func__)
    if isinstance(each, partial):
        return _trusted(each.func)
    if not isinstance(each, FunctionType):
        return isinstance(call := type(each).__call__, FunctionType) and _trusted(call)
    inner = getattr(each, "_torchdynamo_orig_callable", getattr(each, "__wrapped__", None))
    file = each.__code__.co_filename
    known = file.startswith(_LIBRARIES) or (file.startswith(_PYTHON) and not file.startswith(_INSTALLED))
    return known and (inner is None or _trusted(inner, module))


def full_name(kind: type) -> str:
    """A class with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"
