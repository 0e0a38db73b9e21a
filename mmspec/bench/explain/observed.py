"""A drafter under observation: its distributions are recorded and its work is timed; what it drafts is unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Any

import torch

from mmspec.bench.compare.peers import synchronize
from mmspec.bench.explain.acceptance import DraftAcceptance, RoundTally
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Keys, Noise
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, Draw
from mmspec.loading.text import Pair
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.run.drafters import drafter_of
from mmspec.run.rules import distributions_for, rule_of
from mmspec.run.settings.generation_config import settings


class RecordedDraw:
    """How a chain draws its tokens, with a record of the distributions they were drawn from.

    Args:
        draw: the draw itself.
    """

    def __init__(self, draw: Draw):
        self.draw = draw
        self.found: list[Any] = []

    def __call__(self, distribution: Any, keys: Keys) -> Any:
        """Draw as `draw` does."""
        self.found.append(distribution)
        return self.draw(distribution, keys)


@dataclass
class DrafterTimes:
    """Seconds of a drafter's rounds, generation by generation: each a list of (draft tokens, seconds)."""

    generations: list[list[tuple[int, float]]] = field(default_factory=list)

    @property
    def steps(self) -> list[float]:
        """Seconds a draft token of every round in turn; the rounds that ran a prompt are left out, if there are others."""
        later = [seconds / count for rounds in self.generations for count, seconds in _later(rounds) if count]
        return later or [seconds / count for rounds in self.generations for count, seconds in rounds if count]

    @property
    def step(self) -> float:
        """Median of `steps`."""
        return median(self.steps or [0.0])

    @property
    def prefill(self) -> float:
        """Median seconds of a generation's first draft beyond those of its draft tokens."""
        found = []
        for rounds in self.generations:
            first = next((place for place, (count, _) in enumerate(rounds) if count), None)
            if first is not None:
                found.append(sum(seconds for _, seconds in rounds[: first + 1]) - rounds[first][0] * self.step)
        return max(0.0, median(found)) if found else 0.0


def _later(rounds: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    """The rounds behind the first with a draft token."""
    first = next((place for place, (count, _) in enumerate(rounds) if count), len(rounds))
    return rounds[first + 1 :]


@dataclass(frozen=True)
class ObservedDrafter:
    """A drafter whose rounds are counted and timed.

    Args:
        drafter: the drafter; a chain's draw is a `RecordedDraw` where its distributions are to be recorded.
        shape: the shape of its drafts as it is without a record, None if it has none.
        draw: the record of its distributions, None if it has none.
        tally: where rounds are counted.
        times: where seconds are kept.
    """

    drafter: Any
    shape: Any
    draw: RecordedDraw | None
    tally: RoundTally
    times: DrafterTimes

    def begin(self, prompt: Any, session: Any) -> "ObservedSession":
        """Open the drafting session of one generation.

        Args:
            prompt: the request's prompt.
            session: the target's session.

        Returns:
            The session, observed.
        """
        self.times.generations.append([])
        start = perf_counter()
        inner = self.drafter.begin(prompt, session)
        return ObservedSession(self, inner, perf_counter() - start)


class ObservedSession:
    """The drafting session of one generation, observed.

    Args:
        plan: the drafter it belongs to.
        inner: the session itself.
        seconds: spent on opening it.
    """

    def __init__(self, plan: ObservedDrafter, inner: Any, seconds: float):
        self.plan, self.inner, self.seconds = plan, inner, seconds
        self.drafted = 0

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        device = pending.nodes.device
        if self.plan.draw is not None:
            self.plan.draw.found.clear()
        synchronize(device)
        start = perf_counter()
        draft = self.inner.propose(pending, budget, noise)
        synchronize(device)
        self.seconds += perf_counter() - start
        self.drafted = draft.height if draft.size > draft.roots else 0
        return draft

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        found = [] if self.plan.draw is None else self.plan.draw.found
        q = Categorical(torch.cat([each.scores for each in found], 1)) if found and draft.size > draft.roots else None
        self.plan.tally.add(draft, scored, committed, q)
        start = perf_counter()
        self.inner.observe(draft, scored, verdict, committed)
        synchronize(draft.nodes.device)
        self.plan.times.generations[-1].append((self.drafted, self.seconds + perf_counter() - start))
        self.seconds = 0.0


def observe(pair: Pair, batches: Sequence[dict[str, Any]], length: int) -> tuple[DraftAcceptance, DrafterTimes]:
    """Generate with the pair's settings and chains of `length` draft tokens, and observe the drafter.

    Args:
        pair: target, drafter and rule.
        batches: inputs as `Pair.inputs` returns them.
        length: draft tokens a round.

    Returns:
        Acceptance, and the drafter's seconds.
    """
    tally, times = RoundTally(greedy=pair.config.run.temperature == 0), DrafterTimes()
    seed = pair.config.run.seed
    for inputs in batches:
        drafter = _observed(pair, inputs, tally, times)
        out = pair.generate(inputs, drafter=drafter, draft_length=length, tree=None, seed=seed)
        seed += len(out.lengths)
    return tally.acceptance(), times


def _observed(pair: Pair, inputs: dict[str, Any], tally: RoundTally, times: DrafterTimes) -> ObservedDrafter:
    """The drafter that `generate` would run for `inputs`, observed; trees are replaced by chains."""
    run, target = pair.config.run, target_of(pair, inputs)
    rule = rule_of(pair.accept, run.temperature, run.top_k, run.top_p)
    drafter = drafter_of(pair.drafter, target, rule, None, pair.view)
    shape = getattr(drafter, "shape", None)
    if not isinstance(drafter, (ModelDrafter, GuidedDrafter)) or not isinstance(shape, Chain):
        return ObservedDrafter(drafter, shape, None, tally, times)
    draw = RecordedDraw(shape.draw)
    return ObservedDrafter(replace(drafter, shape=replace(shape, draw=draw)), shape, draw, tally, times)


def target_of(pair: Pair, inputs: dict[str, Any]) -> HFTarget:
    """Return the target with the processors of a request of the pair.

    Args:
        pair: target and settings.
        inputs: the request's inputs, as `Pair.inputs` returns them.

    Returns:
        The target.
    """
    run, model = pair.config.run, pair.target
    family = family_of(model)
    rule = rule_of(pair.accept, run.temperature, run.top_k, run.top_p)
    own = settings(model, family, inputs, family.prompt(model, inputs), run.max_new_tokens, run.repetition_penalty)
    return HFTarget(model, family, distributions_for(rule, run.temperature, run.top_k, run.top_p, None, own))
