"""A model run in part, for the length of one forward: whole layers, or their attention or MLP, are passed over.

Only `forward` is replaced, on modules of the running thread's copy of the model (`models.module_copy`) and for as long as the context
lasts: everything else a model reads of its layers stays true, hooks still fire, and the caller's model is not changed.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.models.stack import check_copy, stack

Change = Callable[[Callable], Callable]
"""From a module's forward to the one that stands in for it."""
Give = Callable[[Tensor, Tensor | None], Tensor]
"""(what goes into a module, what it made of it if it ran) -> what is to come out instead."""
Rows = Tensor | None
"""[B] bool: the rows that skip a part, on the device; None: all of them."""

_ATTENTION = ("self_attn", "attn", "attention", "self_attention", "SelfAttention")
_MLP = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "DenseReluDense")
_CARRIED = ("position_bias", "encoder_decoder_position_bias")  # what T5's layers hand from one to the next
_RETURNS: dict[type, int] = {}  # how many things modules of a class return, 0 for a bare tensor: learned from the first one seen to run


@dataclass(frozen=True)
class Skips:
    """What a partial forward passes over, by layer: whole layers, or the attention or MLP of a layer, each for some rows or all."""

    layers: Mapping[int, Rows] = field(default_factory=dict)
    attention: Mapping[int, Rows] = field(default_factory=dict)
    mlp: Mapping[int, Rows] = field(default_factory=dict)

    def changes(self, model: Any) -> dict[nn.Module, Change]:
        """What to put in place of which module. ValueError where a layer has no such part, or the part does more than add."""
        found: dict[nn.Module, Change] = {}
        for index, rows in self.layers.items():
            layer = _layer(model, index)
            found[layer] = stand_in(layer, unchanged, rows)
        for names, parts in ((_ATTENTION, self.attention), (_MLP, self.mlp)):
            for index, rows in parts.items():
                if index not in self.layers or self.layers[index] is not None:
                    found |= _without(model, index, names, rows)
        return found


def unchanged(going_in: Tensor, made: Tensor | None) -> Tensor:
    """As a layer that is passed over: what goes in comes out."""
    return going_in


def nothing(going_in: Tensor, made: Tensor | None) -> Tensor:
    """As a part that adds nothing to the residual stream."""
    return torch.zeros_like(going_in if made is None else made)


@contextmanager
def rewired(changes: Mapping[nn.Module, Change]) -> Iterator[None]:
    """Forwards of a copy inside run with `changes` to its modules in place; afterwards, whatever happened, it is what it was.

    ValueError for a module that belongs to no copy: other threads may be running it.
    """
    for module in changes:
        check_copy(module)
    with ExitStack() as undo:
        for module, change in changes.items():
            undo.callback(_restore, module, vars(module).get("forward"))
            module.forward = change(module.forward)
        yield


def _restore(module: nn.Module, forward: Callable | None) -> None:
    """Back to the class's forward, or to one that others had put on this very module."""
    if forward is None:
        del module.forward
    else:
        module.forward = forward


def stand_in(module: nn.Module, give: Give, rows: Rows = None) -> Change:
    """`module` returns what `give` says, in the form it always returns things; with `rows` [B] bool only those rows do, and it runs.

    The form is learned from the first module of a class seen to run, so the very first time it runs although it need not.
    """
    kind = type(module)

    def change(real: Callable) -> Callable:
        def forward(*args: Any, **kwargs: Any) -> Any:
            going_in = args[0] if args else kwargs["hidden_states"]
            if rows is None and kind in _RETURNS:
                count, out = _RETURNS[kind], give(going_in, None)
                return (out, *_carried(kind, count - 1, args, kwargs)) if count else out
            made = _noted(kind, real(*args, **kwargs))
            first = made[0] if isinstance(made, tuple) else made
            out = give(going_in, first)
            out = out if rows is None else torch.where(_spread(rows, first), out, first)
            return (out, *made[1:]) if isinstance(made, tuple) else out

        return forward

    return change


def noted(module: nn.Module) -> Change:
    """`module` runs as ever; the form of what it returns is remembered."""

    def change(real: Callable) -> Callable:
        return lambda *args, **kwargs: _noted(type(module), real(*args, **kwargs))

    return change


def _noted(kind: type, made: Any) -> Any:
    _RETURNS[kind] = len(made) if isinstance(made, tuple) else 0
    return made


def _spread(rows: Tensor, like: Tensor) -> Tensor:
    """[B] as a mask over [B, M, H], or over [B * M, H] where a model flattens."""
    return rows.repeat_interleave(like.shape[0] // len(rows)).view(-1, *[1] * (like.dim() - 1))


def _carried(kind: type, count: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The rest of a returned tuple: biases are handed on as they came, all else is None."""
    names = _parameters(kind)
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    rest = [given.get(name) for name in _CARRIED if name in names]
    return (rest + [None] * count)[:count]


@lru_cache(maxsize=256)
def _parameters(kind: type) -> tuple[str, ...]:
    """The names of what a module's forward takes, without self."""
    return tuple(inspect.signature(kind.forward).parameters)[1:]


def _layer(model: Any, index: int) -> nn.Module:
    layers = stack(model)
    if not 0 <= index < len(layers):
        raise ValueError(f"layer {index} does not exist: {type(model).__name__} has {len(layers)} layers, so 0 to {len(layers) - 1}")
    return layers[index]


def _without(model: Any, index: int, names: Sequence[str], rows: Rows) -> dict[nn.Module, Change]:
    """The changes that leave out one part of layer `index`."""
    layer, what = _layer(model, index), "attention" if names is _ATTENTION else "MLP"
    found = [module for name, module in layer.named_modules() if name.rpartition(".")[2] in names]
    if found and "residual" in _parameters(type(found[0])):
        raise ValueError(
            f"the {what} of layer {index} of {type(model).__name__} adds the residual itself, so it cannot be left out: skip whole layers"
        )
    if found:
        return {found[0]: stand_in(found[0], nothing, rows)}
    children: dict[str, nn.Module] = dict(layer.named_children())
    if names is _MLP and {"fc1", "fc2"} <= children.keys():
        changes: dict[nn.Module, Change] = {children["fc2"]: _silenced(rows)}
        return changes if rows is not None else changes | {children["fc1"]: lambda real: lambda x: x}
    parts = ", ".join(children)
    raise ValueError(f"layer {index} of {type(model).__name__} has no {what} to leave out, only {parts}: skip whole layers instead")


def _silenced(rows: Rows) -> Change:
    """The second of an MLP's two linears gives zeros; where all rows skip, the first hands on what goes in."""

    def change(real: Callable) -> Callable:
        def forward(x: Tensor) -> Tensor:
            if rows is None:
                return torch.zeros_like(x)
            made = real(x)
            return torch.where(_spread(rows, made), torch.zeros_like(made), made)

        return forward

    return change
