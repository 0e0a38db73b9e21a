"""SWIFT (Xia et al. 2024): the parts to skip are searched while generating, scored on the text generated so far."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import rows_of
from mmspec.drafters.guided import ViewGuide
from mmspec.drafters.self_drafting.layer_skip import Part, Parts, SkipLayers, check_share, every_other, skips_of, sublayers
from mmspec.models.families.registry import family_of, positions_of
from mmspec.models.model_checks import check_prompt_ids
from mmspec.models.partial_forward import PartialForward, refuse_replay
from mmspec.models.target import HFSession, HFTarget
from mmspec.utils.names import wrong
from mmspec.utils.strict import strict

_MOST = 1 << 16  # tokens and candidates of a search


@dataclass(frozen=True)
class Swift:
    """SWIFT (Xia et al. 2024): skips attention and MLP parts of the target, and searches for better sets while generating.

    A candidate is run over the newest generated values in one forward, with one host synchronisation, and scored by the share of values it
    predicts; the best set so far drafts. Candidates are random, some of them guided by past scores. Every row of a batch searches for
    itself with the same random numbers, so it drafts as it would alone; time is saved where all rows skip a part. Nothing is kept between
    generations: `search_parts` finds sets to keep.

    Args:
        share: share of the parts that are skipped.
        every: rounds between candidates.
        window: values that a candidate is scored on. The first is scored once half of them have been generated.
        trials: largest number of candidates.
        guided: every so many candidates one follows past scores.
        enough: the search ends at this share of predicted values.
        seed: seed of the candidates.

    Raises:
        ValueError: for values out of range.
    """

    share: float = 0.45
    every: int = 4
    window: int = 32
    trials: int = 100
    guided: int = 5
    enough: float = 0.95
    seed: int = 0

    def __post_init__(self):
        check_share(self.share, self.window)
        if min(self.every, self.guided) < 1 or self.trials < 0:
            raise ValueError(f"every, guided and trials are {self.every}, {self.guided}, {self.trials}: at least 1, 1 and 0")

    def guide(self, session: HFSession) -> "SwiftGuide":
        """Return the guide of one generation on the target session `session`."""
        return SwiftGuide(self, session)


@dataclass
class LayerSearch:
    """The search of one row: the best set so far, and the scores of every part."""

    parts: Sequence[Part]
    share: float
    guided: int
    seed: int
    best: Parts = frozenset()
    score: float = -1.0
    tried: int = 0
    open: Parts | None = None  # the candidate not scored yet
    sums: dict[Part, float] = field(default_factory=dict)
    counts: dict[Part, int] = field(default_factory=dict)

    def __post_init__(self):
        self.best = every_other(self.parts, self.share)
        self.random = random.Random(self.seed)

    def candidate(self) -> Parts:
        """Return the set to try next, the same until it is scored; at first the initial one."""
        if self.open is None:
            self.open = self._next()
        return self.open

    def _next(self) -> Parts:
        if self.tried == 0:
            return self.best
        if (self.tried + 1) % self.guided:
            return frozenset(self.random.sample(list(self.parts), len(self.best)))
        drawn = {part: self._belief(part) for part in self.parts}
        return frozenset(sorted(self.parts, key=lambda part: -drawn[part])[: len(self.best)])

    def _belief(self, part: Part) -> float:
        """A draw from the posterior score of skipping `part`: its mean, with more spread for fewer observations."""
        count = self.counts.get(part, 0)
        mean = (self.sums.get(part, 0.0) + max(self.score, 0.0)) / (count + 1)
        return self.random.gauss(mean, 0.25 / (count + 1) ** 0.5)

    def learn(self, parts: Parts, score: float) -> None:
        """Record the `score` of the candidate `parts`."""
        self.tried, self.open = self.tried + 1, None
        for part in parts:
            self.sums[part] = self.sums.get(part, 0.0) + score
            self.counts[part] = self.counts.get(part, 0) + 1
        if score > self.score:
            self.best, self.score = parts, score


class SwiftGuide(ViewGuide):
    """Guide of SWIFT, with one search per row."""

    def __init__(self, plan: Swift, session: HFSession):
        refuse_replay(session)
        super().__init__(PartialForward(session))
        self.plan, self.session = plan, session
        parts, rows = sublayers(session.target.model), len(session.lengths)
        self.searches = [LayerSearch(parts, plan.share, plan.guided, plan.seed) for _ in range(rows)]
        self.trial = PartialForward(session)
        self.rounds = 0
        self.since: Any = None  # [B] slot of each prompt's last value: the first one to foretell is the one after it
        self._adopt()

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        if self.rounds == 0:
            self.since = self.session.lengths - 1
        self.rounds += 1
        if self.rounds % self.plan.every == 0 and any(map(self._searching, self.searches)):
            self._try(verdict.pending)

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.searches, self.since = [self.searches[row] for row in rows], rows_of(self.since, rows)
        self._adopt()

    def join_rows(self, other: "SwiftGuide") -> None:
        """Append the rows of another guide; see `core.rows.changes.ChangesRows`."""
        self.searches, self.since = [*self.searches, *other.searches], torch.cat([self.since, other.since])
        self._adopt()

    def _searching(self, search: LayerSearch) -> bool:
        return search.tried < self.plan.trials and search.score < self.plan.enough

    def _try(self, pending: Draft) -> None:
        going = [self._searching(search) for search in self.searches]
        sets = [search.candidate() if on else search.best for search, on in zip(self.searches, going, strict=True)]
        self.trial.skip(skips_of(sets, self.session))
        right, seen = foretold(self.trial, pending, self.plan.window, self.since)
        for search, on, parts, hits, count in zip(self.searches, going, sets, right, seen, strict=True):
            if on and 2 * count >= self.plan.window:  # a few values predicted by chance would end the search
                search.learn(parts, hits / count)
        self._adopt()

    def _adopt(self) -> None:
        self.view.skip(skips_of([search.best for search in self.searches], self.session))


def foretold(view: PartialForward, pending: Draft, window: int, since: Any = 0) -> tuple[list[int], list[int]]:
    """Return how many of a row's last `window` committed values `view` predicts, the pending token's included, and how many were checked.

    Values before slot `since` [B] are not checked. One host synchronisation.
    """
    replay = view.replay(window, since)
    truth = torch.cat([replay.ids[:, 1:], pending.nodes[:, -1:]], 1)
    real = replay.real & pending.valid[:, -1:]
    right = (replay.logits.argmax(-1) == truth) & real
    right, seen = torch.stack([right.sum(1), real.sum(1)]).tolist()
    return right, seen


@strict
@torch.no_grad()
def search_parts(
    target: Any, prompt: Any, new: int = 64, share: float = 0.45, trials: int = 100, guided: int = 5, seed: int = 0
) -> tuple[SkipLayers, float]:
    """Offline search of Draft & Verify (Zhang et al. 2023): the best fixed set for a target on text it generates itself.

    Args:
        target: a transformers model in eval mode, or the engine's target around one.
        prompt: what the model's tokenizer returned: `input_ids` [B, P] and, with padding, `attention_mask` [B, P].
        new: values generated greedily per row.
        share: share of the parts that are skipped.
        trials: number of candidates.
        guided: every so many candidates one follows past scores.
        seed: seed of the candidates.

    Returns:
        The drafter, and its score: the share of values it predicts, over all rows.

    Raises:
        ValueError: for a model that cannot run, prompts that are no ids, and numbers out of range.
    """
    for name, value in (("new", new), ("trials", trials), ("guided", guided)):
        if not 1 <= value <= _MOST:
            raise wrong(name, value, f"give 1 to {_MOST}")
    check_share(share, new)
    if not isinstance(target, HFTarget):
        target = HFTarget(target, family_of(target), limit=positions_of(target))
    check_prompt_ids("prompt", prompt, target.model.config.get_text_config(decoder=True).vocab_size)
    if target.limit is not None and prompt["input_ids"].shape[1] + new > target.limit:
        raise wrong("new", new, f"the prompt and these exceed the model's {target.limit} positions, so give fewer")
    session, pending = target.begin(prompt)
    since = None
    for _ in range(new):
        scored = session.score(pending)
        session.commit(torch.zeros_like(pending.nodes), 1)
        since = session.lengths - 1 if since is None else since
        pending = Draft.root(scored.p.mode()[:, -1], pending.start + 1)
    search, view = LayerSearch(sublayers(target.model), share, guided, seed), PartialForward(session)
    for _ in range(trials):
        parts = search.candidate()
        view.skip(skips_of([parts], session))
        right, seen = foretold(view, pending, new, since)
        search.learn(parts, sum(right) / max(sum(seen), 1))
    return SkipLayers.of(search.best), search.score
