"""Adapters between an early exit and the target's head (Kangaroo, Liu et al. 2024; EESD, Liu et al. 2024).

An adapter is one small layer with its own cache. It reads the exit state of its own position, where feature drafters read the state before
it. So draft tokens run through the target's first layers, whose work the target then reuses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from mmspec.core.records import CONTEXT, PAD, Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState, SessionRowState, join_tensors, rows_of
from mmspec.drafters.guided import check_width, head_of, llama_sizes, on_pending, pick
from mmspec.models.compat.cache_name import CACHE
from mmspec.models.layout import Layout
from mmspec.models.partial_forward import ShallowView
from mmspec.models.slot_cache import SlotCache
from mmspec.models.stack import stack
from mmspec.models.target import HFSession, HFTarget

_RESERVE = 192


class AttentionLayer(nn.Module):
    """A decoder layer without its MLP."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.self_attn = LlamaAttention(config, 0)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, hidden_states: Tensor, **rest: Any) -> Tensor:
        """Return the layer's output [B, M, H]."""
        found, _ = self.self_attn(self.input_layernorm(hidden_states), **rest)
        return hidden_states + found


class Adapter(nn.Module):
    """One layer with its own cache, and a norm, between the target's exit after `layer` layers and its head.

    Exits, adapts and reads the target's own head, so it is a complete drafter. Untrained, it leaves the exit state unchanged.

    Args:
        layer: number of the target's layers that run.
        sizes: options of the LlamaConfig of the adapter's layer.
        mlp: a whole decoder layer, as in EESD; without it attention only, with the parameter names of Kangaroo's checkpoints
            (`layers.0.self_attn`, `layers.0.input_layernorm`, `norm`).
    """

    kind = "kangaroo"

    def __init__(self, layer: int, sizes: Mapping[str, Any], mlp: bool = False):
        super().__init__()
        self.config = {"layer": layer, "sizes": dict(sizes), "mlp": mlp}
        self.layer, self.reads = layer, (layer,)
        self.llama = LlamaConfig(**{"num_hidden_layers": 1, "attn_implementation": "sdpa", **sizes})
        self.hidden = self.llama.hidden_size
        self.layers = nn.ModuleList([LlamaDecoderLayer(self.llama, 0) if mlp else AttentionLayer(self.llama)])
        self.norm = LlamaRMSNorm(self.hidden, self.llama.rms_norm_eps)
        self.rotary = LlamaRotaryEmbedding(self.llama)
        self._start_idle()

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`: its sizes, and an exit after an eighth of its layers, as in Kangaroo."""
        return {"layer": max(1, config.num_hidden_layers // 8), "sizes": llama_sizes(config)}

    def start_from(self, target: Any) -> None:
        """Initialise with the target's final norm, where it is an RMS norm. Some families, as Gemma, scale by 1 + weight."""
        norm = getattr(target.get_decoder(), "norm", None)
        weight = getattr(norm, "weight", None)
        if norm is not None and weight is not None and weight.shape == self.norm.weight.shape and getattr(norm, "bias", None) is None:
            signs = torch.ones_like(weight)
            signs[1::2] = -1  # their mean square is 1
            self.norm.weight.data.copy_((norm(signs) * signs).detach())

    def forward(self, state: Tensor, positions: Tensor, mask: Tensor, cache: Any = None) -> Tensor:
        """Return adapted states [B, M, H] of exit states `state` [B, M, H]; `mask` is [B, 1, M, S] bool."""
        rope = self.rotary(state, positions)
        return self.layers[0](state, attention_mask=mask, position_embeddings=rope, **{CACHE: cache})

    def own_logits(self, state: Tensor, head: Any) -> Tensor:
        """Return logits of adapted states by the target's `head`."""
        return head(self.norm(state))

    def guide(self, session: HFSession) -> "AdapterGuide":
        """Return the guide of one generation on the target session `session`."""
        return AdapterGuide(self, session)

    def _start_idle(self) -> None:
        layer: Any = self.layers[0]
        nn.init.zeros_(layer.self_attn.o_proj.weight)
        if hasattr(layer, "mlp"):
            nn.init.zeros_(layer.mlp.down_proj.weight)


@dataclass
class AdapterFeed(RowState):
    """The exit states of the adapter's next forward, [B, M, H]."""

    states: Tensor | None = None


@dataclass(frozen=True)
class AdapterFamily:
    """Family of adapters: lets an `HFSession` run one like any model."""

    head: Any

    def forward(
        self, model: Adapter, layout: Layout, cache: SlotCache, state: AdapterFeed, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run `model` on the columns of `layout`; see the family protocol."""
        out = model(state.states, layout.positions, layout.visible[:, None], cache)
        return model.own_logits(out[:, -keep:], self.head), None


class AdapterGuide(SessionRowState):
    """Guide of an adapter: exit states of committed values come from the target, those of draft tokens from the partial forward.

    The adapter's session commits committed values only.
    """

    most = None

    def __init__(self, net: Adapter, session: HFSession):
        model = session.target.model
        check_width(net.kind, net.hidden, model)
        if net.layer >= len(stack(model)):
            raise ValueError(f"the adapter reads layer {net.layer}, but the target has {len(stack(model))}: it must exit before the last")
        self.view = ShallowView(session, net.layer)
        session.watch(net.reads)
        self.net, self.feed = net, AdapterFeed()
        self.target = HFTarget(net, AdapterFamily(head_of(model)), session.target.processors)  # type: ignore[arg-type]
        self.session: HFSession | None = None
        self.prompt: Tensor | None = None  # [B, P, H] exit states of the prompt, until they are run
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []  # per round since: values [B, M], exit states [B, M, H], which are real

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        assert scored.hidden is not None
        if scored.context is not None:
            ids, lengths, self.prompt = scored.context.ids, scored.context.lengths, scored.context.hidden
            cache = SlotCache(1, -(-(ids.shape[1] + _RESERVE) // 64) * 64)
            self.session = HFSession(self.target, cache, self.feed, ids, lengths)
        keep = verdict.keep[:, : draft.height + 1]
        self.kept.append((draft.nodes.gather(1, keep.clamp_min(0)), pick(scored.hidden, keep), keep >= 0))

    def root(self, pending: Draft) -> Draft | None:
        """The values committed since the adapter last ran, then the pending token."""
        if self.session is None or not self.kept:
            return None
        values, states, real = (torch.cat(parts, 1) for parts in zip(*self.kept, strict=True))
        self.kept = [(values, states, real)]
        alive = pending.valid[:, :1]
        valid = torch.cat([real & alive, alive], 1)
        columns = torch.arange(valid.shape[1], device=valid.device)
        last = torch.where(valid, columns, CONTEXT).cummax(1).values
        before = torch.cat([torch.full_like(last[:, :1], CONTEXT), last[:, :-1]], 1)
        return Draft(torch.cat([values, pending.nodes], 1), torch.where(valid, before, PAD), pending.start, roots=valid.shape[1])

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        assert self.session is not None
        first = self.view.scored
        self.view.score(on_pending(draft))
        assert self.view.states is not None
        fresh = self.view.states[:, first:]
        if first == 0:
            committed = self.kept[0][1] if self.prompt is None else torch.cat([self.prompt, self.kept[0][1]], 1)
            fresh, self.prompt = torch.cat([committed, fresh], 1), None
        self.feed.states = fresh
        return self.session.score(draft)

    def share(self, draft: Draft, origin: Tensor) -> None:
        """Hand this draft's partial forward to the target; see `Sharing.share`."""
        self.view.hand_over(draft, origin)

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        assert self.session is not None
        real = self.kept[0][2]
        columns = torch.arange(real.shape[1], device=real.device)
        self.session.commit(torch.where(real, columns, -1), len(columns))
        self.kept = []
        self.view.close()

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        super().take_rows(rows)
        self.kept = [tuple(rows_of(part, rows) for part in round_) for round_ in self.kept]  # type: ignore[misc]

    def join_rows(self, other: Self) -> None:
        """Append the rows of another guide; see `core.rows.changes.ChangesRows`."""
        super().join_rows(other)
        mine, theirs = (tuple(torch.cat(parts, 1) for parts in zip(*guide.kept, strict=True)) for guide in (self, other))
        self.kept = [tuple(join_tensors(*pair) for pair in zip(mine, theirs, strict=True))]  # type: ignore[list-item]
