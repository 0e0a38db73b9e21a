"""Multi-token prediction by parallel heads (Gloeckle et al. 2024): each is one decoder layer on the trunk's hidden state.

Head d predicts the value d + 2 places after its column from the trunk's states up to there, without the draft tokens between. Heads run
over committed columns only, each with its own cache; a draft token costs one product with the target's output embedding.

Speech models chain them: in Llasa+ (Tian et al. 2025, arXiv 2508.06262) and VocalNet (2504.04060) each head reads the one before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState, SessionRowState
from mmspec.drafters.features.blocks import Blocks, llama_layer
from mmspec.drafters.guided import Fresh, check_width, head_of, prompt_pairs
from mmspec.models.compat.cache_name import CACHE
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.models.stack import stack
from mmspec.models.target import HFSession, HFTarget

_RESERVE = 192


class ParallelMTP(nn.Module):
    """Parallel multi-token prediction heads (Gloeckle et al. 2024), or chained ones (Llasa+, Tian et al. 2025).

    The heads share one norm, in the paper the target's own, and the target's output embedding.

    Args:
        layer: transformers config, with its `model_type`, of the heads' layers.
        heads: number of heads.
        reads: the hidden state read, numbered as in `mmspec.models.stack`; by default the input of the target's last layer.
        chained: each head reads the normed and projected output of the one before it instead of the trunk's state (Llasa+, with `reads`
            (-1,)).

    Raises:
        ValueError: for no heads, or other than one hidden state.
    """

    kind = "mtp-parallel"
    blind = True

    def __init__(self, layer: Mapping[str, Any], heads: int = 3, reads: Sequence[int] = (-2,), chained: bool = False):
        super().__init__()
        if heads < 1 or len(reads) != 1:
            raise ValueError(f"heads is {heads} and reads {list(reads)}: at least 1 head, and exactly 1 hidden state, are needed")
        self.config = {"layer": dict(layer), "heads": heads, "reads": list(reads)} | ({"chained": True} if chained else {})
        self.most, self.reads, self.blocks = heads, tuple(reads), Blocks.of(layer, heads)
        config = self.blocks.config
        self.hidden = config.hidden_size
        self.layers = nn.ModuleList(self.blocks.block(config, k) for k in range(heads))
        self.norm = self.blocks.norm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = self.blocks.rope(config)
        self.enter = nn.ModuleList(_entrance(self.blocks.norm, config) for _ in range(heads if chained else 0))

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`: Llama layers of its sizes."""
        return {"layer": llama_layer(config)}

    def start_from(self, target: Any) -> None:
        """Initialise with the target's norm and last layer, where they are of the same family, so that every head predicts the next
        value.
        """
        last = stack(target)[-1]
        for mine, own in ((self.norm, getattr(target.get_decoder(), "norm", None)), *((layer, last) for layer in self.layers)):
            if own is not None and type(own) is type(mine) and _shapes(own) == _shapes(mine):
                mine.load_state_dict(own.state_dict())

    def forward(self, k: int, state: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """Return head `k`'s input to the output embedding and the next head's input, both [B, M, H]; `mask` is [B, 1, M, S] bool."""
        rope, entering = self.rotary(state, position_ids=positions), self.enter[k](state) if len(self.enter) else state
        out = self.layers[k](entering, attention_mask=mask, position_embeddings=rope, position_ids=positions, **{CACHE: cache})
        return self.norm(out), out if len(self.enter) else state

    def guide(self, session: HFSession) -> "ParallelGuide":
        """Return the guide of one generation on the target session `session`."""
        return ParallelGuide(self, session)


def _entrance(norm: type[nn.Module], config: Any) -> nn.Sequential:
    """Norm and projection, which is the identity at first."""
    linear = nn.Linear(config.hidden_size, config.hidden_size)
    nn.init.eye_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(norm(config.hidden_size, eps=config.rms_norm_eps), linear)


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


@dataclass
class Trunk(RowState):
    """Input of the heads' next forward, and each head's output at every row's newest state."""

    going_in: Tensor | None = None  # [B, M, H]
    newest: list[Tensor] = field(default_factory=list)  # per head, [B, 1, H]


@dataclass(frozen=True)
class ParallelHeads:
    """Family of parallel heads: all run over the columns of one forward, which returns the first head's distributions."""

    head: Any

    def forward(
        self, model: ParallelMTP, layout: Layout, cache: SlotCache, state: Trunk, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run `model` on the columns of `layout`; see the family protocol."""
        see = partial(model.blocks.visible, visible=layout.visible, positions=layout.positions, slot_positions=layout.slot_positions)
        going_in, found = state.going_in, []
        for k in range(model.most):
            out, going_in = model(k, going_in, layout.positions, see(k)[:, None], cache)
            found.append(out)
        state.newest = [out[:, -1:] for out in found]
        return self.head(found[0][:, -keep:]), None


class ParallelGuide(SessionRowState):
    """Guide of parallel heads: one forward over the newly committed values, then one distribution a level."""

    by_row = ("fresh",)

    def __init__(self, net: ParallelMTP, session: HFSession):
        model = session.target.model
        check_width(net.kind, net.hidden, model)
        session.watch(net.reads)
        self.net, self.most, self.trunk, self.head = net, net.most, Trunk(), head_of(model)
        self.target = HFTarget(net, ParallelHeads(self.head), session.target.processors)  # type: ignore[arg-type]
        self.session: HFSession | None = None
        self.fresh: Fresh | None = None
        self.prompt: Tensor | None = None
        self.level = self.scored = 0

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        if self.session is None:
            values, lengths, self.prompt = prompt_pairs(draft, scored)
            cache = SlotCache(self.most, -(-(values.shape[1] + _RESERVE) // 64) * 64)
            self.session = HFSession(self.target, cache, self.trunk, values, lengths)
        self.fresh = Fresh.of(draft, scored, verdict).behind(self.fresh)

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        if self.fresh is None:
            return None
        self.fresh, self.level = self.fresh.packed(), 0
        return self.fresh.rooted(pending)

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        assert self.session is not None
        assert self.fresh is not None
        level, first, self.level, self.scored = self.level, self.scored, self.level + 1, draft.size
        if level == 0:
            features = self.fresh.features
            self.trunk.going_in, self.prompt = features if self.prompt is None else torch.cat([self.prompt, features], 1), None
            p = self.session.score(draft).p
            return Scored(p, self.trunk.newest[0].expand(-1, draft.size, -1))
        feature = self.trunk.newest[level]
        logits = self.head(feature).expand(-1, draft.size - first, -1)
        return Scored(self.session.distribution(logits, draft, first), feature.expand(-1, draft.size - first, -1))

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        assert self.session is not None
        assert self.fresh is not None
        columns = torch.arange(self.fresh.real.shape[1], device=self.fresh.real.device)
        self.session.commit(torch.where(self.fresh.real, columns, -1), len(columns))
        self.fresh = None
