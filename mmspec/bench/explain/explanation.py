"""Explains a pair: measures it on some prompts, runs the probes, and ranks the causes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mmspec.bench.compare.peers import run_mmspec
from mmspec.bench.compare.run import Spread
from mmspec.bench.explain.cause import Cause, percent
from mmspec.bench.explain.causes import causes_of
from mmspec.bench.explain.costs import PairCosts, measure_pair_costs
from mmspec.bench.explain.facts import PairFacts, TokenizerMatch
from mmspec.bench.explain.observed import observe
from mmspec.bench.explain.probes import Run, batches_of, drafter_limit, foreign_markers, longest_request, probes_of
from mmspec.bench.explain.speed import break_even_rate
from mmspec.bench.explain.target_names import quantisation_of, trained_for
from mmspec.loading.text import Pair
from mmspec.run.rules import rule_of

LENGTH = 8
"""Draft tokens a round at which acceptance is measured, if no larger number is requested."""


@dataclass(frozen=True)
class ExplainPlan:
    """What to explain, and how.

    Attributes:
        prompts: as `Pair.inputs` takes them.
        batch_size: rows that run together.
        reference: the target in full precision, where the target's weights are quantised.
        drafter_tokenizer: the tokenizer of a drafter model, where its ids are not translated.
        costs: seconds to use instead of measuring any; then no generation is timed.
        alone: with `costs`, seconds at batch size 1.
        repeats: timed runs of every batch.
        done: called with the name of every stage that ends.
    """

    prompts: Sequence[Any]
    batch_size: int = 1
    reference: Any = None
    drafter_tokenizer: Any = None
    costs: PairCosts | None = None
    alone: PairCosts | None = None
    repeats: int = 3
    done: Callable[[str], Any] = lambda stage: None


@dataclass(frozen=True)
class Explanation:
    """Why a drafter is as fast as it is.

    Attributes:
        model: the target's name.
        drafter: the drafter's name.
        facts: what was measured.
        causes: the causes found, the one that costs most first.
        speed: measured speed relative to plain decoding, over batches and repeats; None if nothing was timed.
    """

    model: str
    drafter: str
    facts: PairFacts
    causes: tuple[Cause, ...]
    speed: Spread | None = None

    @property
    def healthy(self) -> bool:
        """True if no cause was found and drafting is expected to be faster than plain decoding."""
        return not self.causes and self.facts.best()[0] > 0

    @property
    def break_even(self) -> float | None:
        """Acceptance from which on drafts of the best length pay; None if no acceptance is enough."""
        return break_even_rate(self.facts.costs, self.facts.drafting()[0])

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        if self.causes:
            return f"likely cause: {self.causes[0].text}"
        length, speed = self.facts.best()
        if length == 0:
            return f"drafting does not pay here: {self._short_of_break_even()}, and none of the known causes was found"
        return f"healthy: {speed:.2f} times plain decoding is expected with {length} draft tokens a round, and no cause of loss was found"

    def _short_of_break_even(self) -> str:
        needed = self.break_even
        pays = "no share would pay" if needed is None else f"drafts pay from {percent(needed)} on"
        return f"{percent(self.facts.acceptance.rate)} of judged draft tokens are accepted, {pays}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        facts = self.facts
        plain = {name: value for name, value in vars(facts).items() if name not in ("acceptance", "costs", "alone", "probes", "tokenizers")}
        (used, speed), (best, possible) = facts.used(), facts.best()
        return {
            "model": self.model,
            "drafter": self.drafter,
            "healthy": self.healthy,
            "verdict": self.verdict,
            "causes": [cause.to_dict() for cause in self.causes],
            "acceptance": facts.acceptance.to_dict(),
            "probes": {name: found.to_dict() for name, found in facts.probes.items()},
            "costs": facts.costs.to_dict(),
            "costs_alone": None if facts.alone is None else facts.alone.to_dict(),
            "tokenizers": None if facts.tokenizers is None else asdict(facts.tokenizers),
            "break_even": self.break_even,
            "expected": {"length": used, "speed": speed, "best_length": best, "best_speed": possible},
            "measured_speed": None if self.speed is None else asdict(self.speed),
            **plain,
        }


def stage_count(pair: Pair, plan: ExplainPlan) -> int:
    """Return how often `ExplainPlan.done` will be called."""
    timed = 0 if plan.costs is not None else 3 if plan.batch_size > 1 else 2
    return 1 + timed + len(_probes(pair, plan, batches_of(pair, plan.prompts, plan.batch_size)))


def explain_pair(pair: Pair, plan: ExplainPlan) -> Explanation:
    """Measure a pair and find out why it is as fast as it is.

    Args:
        pair: target, drafter, rule and settings, from `mmspec.loading.text.load_pair` or `mmspec.bench.explain.pairs.pair_for`.
        plan: prompts and what else is known.

    Returns:
        The explanation.

    Raises:
        ValueError: for a pair without a drafter, without prompts, and for requests that cannot run.
    """
    if pair.drafter is None:
        raise ValueError("there is no drafter to explain: name one")
    if not plan.prompts:
        raise ValueError("there are no prompts: give at least one")
    batches = batches_of(pair, plan.prompts, plan.batch_size)
    asked = pair.config.drafter.length
    length = max(LENGTH, asked) if isinstance(asked, int) else LENGTH
    acceptance, times = observe(pair, batches, length)
    plan.done("acceptance")
    found = {}
    for name, (changed, given) in _probes(pair, plan, batches).items():
        found[name] = observe(changed, given, length)[0]
        plan.done(name)
    costs, alone, speed = plan.costs, plan.alone, None
    if costs is None:
        costs = measure_pair_costs(pair, batches[0], times)
        plan.done("seconds")
        if plan.batch_size > 1:
            alone = _alone(pair, plan, length)
            plan.done("seconds at batch 1")
        speed = measured_speed(pair, batches, plan.repeats)
        plan.done("speed")
    facts = PairFacts(
        acceptance=acceptance,
        costs=costs,
        tokens=acceptance.tokens / len(plan.prompts),
        batch_size=plan.batch_size,
        alone=alone,
        length=asked if isinstance(asked, int) else None,
        most=getattr(pair.drafter, "most", None),
        tree=pair.config.drafter.tree is not None,
        temperature=pair.config.run.temperature,
        rule=type(rule_of(pair.accept, pair.config.run.temperature)).__name__,
        kind=_kind(pair),
        reads=tuple(getattr(pair.drafter, "reads", ())),
        probes=found,
        tokenizers=_tokenizers(pair, plan),
        markers=foreign_markers(pair, plan.prompts),
        limit=drafter_limit(pair),
        longest=longest_request(pair, batches),
        quantised=quantisation_of(pair),
        trained_for=trained_for(pair),
    )
    return Explanation(pair.name, pair.drafter_name, facts, tuple(causes_of(facts)), speed)


def _probes(pair: Pair, plan: ExplainPlan, batches: Sequence[dict[str, Any]]) -> Mapping[str, Run]:
    return probes_of(pair, plan.prompts, plan.batch_size, batches, plan.reference, plan.drafter_tokenizer)


def _alone(pair: Pair, plan: ExplainPlan, length: int) -> PairCosts:
    """Seconds at batch size 1, of the target and of the drafter."""
    single = batches_of(pair, plan.prompts[:1], 1)
    return measure_pair_costs(pair, single[0], observe(pair, single, length)[1])


def _kind(pair: Pair) -> str:
    if hasattr(pair.drafter, "guide"):
        return "states"
    return "model" if pair.model is not None else "other"


def _tokenizers(pair: Pair, plan: ExplainPlan) -> TokenizerMatch | None:
    theirs = plan.drafter_tokenizer if pair.own_tokenizer is None else pair.own_tokenizer
    if theirs is None or pair.tokenizer is None:
        return None
    return TokenizerMatch.of(pair.tokenizer, getattr(theirs, "tokenizer", theirs), translated=pair.own_tokenizer is not None)


def measured_speed(pair: Pair, batches: Sequence[dict[str, Any]], repeats: int) -> Spread | None:
    """Time plain decoding and the pair's own settings in turns.

    Args:
        pair: target, drafter and settings.
        batches: inputs as `Pair.inputs` returns them.
        repeats: runs of every batch.

    Returns:
        Tokens a second relative to plain decoding by the same engine, paired by batch and repeat.
    """
    ratios, plain = [], {"drafter": None, "tree": None, "accept": "exact"}
    for repeat in range(repeats + 1):  # the first turn is not counted: caches are cold
        seed = pair.config.run.seed
        for inputs in batches[:1] if repeat == 0 else batches:
            runs = [run_mmspec(pair, inputs, seed, **changes) for changes in ((plain, {}) if repeat % 2 else ({}, plain))]
            one, other = runs if repeat % 2 else runs[::-1]
            seed += len(one.tokens)
            if repeat and one.count and other.count:
                ratios.append((other.count / other.seconds) / (one.count / one.seconds))
    return Spread.of(ratios)
