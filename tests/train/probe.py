"""Imported by a recipe's process before the recipe: every training's identity must tell of every number that its loss can reach.

The numbers are found by following references, without the rules by which `mmspec.utils.fingerprints` reads a function.
"""

import gc
from dataclasses import fields, is_dataclass
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmspec.train import loop

_identity, _save = loop.training_identity, loop._save
_begun: dict[str, Any] = {}


def _held(name: str, part: Any) -> bool:
    """Whether a module's attribute is none of torch's, and no private tensors, which follow from the rest."""
    copies = name[0] == "_" and isinstance(part, tuple) and all(isinstance(each, Tensor) for each in part)
    return name not in vars(nn.Module()) and not copies


def _computed(value: Any, name: str) -> bool:
    return isinstance(getattr(type(value), name, None), cached_property)


def numbers(root: Any) -> list[Tensor | np.ndarray]:
    """Tensors and arrays that can be reached from a value; of a module's weights the last."""
    found, seen, left = [], {}, [root]
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, type | ModuleType | BuiltinFunctionType | torch.Generator):
            continue
        if hasattr(value, "save_pretrained") and not isinstance(value, nn.Module):
            continue  # a tokenizer, a config or a schedule is its settings
        seen[id(value)] = value
        if isinstance(value, Tensor | np.ndarray):
            found.append(value)
        elif isinstance(value, nn.Module):
            left += list(value.parameters())[-1:]
            left += [part for each in value.modules() for name, part in vars(each).items() if _held(name, part)]
        elif isinstance(value, FunctionType):
            left += [*(value.__closure__ or ()), *(value.__defaults__ or ())]
        elif hasattr(value, "__wrapped__"):
            left.append(value.__wrapped__)
        elif type(value).__module__.startswith("mmspec."):  # less what is computed from the rest, and kept
            kept = {each.name for each in fields(value) if not each.compare} if is_dataclass(value) else set()
            held = getattr(value, "__dict__", None) or {name: getattr(value, name) for name in getattr(value, "__slots__", ())}
            left += [part for name, part in held.items() if name not in kept and not _computed(value, name)]
        else:
            left += gc.get_referents(value)
    return [each for each in found if (each.numel() if isinstance(each, Tensor) else each.size)]


def probed(model: nn.Module, loss: Any, plan: Any) -> dict[str, str]:
    before = _identity(model, loss, plan)
    for each in numbers((model, loss)):
        where, one = (each.data if isinstance(each, Tensor) else each), (-1,) * each.ndim
        if isinstance(where, np.ndarray) and not where.flags.writeable:
            continue
        kept = where[one].clone() if isinstance(where, Tensor) else where[one].copy()
        where[one] = ~kept if kept.dtype in (torch.bool, np.bool_) else kept + 1
        other = _identity(model, loss, plan)
        where[one] = kept
        assert other != before, f"the checkpoint of {loss} does not tell of {type(each).__name__} {tuple(each.shape)}"
    assert _identity(model, loss, plan) == before
    _begun.update(loss=loss, plan=plan, identity=before)
    return before


def saved(path: Any, identity: dict[str, str], step: int, model: nn.Module, *rest: Any) -> None:
    fast = [(each, {key: vars(each).pop(key) for key in ("forward", "_original_forward") if key in vars(each)}) for each in model.modules()]
    now = _identity(model, _begun["loss"], _begun["plan"])
    for each, forward in fast:  # accelerate's
        vars(each).update(forward)
    for name in now.keys() | identity.keys():
        assert name == "first weights" or now.get(name) == identity.get(name), (
            f"{name} changes in training: a stopped run would not be resumed"
        )
    _save(path, identity, step, model, *rest)


loop.training_identity, loop._save = probed, saved
