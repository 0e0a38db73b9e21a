"""Lighter copies of a drafter's model: int8 weights, and an output head for a part of the vocabulary (FR-Spec, Zhao et al. 2025).

A drafter's logits need not be exact, since the target scores every draft token. The user's model is not changed: a copy holds other linear
layers and shares everything else.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.control import is_whole
from mmspec.drafters.int8 import check_int8, int8_linear
from mmspec.drafters.model.vocabulary import Overlap
from mmspec.models.model_checks import model_name


def lighter(model: Any, *, ids: Tensor | None = None, int8: bool = False) -> Any:
    """Return a lighter copy of a transformers model. Its other weights are the model's own.

    Args:
        model: the model, in float32 for `int8`.
        ids: [S] the ids of its logits, in this order; None for all.
        int8: linear layers hold int8 weights, one scale a row, and are computed in int8 (`torch.ao.nn.quantized.dynamic.Linear`).

    Raises:
        ValueError: for a head that is no `nn.Linear`, for an `int8` that is no bool, and for int8 on a GPU, in another dtype, or where
            torch has no int8 kernels.
    """
    if not isinstance(int8, bool):
        raise ValueError(f"int8 is {int8!r}: give True or False")
    parts: dict[nn.Module, nn.Module] = {}
    if ids is not None:
        head = model.get_output_embeddings()
        if type(head) is not nn.Linear:
            raise ValueError(f"vocabulary needs an output head of type Linear, and that of {model_name(model)} is none: leave it out")
        parts[head] = _rows(head, ids)
    if int8:
        check_int8(model_name(model), model.device, model.dtype)
        for module in model.modules():
            found = parts.get(module, module)
            if type(found) is nn.Linear:
                parts[module] = int8_linear(found)
    return _with_parts(model, parts) if parts else model


def drafted_part(overlap: Overlap, vocabulary: int | Sequence[int], always: Sequence[int] = ()) -> Overlap:
    """Return `overlap` with fewer values that are drafted; the drafter still reads all that it knows.

    Args:
        overlap: the overlap of the target's and the drafter's vocabulary.
        vocabulary: target ids to draft; or how many, then the shared values with the smallest ids of the drafter: tokenizers made by
            merging pairs number frequent tokens first.
        always: target ids that are drafted besides, such as end tokens.

    Raises:
        ValueError: for fewer than 1, no ids, and ids that are not shared.
    """
    if is_whole(vocabulary):
        if vocabulary < 1:  # type: ignore[operator]
            raise ValueError(f"vocabulary is {vocabulary}: give at least 1 value to draft, or target ids")
        kept = torch.zeros_like(overlap.shared, dtype=torch.bool)
        kept[overlap.shared.argsort()[:vocabulary]] = True  # type: ignore[misc]
    elif isinstance(vocabulary, (str, bool, int, float)) or not len(vocabulary):
        raise ValueError(f"vocabulary is {vocabulary!r}: give a number of values to draft, or target ids")
    else:
        ids = torch.as_tensor(vocabulary)
        missing = ids[~torch.isin(ids, overlap.to_target)]
        if len(missing):
            raise ValueError(f"vocabulary holds id {int(missing[0])}, which the drafter does not share or may not draft: leave it out")
        kept = torch.isin(overlap.to_target, ids)
    kept |= torch.isin(overlap.to_target, torch.tensor(list(always), dtype=torch.long))
    return replace(overlap, to_target=overlap.to_target[kept], shared=overlap.shared[kept])


def _rows(head: nn.Linear, ids: Tensor) -> nn.Linear:
    """The rows `ids` of an output head."""
    found = nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
    ids = ids.to(head.weight.device)
    found.weight = nn.Parameter(head.weight.detach()[ids], requires_grad=False)
    if head.bias is not None:
        found.bias = nn.Parameter(head.bias.detach()[ids], requires_grad=False)
    return found.eval()


def _with_parts(model: Any, parts: Mapping[nn.Module, nn.Module]) -> Any:
    """A copy of `model` with other modules in the places of `parts`; all other tensors are shared."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, {**shared, **{id(old): new for old, new in parts.items()}})
