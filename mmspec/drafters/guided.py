"""Drafters that read the target's states: heads, feature drafters and partial forwards of the target, behind one interface.

A `Guide` returns distributions for a growing draft, computed from the target's session. A shape grows the draft, and a `GuidedSession`
attaches it to the pending token. Guides draft from the second round on, because the first round runs the prompt and no states exist before
it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.records import CONTEXT, PAD, Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rows.changes import join_tensors, refuse_fixed_rows, rows_of
from mmspec.drafters.shapes import Chain, Shape, for_source
from mmspec.models.family import OwnValues
from mmspec.models.partial_forward import PartialForward
from mmspec.models.target import HFSession
from mmspec.utils.renamed import old_names


class Guide(Protocol):
    """Source of distributions for one generation. `most` is the largest number of draft tokens on a path, None for no bound."""

    most: int | None

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots a draft grows from: committed values that have not been run, then the pending token. None in the first round."""
        ...

    def score(self, draft: Draft) -> Scored:
        """Return distributions after the columns not scored before, from the last root on. A shape scores one level of the draft a call."""
        ...

    def close(self) -> None:
        """End the draft: commit its roots and forget its draft tokens."""
        ...

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the target's scores of the finished draft and the accept rule's verdict."""
        ...


@runtime_checkable
class Sharing(Protocol):
    """Protocol of guides that hand their partial forward of a draft to the target."""

    def share(self, draft: Draft, origin: Tensor) -> None:
        """Hand over the partial forward of `draft`. Called before `close`.

        Args:
            draft: the draft that the target will score.
            origin: [B, G] column that each draft token had when it was scored here, counted from the pending token; past the end if it was
                not scored.
        """
        ...


class DraftSource(Protocol):
    """Weights or settings from which a guide is made for each generation."""

    def guide(self, session: HFSession) -> Guide:
        """Return the guide of one generation on the target session `session`."""
        ...


@dataclass(frozen=True)
class GuidedDrafter:
    """Drafts in the given shape with the distributions of a trained net or of a partial forward of the target.

    Args:
        source: a net of `mmspec.drafters.heads` or `mmspec.drafters.features`, or a self-drafting source such as `EarlyExit`.
        shape: form of a draft: `Chain`, `Comb`, `StaticTree`, `ExpandRerank` or `BestFirst`.
    """

    source: DraftSource
    shape: Shape = field(default_factory=Chain)

    def begin(self, prompt: Any, session: Any) -> "GuidedSession":
        """Open the drafting session of one generation.

        Args:
            prompt: the target's prompt; not read.
            session: the target's `HFSession`.
        """
        return GuidedSession(self.source.guide(session), self.shape)


class GuidedSession:
    """Drafting session of one generation: grows drafts with a guide."""

    def __init__(self, guide: Guide, shape: Shape):
        self.guide, self.shape = guide, shape

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        own = None if budget.length == 0 else self.guide.root(pending)
        if own is None:
            return pending
        shape, budget = for_source(self.shape, budget, getattr(self.guide, "mixes_depths", False), self.guide.most)
        grown, origin = shape.grow(self.guide.score, own, budget, noise)
        bare = on_pending(grown)
        draft = pending.extend(bare.draft_tokens, bare.parents[:, 1:], bare.q, linear=bare.linear, width=bare.width, levels=bare.levels)
        if isinstance(self.guide, Sharing) and not getattr(self.shape, "replaces", False):
            self.guide.share(draft, origin - (own.roots - 1))
        self.guide.close()
        return draft

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        self.guide.observe(draft, scored, verdict)

    @property
    def joinable(self) -> bool:
        """True once the guide's rows can change; see `core.rows.changes.ChangesRows`."""
        refuse_fixed_rows(self.guide, "the drafter")
        return self.guide.joinable  # type: ignore[attr-defined]

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.guide.take_rows(rows)  # type: ignore[attr-defined]

    def join_rows(self, other: "GuidedSession") -> None:
        """Append the rows of another session; see `core.rows.changes.ChangesRows`."""
        self.guide.join_rows(other.guide)  # type: ignore[attr-defined]


class ViewGuide:
    """Guide that runs the target itself through a partial forward on its session's cache. The first round is not drafted."""

    most = None
    mixes_depths = True

    def __init__(self, view: PartialForward):
        self.view = view

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        return pending if self.view.ready else None

    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        return self.view.score(draft)

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        self.view.close()

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        pass

    @property
    def joinable(self) -> bool:
        """True once the target has run the prompt; see `core.rows.changes.ChangesRows`. The target's session holds all state by row."""
        return self.view.ready

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.view.change_rows()

    def join_rows(self, other: Any) -> None:
        """Append the rows of another guide; see `core.rows.changes.ChangesRows`."""
        self.view.change_rows()


def on_pending(draft: Draft) -> Draft:
    """Return `draft` with the pending token as its only root."""
    lag = draft.roots - 1
    if lag == 0:
        return draft
    parents = draft.parents[:, lag:]
    parents = torch.where(parents >= lag, parents - lag, torch.where(parents == PAD, PAD, CONTEXT))
    return replace(draft, nodes=draft.nodes[:, lag:], parents=parents, roots=1)


@dataclass(frozen=True, slots=True)
class Fresh:
    """Newly committed values, each with the target's hidden states at the value before it."""

    values: Tensor  # [B, M, *value]
    features: Tensor  # [B, M, F]
    real: Tensor  # [B, M] bool

    @staticmethod
    def of(draft: Draft, scored: Scored, verdict: Verdict) -> "Fresh":
        """Return the values a round committed, aligned with the hidden states of the kept nodes before them."""
        assert scored.hidden is not None, "the session returns no hidden states: call its watch() first"
        columns = draft.roots + draft.height  # one root, or a draft that is nothing but roots
        keep = verdict.keep[:, :columns]
        return Fresh(verdict.values[:, :columns], pick(scored.hidden, keep), keep >= 0)

    def behind(self, earlier: "Fresh | None") -> "Fresh":
        """Return these values appended to `earlier` ones."""
        if earlier is None:
            return self
        pairs = ((earlier.values, self.values), (earlier.features, self.features), (earlier.real, self.real))
        return Fresh(*(torch.cat(pair, 1) for pair in pairs))

    def packed(self) -> "Fresh":
        """Return the columns sorted so that real ones come last: the last column is the newest value of every row."""
        order = torch.argsort(self.real.long(), dim=1, stable=True)
        rows = torch.arange(len(order), device=order.device)[:, None]
        return Fresh(self.values[rows, order], pick(self.features, order), self.real.gather(1, order))

    def take_rows(self, rows: Sequence[int]) -> "Fresh":
        """Return some rows."""
        return Fresh(*(rows_of(part, rows) for part in (self.values, self.features, self.real)))

    def join_rows(self, other: "Fresh") -> "Fresh":
        """Return these rows followed by the `other` ones; columns that one side lacks are not real."""
        pairs = ((self.values, other.values), (self.features, other.features), (self.real, other.real))
        return Fresh(*(join_tensors(*pair) for pair in pairs))

    def rooted(self, pending: Draft) -> Draft:
        """Return the packed values as the roots of a draft; its last root is the pending token."""
        columns = torch.arange(self.values.shape[1], device=self.values.device)
        before = torch.where(columns > 0, columns - 1, CONTEXT)
        first = self.real & ~torch.cat([torch.zeros_like(self.real[:, :1]), self.real[:, :-1]], 1)
        parents = torch.where(self.real, torch.where(first, CONTEXT, before), PAD)
        return Draft(self.values, parents, pending.start, roots=self.values.shape[1])


def prompt_pairs(draft: Draft, scored: Scored) -> tuple[Tensor, Tensor, Tensor]:
    """Return the prompt's values after the first [B, P], their number per row [B], and the hidden states before them [B, P, F]."""
    context = scored.context
    assert context is not None, "this round did not run the prompt"
    after = torch.cat([context.ids[:, 1:], draft.nodes[:, :1]], 1)[:, : context.ids.shape[1]]
    last = torch.arange(context.ids.shape[1], device=after.device) == (context.lengths - 1)[:, None]
    return torch.where(last, draft.nodes[:, :1], after), context.lengths, context.hidden


def pick(states: Tensor, columns: Tensor) -> Tensor:
    """Return `states` [B, N, F] at `columns` [B, M] as [B, M, F]. Columns of -1 give arbitrary states."""
    index = columns.clamp_min(0)[..., None]
    return states.gather(1, index.expand(*columns.shape, states.shape[-1]))


def head_of(model: Any) -> Any:
    """Return the map of `model` from last hidden states to logits, including its scale and soft cap."""
    return _as_logits(model, model.get_output_embeddings())


def head_rows(model: Any, ids: Tensor) -> Any:
    """Return the map of `model` from last hidden states [..., H] to the logits [..., R] of `ids` [R] alone, as `head_of` gives them."""
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear or head.weight.is_meta:  # of another form, or brought in by a hook
        return lambda hidden: head_of(model)(hidden)[..., ids]
    weight, bias = head.weight[ids], None if head.bias is None else head.bias[ids]
    return _as_logits(model, partial(torch.nn.functional.linear, weight=weight, bias=bias))


def _as_logits(model: Any, head: Any) -> Any:
    """`head` with the scale (Cohere, Granite, Falcon-H1) and the soft cap (Gemma 2, RecurrentGemma) that `model` gives its logits."""
    config = model.config.get_text_config(decoder=True)
    factor = 1.0 / (getattr(config, "logits_scaling", None) or 1.0)
    for name in ("logit_scale", "lm_head_multiplier"):
        factor *= getattr(config, name, None) or 1.0
    cap = getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None)
    scaled = head if factor == 1 else lambda hidden: factor * head(hidden)
    return scaled if cap is None else lambda hidden: cap * torch.tanh(scaled(hidden) / cap)


def words_of(session: HFSession) -> tuple[Any, Any, int]:
    """Return the input embedding of a session's target, its map from last hidden states to logits, and its vocabulary size."""
    family, model = session.target.family, session.target.model
    if isinstance(family, OwnValues):
        return partial(family.embedded, state=session.state), family.logits, family.values
    return model.get_input_embeddings(), head_of(model), model.config.get_text_config(decoder=True).vocab_size


def check_width(net: str, wanted: int, model: Any) -> None:
    """Raise ValueError unless the hidden states of `model` are `wanted` wide."""
    width = model.config.get_text_config(decoder=True).hidden_size
    if width != wanted:
        raise ValueError(
            f"this {net} drafter reads hidden states {wanted} wide, but the target's are {width}: use one trained for this target"
        )


_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")


def llama_sizes(config: Any) -> dict[str, Any]:
    """Return the sizes in transformers' `config` as options of a LlamaConfig, with heads of 64 for a target without attention."""
    width = config.hidden_size
    usual = {"intermediate_size": 4 * width, "num_attention_heads": width // math.gcd(width, 64)}
    return usual | {name: getattr(config, name) for name in _SIZES if getattr(config, name, None) is not None}


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)  # names of 0.1
