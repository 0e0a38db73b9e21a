"""The guide of feature drafters.

Columns of draft tokens are dropped after each round, so the cache holds only columns made from the target's states.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState, SessionRowState
from mmspec.drafters.features.reading import Columns, sight_of
from mmspec.drafters.guided import Fresh, check_width, pick, prompt_pairs, words_of
from mmspec.models.family import OwnValues
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.models.target import HFSession, HFTarget

if TYPE_CHECKING:
    from mmspec.drafters.features.eagle import FeatureNet

_RESERVE = 192


@dataclass
class EagleFeed(RowState):
    """Inputs of `EagleFamily` beside the ids: the prompt, the states of the next forward, and all outputs of the current draft."""

    by_row = ("prompt",)

    prompt: Columns
    going_in: Tensor | None = None  # [B, M, H] for the columns of the coming forward
    come_out: Tensor | None = None  # [B, N, S] states of the draft's nodes
    feature: Tensor | None = None  # [B, M, H] what the logits of the newest nodes are made of
    level: int = 0  # draft tokens on the paths of the draft under way
    fresh: int = 0  # the newest nodes: columns before them are run late
    newest: Tensor | None = None  # [B, 1] slot of each row's last committed column

    def take(self, model: "FeatureNet", state: Tensor) -> Tensor:
        """Keep the states [B, M, S] of the newest nodes. Returns the features of their logits."""
        self.come_out = state if self.come_out is None else torch.cat([self.come_out, state], 1)
        self.feature = model.feature(state, self.level)
        return self.feature


@dataclass(frozen=True)
class EagleFamily:
    """Family of feature nets: lets an `HFSession` run one like any model."""

    embed: Any
    head: Any
    size: int

    def forward(
        self, model: "FeatureNet", layout: Layout, cache: SlotCache, state: EagleFeed, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run `model` on the columns of `layout`; see the family protocol."""
        value = (self.embed if model.embed_tokens is None else model.embed_tokens)(layout.ids)
        value, positions, visible = state.prompt.over(value, layout.positions), state.prompt.along(layout.positions), layout.visible
        if model.window is not None:
            visible = visible & (layout.positions[:, :, None] - layout.slot_positions[:, None, :] < model.window)
        out = model(state.going_in, value, positions, self._mask(model, layout, state, visible), cache)
        feature = state.take(model, model.node_states(out[:, -state.fresh :], value[:, -state.fresh :]))
        logits = model.logits(feature, self.head, self.size)
        return nn.functional.pad(logits, (0, 0, keep - state.fresh, 0)), None

    def _mask(self, model: "FeatureNet", layout: Layout, state: EagleFeed, visible: Tensor) -> Tensor:
        """`visible` [B, M, S] as [B, 1 or 2, M, S], with `across` a part for committed columns."""
        if not model.across:
            return visible[:, None]
        if state.level == 0:
            state.newest = layout.positions[:, -1:]
        assert state.newest is not None
        return torch.stack([visible, visible & (layout.slot_positions <= state.newest)[:, None]], 1)


class FeatureGuide(SessionRowState):
    """Guide of a feature net: its own session, and the committed values it has not run yet."""

    by_row = ("fresh",)

    def __init__(self, net: "FeatureNet", session: HFSession):
        model = session.target.model
        check_width(net.kind, net.width, model)
        net.check_sight(session)
        session.watch(net.reads)
        self.embed, self.head, self.size = words_of(session)
        self.net, self.theirs, self.most = net, session, net.most
        self.blind = isinstance(session.target.family, OwnValues)  # its prompts are no values: the states behind them must do
        self.target = HFTarget(net, EagleFamily(self.embed, self.head, self.size), session.target.processors)  # type: ignore[arg-type]
        self.session: HFSession | None = None  # its state is the `EagleFeed`
        self.fresh: Fresh | None = None
        self.prompt: Tensor | None = None  # [B, P, F] the target's states before the prompt's values, until those are run
        self.level = 0  # draft tokens on the paths of the draft under way
        self.known = 0  # its columns that are scored

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        if self.session is None:
            prompt = self.net.reading(self._columns(draft, scored))
            cache = SlotCache(self.net.cached, -(-(prompt.values.shape[1] + _RESERVE) // 64) * 64)
            self.prompt, feed = prompt.features, EagleFeed(replace(prompt, features=prompt.features.new_zeros(0)))
            self.session = HFSession(self.target, cache, feed, prompt.values, prompt.lengths)
        self.fresh = Fresh.of(draft, scored, verdict).behind(self.fresh)

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        if self.session is None or self.fresh is None:
            return None
        self.fresh = self.fresh.packed()
        return self.fresh.rooted(pending)

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        assert self.session is not None
        net, feed, first, late = self.net, self.session.state, self.known, self.session.scored
        self.level, self.known = self.level + bool(first), draft.size
        feed.level, feed.fresh = self.level, draft.size - first
        if not net.attends(self.level):
            value = (self.embed if net.embed_tokens is None else net.embed_tokens)(draft.nodes[:, first:])
            state = net.advance(pick(feed.come_out, draft.parents[:, first:]), value, self.level)
            logits = net.logits(feed.take(net, state), self.head, self.size)
            return Scored(self.session.distribution(logits, draft, first), feed.feature)
        if late:
            later = None if feed.prompt.beside is None else feed.prompt.beside[:, -1:]
            feed.going_in = net.enter(pick(feed.come_out, draft.parents[:, late:]), self.level, later)
        else:
            feed.going_in = self._committed(feed.prompt.beside)
        p = self.session.score(draft).p
        return Scored(p if first == late else p.last(feed.fresh), feed.feature)

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        assert self.session is not None
        assert self.fresh is not None
        columns = torch.arange(self.fresh.real.shape[1], device=self.fresh.real.device)
        self.session.commit(torch.where(self.fresh.real, columns, -1), len(columns))
        self.fresh, self.session.state.come_out, self.level, self.known = None, None, 0, 0

    def _committed(self, beside: Tensor | None) -> Tensor:
        """What goes in before committed values: those of the prompt, in the round that runs it, and the fresh ones."""
        assert self.fresh is not None
        features, prompt, self.prompt = self.fresh.features, self.prompt, None
        if beside is not None:
            later = beside[:, -1:].expand(-1, features.shape[1], -1)
            beside = later if prompt is None else torch.cat([beside[:, :-1], later], 1)
        return self.net.enter(self.net.take(features if prompt is None else torch.cat([prompt, features], 1)), 0, beside)

    def _columns(self, draft: Draft, scored: Scored) -> Columns:
        values, lengths, features = prompt_pairs(draft, scored)
        if self.blind:
            return Columns(values[:, :0], torch.zeros_like(lengths), features[:, :0])
        assert scored.context is not None
        vision = sight_of(self.theirs, torch.cat([scored.context.ids[:, :1], values], 1), lengths + 1)
        return Columns.of(values.clamp(max=self.size - 1), lengths, features, vision)  # placeholders may lie beyond the vocabulary
