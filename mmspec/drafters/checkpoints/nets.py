"""Drafter nets by name, and new ones made to fit a target."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from mmspec.drafters.features.eagle import Eagle1, Eagle3
from mmspec.drafters.features.glide import Glide
from mmspec.drafters.features.hivis import HiViS
from mmspec.drafters.features.vispec import ViSpec
from mmspec.drafters.heads.ctc import CTC
from mmspec.drafters.heads.medusa import Amphista, Hydra, Latent, Medusa, Recurrent
from mmspec.drafters.heads.mtp import ChainedMTP
from mmspec.drafters.heads.mtp_parallel import ParallelMTP
from mmspec.drafters.heads.recurrent import RecurrentHead
from mmspec.drafters.self_drafting.adapter import Adapter
from mmspec.drafters.self_drafting.mask_tokens import MaskTokens

NETS: dict[str, type[nn.Module]] = {
    net.kind: net
    for net in (
        *(Medusa, Latent, Hydra, Recurrent, Amphista, CTC),
        *(Eagle1, Eagle3, HiViS, ViSpec),
        *(Adapter, ChainedMTP, ParallelMTP, Glide, MaskTokens),
    )
}
BEAM_NETS: dict[str, type[nn.Module]] = {RecurrentHead.kind: RecurrentHead}
"""Those that draft item paths for a beam search, and no text."""


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
    return made(**(made.fit(config) | dict(options or {})))
