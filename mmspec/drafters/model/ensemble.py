"""In-batch ensembles of views (IbED, Lee et al. 2025; TABED, Lee et al. 2026): one drafter reads several views of each request in one
forward.

Every view has its own rows in one session. A draft token is drawn from q, the weighted sum of the views' distributions, after the
processors. The weights are fixed, or adapted per request to what the target has verified.

V views, B rows, M columns, X values.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.processors.history import History
from mmspec.core.processors.truncation import distribution_of
from mmspec.core.records import Draft, Scored
from mmspec.drafters.model.mixing import Adaptive, Weights
from mmspec.drafters.views.base import View
from mmspec.models.family import StateCommit
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy, refresh
from mmspec.models.rows.merged import Merged, stacked
from mmspec.models.skipped_parts import Change, rewired
from mmspec.models.target import HFSession, HFTarget


@dataclass(frozen=True)
class Views:
    """Several views of a request for one drafter, mixed by `weights`.

    Args:
        views: views of the prompt; see `mmspec.drafters.views`.
        weights: `Static`, `ConfidenceWeights`, `Adaptive` (TABED) or `InverseKL`.

    Raises:
        ValueError: if `views` is empty.
    """

    views: tuple[View, ...]
    weights: Weights = field(default_factory=Adaptive)

    def __post_init__(self):
        if not self.views:
            raise ValueError("an ensemble needs at least one view: name some, such as ('own', 'drop')")

    @property
    def late(self) -> bool:
        """True if one of the views needs the target to have run the prompt."""
        return any(getattr(view, "late", False) for view in self.views)

    def __call__(self, prompt: Any, session: Any) -> tuple[Any, ...]:
        """Return what each of the views reads of `prompt`."""
        return tuple(view(prompt, session) for view in self.views)


@dataclass(frozen=True)
class ViewEnsemble:
    """Target whose distributions are mixtures: `target` run on several prompts for each row at once (IbED, TABED).

    Args:
        target: the drafter's model.
        weights: `Static`, `ConfidenceWeights`, `Adaptive` (TABED) or `InverseKL`.
    """

    target: HFTarget
    weights: Weights = field(default_factory=Adaptive)

    def capture(self, reserve: int) -> "ViewEnsemble":
        """Return this object with its forwards captured; see `HFTarget.capture`."""
        return replace(self, target=self.target.capture(reserve))

    def begin(self, prompt: Sequence[Mapping[str, Any]]) -> tuple["EnsembleSession", Draft]:
        """Open a session on V prompts of B rows each. Each picture is encoded once, whatever the number of views."""
        refresh(self.target.model)
        with rewired(_remembered(own_copy(self.target.model))):
            opened = [self.target.opened(own) for own in prompt]
        (_, caches, states, contexts, lengths, _, rooms), (pending, *_) = (
            zip(*(parts for parts, _ in opened), strict=True),
            [first for _, first in opened],
        )
        cache = max(caches, key=lambda cache: cache.capacity)
        longest = max(context.shape[1] for context in contexts)
        context = torch.cat([nn.functional.pad(ids, (0, longest - ids.shape[1])) for ids in contexts])
        state = stack_views(states)
        session = EnsembleSession(self.target, cache, state, context, torch.cat(lengths), len(prompt), self.weights)
        session.room = None if None in rooms else [min(views) for views in zip(*rooms, strict=True)]
        return session, pending


class EnsembleSession(HFSession):
    """Session of V * B rows that returns B distributions. Row v * B + b is row b in view v."""

    join_rows = None  # type: ignore[assignment]  # keeps states of the whole batch

    def __init__(
        self, target: HFTarget, cache: Any, state: Any, context: Tensor, lengths: Tensor, views: int = 1, weights: Weights | None = None
    ):
        super().__init__(target, cache, state, context, lengths)
        self.views = views
        self.weighing = (weights or Adaptive()).begin(len(lengths) // views, views, lengths.device)
        self.said: Tensor | None = None  # [V, B, N, X] what each view says after the columns of the draft under way

    def watch(self, states: Sequence[int]) -> None:
        """Hand out hidden states `states` with every score; see `HFSession.watch`."""
        if states:
            raise ValueError("an ensemble of views has no hidden states: use no learned stop, or draft with one view")

    def score(self, draft: Draft) -> Scored:
        """One forward of all views' rows; the distributions [B, M] are the mixtures."""
        v = self.views
        tiled = replace(draft, nodes=draft.nodes.repeat(v, 1), parents=draft.parents.repeat(v, 1), start=draft.start.repeat(v), q=None)
        return Scored(super().score(replace(tiled, drift=None, score=None, aux=None)).p)

    def distributions(self, logits: Tensor, draft: Draft, layout: Layout, first: int, deferred: bool = False) -> Any:
        """Return the mixtures of the views' distributions, after the processors."""
        self.ids[self._rows, layout.slots] = layout.ids
        said = logits.softmax(-1).unflatten(0, (self.views, -1))
        if self.weighing.learns:
            self.said = said if first == 0 or self.said is None else torch.cat([self.said, said], 2)
        mixed = Categorical.of((self.weighing.of(said)[..., None] * said).sum(0))
        if self.target.processors.idle:
            return mixed
        rows = said.shape[1]  # of the first view: what has been generated is the same in all
        paths = layout.paths(draft.size - first)[:rows]
        history = History(self.ids[:rows, : layout.view], paths, draft.position()[:rows, first:])
        return distribution_of(self.target.processors, mixed.scores, history, deferred)

    def learn(self, p: Categorical, columns: Tensor, real: Tensor) -> None:
        """Update the weights with target distributions `p` [B, K] after the session's `columns` [B, K], where `real` [B, K]."""
        said = self.said
        if said is None:
            return
        index = columns.clamp(0, said.shape[2] - 1)[None, ..., None].expand(len(said), *columns.shape, said.shape[-1])
        self.weighing.learn(p.probs(), said.gather(2, index), real)

    def commit(self, keep: Tensor, most: int) -> None:
        """Commit the kept columns; see `TargetSession.commit`."""
        super().commit(keep.repeat(self.views, 1), most)


# --- what the views' prompts are made of, stacked ---------------------------------------------------------------------


def stack_views(states: Sequence[Any]) -> Any:
    """Concatenate the encoded prompts of all views to one batch. ValueError for models whose pictures are not part of the prompt.

    Args:
        states: one encoded prompt per view.
    """
    if all(state is None for state in states):
        return None
    if not all(isinstance(state, Merged) for state in states) or any(isinstance(state, StateCommit) for state in states):
        raise ValueError(
            "several views at once need a drafter whose pictures stand within its prompt (Mllama's do not) and that keeps no recurrent "
            "states: give one view"
        )
    return stacked(states)


# --- towers run once --------------------------------------------------------------------------------------------------


def _remembered(model: Any) -> dict[nn.Module, Change]:
    """Patches that cache the outputs of the vision towers and projectors of `model`, which are the same for all views."""
    base = getattr(model, "model", None)
    if not isinstance(base, nn.Module) or base is model.get_decoder():
        return {}
    own = (model.get_decoder(), model.get_input_embeddings())
    return {module: _remembering for module in base.children() if module not in own}


def _remembering(real: Callable) -> Callable:
    asked: list[tuple[tuple, dict[str, Any], Any]] = []

    def forward(*args: Any, **kwargs: Any) -> Any:
        for before, named, made in asked:
            if _same(before, args) and _same(named, kwargs):
                return copy.copy(made)  # models write into the tensors their towers return
        asked.append((args, kwargs, real(*args, **kwargs)))
        return copy.copy(asked[-1][2])

    return forward


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a is b or (a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or (type(a) is type(b) and isinstance(a, (bool, int, float, str)) and a == b)
