"""A state draft in one generation: its session beside the target's, and the committed tokens that it has not run yet.

Columns pair a token with the last hidden state before it: the target's for committed tokens, the draft's own for draft tokens. Columns of
draft tokens are dropped after each round. The first round is not drafted, since no state of the target exists before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.drafters.guided import Fresh, pick
from mmspec.models.families.base import additive_mask
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.models.target import HFSession, HFTarget
from mmspec.vision.continuous.heads import CountedHead
from mmspec.vision.continuous.latents import LatentRequest, Latents, Sampling, tokens_of
from mmspec.vision.continuous.state_draft.net import StateDraft


@dataclass
class StateFeed:
    """What goes into the coming forward of a `StateDraft`, and what came out of those of the draft under way."""

    entering: Tensor | None = None  # [R, M, D] states of its columns
    found: Tensor | None = None  # [R, N, D] predicted behind all columns of the draft


class StateLatents(Latents):
    """Family of a `StateDraft` in one generation.

    Args:
        net: the draft.
        theirs: the target's family, which embeds tokens and makes the head's conditioning of hidden states.
        request: settings of the generation.
        sampling: of the draft's head.
    """

    def __init__(self, net: StateDraft, theirs: Latents, request: LatentRequest, sampling: Sampling):
        super().__init__(net, request, sampling, theirs.net if net.head is None else net.head)
        self.theirs = theirs

    def forward(  # type: ignore[override]
        self, model: Any, layout: Layout, cache: SlotCache, state: StateFeed, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Return the head's conditioning [R, keep, D] of the last `keep` columns."""
        assert state.entering is not None
        cells = layout.positions
        embeds = self.theirs.token_embeddings(tokens_of(layout.ids, self.width), cells)
        hidden = model(state.entering, embeds, cells, additive_mask(layout, embeds.dtype), cache)
        state.found = hidden if state.found is None else torch.cat([state.found, hidden], 1)
        return self.theirs.conditioning(hidden[:, -keep:], cells[:, -keep:] + 1), None


@dataclass(frozen=True)
class StateSource:
    """A state draft with its settings for one generation, from which its guide is made.

    Args:
        net: the draft.
        request: settings of the generation.
        sampling: of the draft's head.
        heads: the heads of all guides made, which count their calls.
    """

    net: StateDraft
    request: LatentRequest
    sampling: Sampling
    heads: list[CountedHead] = field(default_factory=list)

    def guide(self, session: HFSession) -> "StateGuide":
        """Return the guide of one generation on the target's session."""
        return StateGuide(self, session)


class StateGuide:
    """Guide of a state draft.

    Args:
        source: the draft.
        session: the target's session.
    """

    most = None

    def __init__(self, source: StateSource, session: HFSession):
        theirs: Any = session.target.family
        session.watch((-1,))
        family: Any = StateLatents(source.net, theirs, source.request, source.sampling)
        source.heads.extend([] if family.noise_schedule is None else [family.head])
        target = HFTarget(source.net, family, session.target.processors)
        rows, device = len(session.lengths), session.lengths.device
        empty = torch.zeros(rows, 0, *family.value, dtype=torch.float32, device=device)
        cache = SlotCache(source.net.config.num_hidden_layers, session.cache.capacity)
        self.session = HFSession(target, cache, StateFeed(), empty, torch.zeros(rows, dtype=torch.long, device=device))
        self.fresh: Fresh | None = None

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        self.fresh = Fresh.of(draft, scored, verdict).behind(self.fresh)

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        if self.fresh is None:
            return None
        self.fresh = self.fresh.packed()
        return self.fresh.rooted(pending)

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft, of the roots the last; see `Guide.score`."""
        feed, ran = self.session.state, self.session.scored
        if ran:
            return self._scored(draft, pick(feed.found, draft.parents[:, ran:]), ran)
        assert self.fresh is not None
        return self._scored(draft, self.fresh.features, draft.size - 1)

    @torch.no_grad()
    def taught(self, values: Tensor, states: Tensor) -> Any:
        """Return the distributions of tokens given committed ones alone, in one forward.

        Args:
            values: values [R, M, *value] of the picture's first M tokens.
            states: [R, M, D] the target's last hidden states before them.

        Returns:
            Distributions [B, M] of the tokens behind each.
        """
        draft = Draft.root(values[:, 0], torch.ones(len(values), dtype=torch.long, device=values.device))
        room = torch.full((len(values),), values.shape[1], device=values.device)
        return self._scored(draft.extend_chain(values[:, 1:], room), states, 0).p

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        assert self.fresh is not None
        columns = torch.arange(self.fresh.real.shape[1], device=self.fresh.real.device)
        self.session.commit(torch.where(self.fresh.real, columns, -1), len(columns))
        self.fresh, self.session.state.found = None, None

    def _scored(self, draft: Draft, entering: Tensor, first: int) -> Scored:
        """Run the new columns, and make the distributions after those from `first` on."""
        self.session.state.entering = entering
        found, _, layout = self.session.run(draft)
        found = found[:, first - draft.size :]
        return Scored(self.session.distributions(found, draft, layout, first))
