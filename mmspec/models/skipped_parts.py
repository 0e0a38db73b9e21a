"""Skipping parts of a model for the length of one forward: whole layers, or their attention or MLP.

Only `forward` is replaced, on modules of the running thread's copy of the model (`models.module_copy`) and for as long as the context
lasts: all other attributes of a layer stay valid, hooks still run, and the caller's model is not changed.
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
"""From a module's forward to its replacement."""
Give = Callable[[Tensor, Tensor | None], Tensor]
"""(a module's input, its output if it ran) -> the output to use instead."""
Rows = Tensor | None
"""[B] bool: the rows that skip a part, on the device; None: all of them."""

_ATTENTION = ("self_attn", "attn", "attention", "self_attention", "SelfAttention")
_MLP = ("mlp", "feed_forward", "ffn", "block_sparse_moe", "DenseReluDense")
_CARRIED = ("position_bias", "encoder_decoder_position_bias")  # passed from layer to layer in T5
_RETURNS: dict[type, int] = {}  # outputs of a class's modules, 0 for a bare tensor: recorded from the first that runs


@dataclass(frozen=True)
class Skips:
    """The parts that a partial forward skips, by layer: whole layers, or the attention or MLP of a layer, each for some rows or all."""

    layers: Mapping[int, Rows] = field(default_factory=dict)
    attention: Mapping[int, Rows] = field(default_factory=dict)
    mlp: Mapping[int, Rows] = field(default_factory=dict)

    def changes(self, model: Any) -> dict[nn.Module, Change]:
        """The replacement of each module's forward. ValueError where a layer has no such part, or the part does more than add to the
        residual stream.
        """
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
    """The output of a skipped layer: its input."""
    return going_in


def nothing(going_in: Tensor, made: Tensor | None) -> Tensor:
    """The output of a skipped part: zeros, so that nothing is added to the residual stream."""
    return torch.zeros_like(going_in if made is None else made)


@contextmanager
def rewired(changes: Mapping[nn.Module, Change]) -> Iterator[None]:
    """Run forwards of a copy with `changes` to its modules; afterwards they are undone, also after an error.

    ValueError for a module that belongs to no copy, since other threads may be running it.
    """
    for module in changes:
        check_copy(module)
    with ExitStack() as undo:
        for module, change in changes.items():
            undo.callback(_restore, module, vars(module).get("forward"))
            module.forward = change(module.forward)
        yield


def _restore(module: nn.Module, forward: Callable | None) -> None:
    """Restore the class's forward, or one that was set on this module before."""
    if forward is None:
        del module.forward
    else:
        module.forward = forward


def stand_in(module: nn.Module, give: Give, rows: Rows = None) -> Change:
    """Replace the output of `module` by `give`, in the form the module returns it; with `rows` [B] bool for those rows only, and it still
    runs.

    The form is recorded from the first module of a class that runs, so the first time the module runs in any case.
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
    """Run `module` unchanged and record the form of its output."""

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
    """The other entries of a returned tuple: biases are passed on, all else is None."""
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
    """The second of an MLP's two linears gives zeros; where all rows skip, the first passes its input on."""

    def change(real: Callable) -> Callable:
        def forward(x: Tensor) -> Tensor:
            if rows is None:
                return torch.zeros_like(x)
            made = real(x)
            return torch.where(_spread(rows, made), torch.zeros_like(made), made)

        return forward

    return change
