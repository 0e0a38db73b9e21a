"""Views of a drafter that reads pictures: pictures pooled to fewer positions, or pruned to those the target attends to.

A view marks what to do with the pictures; the family `Looking` does it where the drafter's prompt is merged. The drafter's positions count
from 0 without gaps.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from mmspec.drafters.views.base import View, same_prompt
from mmspec.drafters.views.sound import Listening
from mmspec.models.compat import eager_configs
from mmspec.models.families.multimodal import Multimodal
from mmspec.models.families.whisper import Whisper
from mmspec.models.module_copy import own_copy
from mmspec.models.partial_forward import PartialForward
from mmspec.models.rows.merged import Merged
from mmspec.models.skipped_parts import rewired
from mmspec.models.slot_cache import SlotCache
from mmspec.models.stack import check_copy, stack

POOLED, KEPT = "pooled", "kept"  # what views ask of `Looking`, beside what the processor gave
_ATTENTION = ("self_attn", "attn", "attention", "self_attention")


@dataclass(frozen=True)
class Looking(Multimodal):
    """Family of a multimodal drafter whose prompt may ask for pooled pictures and for a part of the positions.

    `pooled` gives the pooling size and the number of positions of an unpooled picture; `kept` [B, P] bool gives the positions to keep.
    """

    def prompt(self, model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the ids and the mask of the prompt, without positions that are not kept."""
        ids, mask = super().prompt(model, inputs)
        return ids, mask & inputs[KEPT] if KEPT in inputs else mask

    @torch.no_grad()
    def begin(self, model: Any, inputs: Mapping[str, Any], capacity: int) -> tuple[SlotCache, Merged]:
        """Open the cache and the state of one generation; see the family protocol."""
        own = {key: value for key, value in inputs.items() if key not in (POOLED, KEPT)}
        model = own_copy(model)
        with _pooling(model, inputs.get(POOLED)):
            cache, merged = super().begin(model, own, capacity)
        if KEPT not in inputs:
            return cache, merged
        _, mask = super().prompt(model, own)
        kept = (inputs[KEPT] & mask).gather(1, _packing(mask))
        return cache, merged.without(kept[:, : merged.embeds.shape[1]])


def looking(family: Any) -> Any:
    """Return `family` with support for what views ask of it: pooled and pruned pictures, cropped recordings. Others are unchanged."""
    kinds = {Multimodal: Looking, Whisper: Listening}
    return kinds[type(family)](**vars(family)) if type(family) in kinds else family


def _packing(mask: Tensor) -> Tensor:
    """[B, P] the order in which a session packs a prompt: padding last."""
    return torch.argsort((~mask).long(), dim=1, stable=True)


# --- pooled -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooled:
    """Own pixels with patches averaged `size` by `size` before the projector: 576 positions become 144 (TABED, Lee et al. 2026).

    For models that project a square grid of patches with a fixed number of positions per picture, such as LLaVA-1.5, PaliGemma and
    InternVL.

    Args:
        size: side of the averaged squares, in patches.

    Raises:
        ValueError: for a size below 1, and, when called, for models of another structure.
    """

    size: int = 2

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"size is {self.size}: patches are averaged 1 by 1 or more")

    def __call__(self, prompt: Any, session: Any) -> dict[str, Any]:
        """Return the prompt with fewer picture positions, and the pooling that the drafter's forward applies."""
        family, model = session.target.family, session.target.model
        ids, mask = family.prompt(model, prompt)
        marked = torch.isin(ids, torch.tensor(family.placeholders, device=ids.device)) & mask
        total = int(marked.sum())
        if total == 0:
            return dict(prompt)
        pixels = prompt.get("pixel_values")
        if pixels is None or pixels.dim() != 4 or total % len(pixels):
            raise ValueError(_otherwise(model, self.size))
        each = total // len(pixels)
        _check_square(each, self.size)
        place = (marked.long().cumsum(1) - 1) % each  # within its picture
        dropped = marked & (place >= each // self.size**2)
        read = {"input_ids": ids.masked_fill(dropped, 0), "attention_mask": mask & ~dropped}
        return {**prompt, **read, POOLED: (self.size, each)}


def _check_square(patches: int, size: int) -> None:
    side = isqrt(patches)
    if side * side != patches or side % size:
        raise ValueError(
            f"pooled averages patches {size} by {size}, but a picture takes {patches} positions, which is no square grid that divides so: "
            "choose the view 'own' or 'pruned'"
        )


def _otherwise(model: Any, size: int) -> str:
    name = type(model).__name__
    return f"pooled averages patches {size} by {size}, but {name} packs its pictures otherwise: choose the view 'own' or 'pruned'"


@contextmanager
def _pooling(model: Any, asked: tuple[int, int] | None) -> Iterator[None]:
    """Context in which pictures are pooled: `asked` is the pooling size and the positions before it, None for no pooling."""
    if asked is None:
        yield
        return
    (size, each), refused = asked, _otherwise(model, asked[0])
    model = own_copy(model)
    projector = getattr(getattr(model, "model", None), "multi_modal_projector", None)
    if projector is None:
        raise ValueError(refused)
    fits = True

    def change(real: Callable) -> Callable:
        def forward(patches: Tensor, *args: Any, **kwargs: Any) -> Any:
            nonlocal fits
            fits = patches.dim() == 3 and patches.shape[1] == each
            if not fits:
                raise ValueError(refused)
            grid = rearrange(patches, "b (h w) d -> b d h w", h=isqrt(each))
            return real(rearrange(nn.functional.avg_pool2d(grid, size), "b d h w -> b (h w) d"), *args, **kwargs)

        return forward

    try:
        with rewired({projector: change}):
            yield
    except ValueError as error:
        raise error if fits else ValueError(refused) from None


# --- pruned -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pruned:
    """The picture positions to which the target's text attends most (SpecVLM, Ji et al. 2025; DREAM, Hu et al. 2025).

    Importance is the mean attention over layers, heads and the text after the last picture. The target must have run the prompt, so
    drafting begins in the second round.

    Args:
        keep: share of picture positions that are kept.
        top: share of these that are the most important ones; the rest is spread evenly over the others.
        base: the view before pruning.

    Raises:
        ValueError: for shares out of range.
    """

    keep: float = 0.5
    top: float = 1.0
    base: View = same_prompt
    late = True

    def __post_init__(self):
        if not 0 < self.keep <= 1 or not 0 <= self.top <= 1:
            raise ValueError(f"keep is {self.keep} and top {self.top}: keep is a share above 0 and up to 1, top one from 0 to 1")

    def __call__(self, prompt: Any, session: Any) -> dict[str, Any]:
        """Return the prompt of `base`, and a mask of the picture positions to keep."""
        family = session.target.family
        if "mm_encoder_outputs" in prompt:
            raise ValueError(
                "pruned pictures are encoded by the drafter, which cannot use mm_encoder_outputs: pass pixels, or choose 'drop'"
            )
        ids, mask = family.prompt(session.target.model, prompt)
        marked = torch.isin(ids, torch.tensor(family.placeholders, device=ids.device)) & mask
        if not marked.any():
            return self.base(prompt, session)
        order, lengths = _packing(mask), mask.sum(1)
        packed = marked.gather(1, order)
        columns = torch.arange(ids.shape[1], device=ids.device)
        behind = torch.where(packed, columns, -1).amax(1) + 1  # the text behind the last picture, or the last position
        weights = importance(session, torch.minimum(behind, lengths - 1))[:, : ids.shape[1]]
        kept = ~packed | select_positions(weights, packed, self.keep, self.top) | (columns == lengths[:, None] - 1)
        return {**self.base(prompt, session), KEPT: torch.zeros_like(mask).scatter(1, order, kept) & mask}


def select_positions(weights: Tensor, of: Tensor, keep: float, top: float = 1.0) -> Tensor:
    """Return [B, P] bool: the share `keep` (rounded up) of the positions `of` [B, P] bool.

    Args:
        weights: [B, P] importance.
        of: [B, P] bool, the positions to choose from.
        keep: share kept.
        top: share of the kept ones chosen by `weights`; the rest is spread evenly.
    """
    have = of.sum(1, keepdim=True)
    count = torch.ceil(have * keep - 1e-6).long()
    best = torch.ceil(count * top - 1e-6).long()
    order = torch.where(of, weights, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(of.shape[1], device=of.device).expand_as(order))
    first = of & (rank < best)
    rest, wanted = have - best, count - best
    place = (of & ~first).long().cumsum(1) - 1  # among the others
    even = (place + 1) * wanted // rest.clamp_min(1) > place * wanted // rest.clamp_min(1)
    return first | (of & ~first & even)


@torch.no_grad()
def importance(session: Any, since: Tensor) -> Tensor:
    """Return [B, S] the attention of a session's committed rows from `since` [B] on to each slot, averaged over layers, heads and rows.

    Only these rows run again, and the session is not changed. Sums to 1 over the slots committed before and these rows.
    """
    model, noted = own_copy(session.target.model), []

    def note(module: nn.Module, args: tuple, output: Any) -> None:
        if isinstance(output, tuple) and len(output) > 1 and isinstance(output[1], Tensor) and output[1].dim() == 4:
            noted.append(output[1].float().mean(1))

    with _eager(model), ExitStack() as hooks:
        for layer in stack(model):
            for name, module in layer.named_modules():
                if name.rpartition(".")[2] in _ATTENTION:
                    hooks.callback(module.register_forward_hook(note).remove)
        rows = PartialForward(session).replay(int((session.lengths - since).max()), since).real
    if not noted:
        raise ValueError(f"{type(model).__name__} does not return attention weights: choose the view 'own'")
    weights = torch.stack(noted).mean(0) * rows[..., None]
    return weights.sum(1) / rows.sum(1, keepdim=True)


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """Context in which forwards of the copy `model` use eager attention, which returns attention weights."""
    check_copy(model)
    holders = [module for module in model.modules() if "config" in vars(module)]
    before = [module.config for module in holders]
    own = eager_configs(before)
    try:
        for module in holders:
            module.config = own[id(module.config)]
        yield
    finally:
        for module, config in zip(holders, before, strict=True):
            module.config = config
