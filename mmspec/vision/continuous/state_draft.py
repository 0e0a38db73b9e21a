"""State drafts: one decoder layer over pairs of a token and the target's last hidden state before it.

From the pair it predicts the target's next last hidden state, and the target's own head, or a smaller one, gives the distribution of the
next token (EAGLE, Li et al. 2024, arXiv 2401.15077, for vectors in place of token ids). Committed tokens stand beside the target's states,
draft tokens beside the draft's own; columns of draft tokens are dropped after each round. The first round is not drafted, since no state of
the target exists before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.drafters.guided import Fresh, pick
from mmspec.models.families.base import additive_mask
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.models.target import HFSession, HFTarget
from mmspec.vision.continuous.ar import ContinuousARConfig, DiffusionHead, MixtureHead
from mmspec.vision.continuous.heads import CountedHead
from mmspec.vision.continuous.latents import LatentRequest, Latents, Sampling, tokens_of
from mmspec.vision.families.llamagen_layers import DecoderBlock, rotary

SHARED = ("hidden_size", "channels", "head")
"""Fields of the config that the target must share."""


class StateDraftConfig(ContinuousARConfig):
    """Sizes of a `StateDraft`.

    Args:
        own_head: the draft has a head of its own, of the sizes `head_width` and `head_blocks` or `components`; else the target's is used.
        rest: options of `ContinuousARConfig`; `hidden_size`, `channels` and `head` are the target's.

    Raises:
        ValueError: as `ContinuousARConfig`.
    """

    model_type = "continuous-state-draft"

    def __init__(self, own_head: bool = False, **rest: Any):
        self.own_head = own_head
        super().__init__(**{"num_hidden_layers": 1, **rest})


class StateDraft(PreTrainedModel):
    """One decoder layer that predicts the next last hidden state of a target of continuous tokens.

    It has no embedding of its own: tokens are embedded by the target.

    Args:
        config: the sizes.
    """

    config_class = StateDraftConfig  # pyright: ignore[reportAssignmentType]
    config: StateDraftConfig
    _supports_sdpa = True

    def __init__(self, config: StateDraftConfig):
        super().__init__(config)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderBlock(config, 0)])
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = (DiffusionHead if config.head == "diffusion" else MixtureHead)(config) if config.own_head else None
        self.post_init()

    @staticmethod
    def beside(target: Any, own_head: bool = False, **sizes: Any) -> "StateDraft":
        """Make an untrained draft for a target; its output norm begins as the target's.

        Args:
            target: a `ContinuousAR`, or a `NextStep`.
            own_head: give it a head of its own.
            sizes: further options of `StateDraftConfig`, such as `head_width`.

        Returns:
            The draft.
        """
        theirs = target.config
        names = (
            "hidden_size",
            "channels",
            "head",
            "num_attention_heads",
            "intermediate_size",
            "head_steps",
            "sigma_out",
            "grid",
            "rms_norm_eps",
        )
        found = {name: getattr(theirs, name) for name in names if hasattr(theirs, name)}
        draft = StateDraft(StateDraftConfig(own_head=own_head, **{**found, **sizes}))
        with torch.no_grad():
            draft.norm.weight.copy_(target.norm.weight)
        return draft

    def forward(self, states: Tensor, embeds: Tensor, cells: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        """Predict the target's last hidden states behind tokens.

        Args:
            states: [R, M, D] last hidden states before each token: the target's, or the draft's own.
            embeds: [R, M, D] the target's embeddings of the tokens.
            cells: LongTensor [R, M], places of the tokens in raster order.
            mask: bool or additive [R, 1, M, S]; causal by default.
            cache: a layer-wise key-value cache, or None.

        Returns:
            [R, M, D].
        """
        x = self.layers[0](self.fc(torch.cat([embeds, states], -1)), rotary(cells, self.config), mask, cache)
        return self.norm(x)

    def unrolled(self, states: Tensor, embeds: Tensor, cells: Tensor, levels: int) -> Sequence[Tensor]:
        """Predict states as in drafts of several tokens, for training.

        At level 0 every token stands beside the target's state; at level k the last k + 1 tokens of each path are drafted ones, so that
        the last k of them stand beside the draft's own states of the levels before.

        Args:
            states: [R, M, D] the target's states before each token.
            embeds: [R, M, D] embeddings of the tokens.
            cells: LongTensor [R, M], their places.
            levels: number of levels.

        Returns:
            For each level k, predictions [R, M - k, D] behind the tokens from the k-th on.
        """
        cache, found, columns = _Concatenated(), [], torch.arange(cells.shape[1], device=cells.device)
        for level in range(levels):
            at = columns[level:]
            parts = [columns[None, :] <= at[:, None] - level]
            parts += [columns[None, earlier:] == at[:, None] - level + earlier for earlier in range(1, level + 1)]
            mask = torch.cat(parts, 1)[None, None]
            found.append(self(states, embeds[:, level:], cells[:, level:], mask, cache))
            states = found[-1][:, :-1]
        return found


class _Concatenated:
    """Keys and values of all levels so far, side by side."""

    def __init__(self):
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Append keys and values [R, H, M, w], and return all."""
        self.keys.append(keys)
        self.values.append(values)
        return torch.cat(self.keys, 2), torch.cat(self.values, 2)


# --- in one generation ---------------------------------------------------------------------------------------------------


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

    most: int | None = None

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
