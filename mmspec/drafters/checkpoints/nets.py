"""Drafter nets by name, and new ones made to fit a target."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.drafters.block.dflash import DFlash, DSpark
from mmspec.drafters.block.dflash2 import DFlash2
from mmspec.drafters.block.parallel_eagle import ParallelEagle
from mmspec.drafters.body.systems import SYSTEMS
from mmspec.drafters.features.eagle import Eagle1, Eagle3
from mmspec.drafters.features.glide import Glide
from mmspec.drafters.features.hivis import HiViS
from mmspec.drafters.features.vispec import ViSpec
from mmspec.drafters.heads.ctc import CTC
from mmspec.drafters.heads.latent import IndependentHeads, Latent
from mmspec.drafters.heads.medusa import Amphista, Hydra, Medusa, Recurrent
from mmspec.drafters.heads.mtp import ChainedMTP
from mmspec.drafters.heads.mtp_parallel import ParallelMTP
from mmspec.drafters.heads.recurrent import RecurrentHead
from mmspec.drafters.self_drafting.adapter import Adapter
from mmspec.drafters.self_drafting.mask_tokens import MaskTokens

NETS: dict[str, type[nn.Module]] = {
    net.kind: net
    for net in (
        *(Medusa, Latent, IndependentHeads, Hydra, Recurrent, Amphista, CTC),
        *(Eagle1, Eagle3, HiViS, ViSpec),
        *(Adapter, ChainedMTP, ParallelMTP, Glide, MaskTokens),
        *(DFlash, DFlash2, DSpark, ParallelEagle),
        *SYSTEMS.values(),
    )
}
BEAM_NETS: dict[str, type[nn.Module]] = {RecurrentHead.kind: RecurrentHead}
"""Those that draft item paths for a beam search, and no text."""


LARGE_VOCABULARY = 65_536
"""Vocabularies above this size are drafted in part, and their head is shared."""
DRAFTED_VALUES = 32_768
"""Values that are drafted of a larger vocabulary, unless another number is asked for."""


def net_class(kind: str) -> Any:
    """Return the class called `kind`. ValueError lists the known kinds."""
    known = NETS | BEAM_NETS
    if kind not in known:
        raise ValueError(f"unknown drafter kind {kind!r}; valid: {', '.join(sorted(known))}")
    return known[kind]


def new_net(kind: str, target: Any, options: Mapping[str, Any] | None = None) -> Any:
    """Return an untrained net of `kind` with the sizes of `target`; `options` override them."""
    config = target.config.get_text_config(decoder=True)
    made = net_class(kind)
    try:
        return made(**(made.fit(config) | dict(options or {})))
    except (TypeError, RuntimeError, ZeroDivisionError) as error:  # an unknown name, or a size that is none
        raise ValueError(f"options {dict(options or {})} do not make a drafter of kind {kind}: {error}") from None


def net_to_train(kind: str, target: Any, options: Mapping[str, Any] | None = None, vocabulary: int | None = None) -> Any:
    """Return a net of `kind` that fits `target`, for `begin_training`.

    EAGLE-3 nets and block drafters for more than `LARGE_VOCABULARY` values draft `DRAFTED_VALUES` of them, by the rows of the target's
    head.

    Args:
        kind: one of `NETS`.
        target: a transformers model.
        options: of the net's class.
        vocabulary: number of values that are drafted; 0 for all.

    Raises:
        ValueError: for an unknown kind, and for a `vocabulary` that the kind does not have.
    """
    size = target.config.get_text_config(decoder=True).vocab_size
    if not hasattr(net_class(kind), "know"):
        if vocabulary is not None:
            raise ValueError(f"vocabulary is {vocabulary}, but {kind} drafts all {size} values: leave it out, or train eagle3")
        return new_net(kind, target, options)
    if vocabulary is not None and not 0 <= vocabulary <= size:
        raise ValueError(f"vocabulary is {vocabulary}: give 1 to {size} values, or 0 for all")
    values = (DRAFTED_VALUES if size > LARGE_VOCABULARY else 0) if vocabulary is None else vocabulary
    shared = {"shared_head": True} if size > LARGE_VOCABULARY and "shared_head" in signature(net_class(kind)).parameters else {}
    return new_net(kind, target, {"values": values} | shared | dict(options or {}))


def begin_training(net: Any, target: Any, written: Tensor) -> Any:
    """Set what `net` begins with: the drafted values, and copies of parts of `target`.

    Args:
        net: from `net_to_train`.
        target: the transformers model it is for.
        written: [N] values that the target wrote; the most frequent ones are drafted.

    Returns:
        `net`.
    """
    if getattr(net, "vocabulary", None) is not None:
        counts = torch.bincount(written, minlength=len(net.t2d))
        net.know(counts.sort(descending=True, stable=True).indices[: len(net.vocabulary)].sort().values)
    if hasattr(net, "start_from"):
        net.start_from(target)
    return net
