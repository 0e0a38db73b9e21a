"""The guide of feature drafters.

Columns of draft tokens are dropped after each round, so the cache holds only columns made from the target's states.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.core.records import Draft, Scored, Verdict
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
class EagleFeed:
    """Inputs of `EagleFamily` beside the ids: the prompt, the states of the next forward, and all outputs of the current draft."""

    prompt: Columns
    going_in: Tensor | None = None  # [B, M, H] for the columns of the coming forward
    come_out: Tensor | None = None  # [B, N, H]


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
        out = model(state.going_in, value, positions, visible[:, None], cache)
        fresh = out[:, -keep:]
        state.come_out = fresh if state.come_out is None else torch.cat([state.come_out, fresh], 1)
        return model.logits(fresh, self.head, self.size), None


class FeatureGuide:
    """Guide of a feature net: its own session, and the committed values it has not run yet."""

    most = None

    def __init__(self, net: "FeatureNet", session: HFSession):
        model = session.target.model
        check_width(net.kind, net.width, model)
        net.check_sight(session)
        session.watch(net.reads)
        embed, head, self.size = words_of(session)
        self.net, self.theirs = net, session
        self.blind = isinstance(session.target.family, OwnValues)  # its prompts are no values: the states behind them must do
        self.target = HFTarget(net, EagleFamily(embed, head, self.size), session.target.processors)  # type: ignore[arg-type]
        self.session: HFSession | None = None  # its state is the `EagleFeed`
        self.fresh: Fresh | None = None
        self.prompt: Tensor | None = None  # [B, P, F] the target's states before the prompt's values, until those are run
        self.level = 0  # draft tokens on the paths of the draft under way

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        if self.session is None:
            prompt = self.net.reading(self._columns(draft, scored))
            cache = SlotCache(1, -(-(prompt.values.shape[1] + _RESERVE) // 64) * 64)
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
        feed, first = self.session.state, self.session.scored
        if first:
            self.level += 1
            later = None if feed.prompt.beside is None else feed.prompt.beside[:, -1:]
            feed.going_in = self.net.enter(pick(feed.come_out, draft.parents[:, first:]), self.level, later)
        else:
            feed.going_in = self._committed(feed.prompt.beside)
        scored = self.session.score(draft)
        return Scored(scored.p, feed.come_out[:, first:])

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        assert self.session is not None
        assert self.fresh is not None
        columns = torch.arange(self.fresh.real.shape[1], device=self.fresh.real.device)
        self.session.commit(torch.where(self.fresh.real, columns, -1), len(columns))
        self.fresh, self.session.state.come_out, self.level = None, None, 0

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
