"""Causes that cost seconds, whatever is accepted."""

from dataclasses import replace

from mmspec.bench.explain.cause import LEAST_GAIN, Cause, FindCause, milliseconds, percent
from mmspec.bench.explain.facts import PairFacts
from mmspec.bench.explain.speed import break_even_rate

_DEAR, _CHEAP = 0.2, 0.05  # a drafter's step relative to the target's: from where on it is dear, and where nothing is left to gain
_FULL = 3.0  # seconds of a forward over 8 columns relative to one over 1, from where on a machine has no compute to spare


def _too_dear(facts: PairFacts) -> Cause | None:
    """The drafter's steps take too long."""
    costs = facts.costs
    gain = facts.gain(costs=replace(costs, step=_CHEAP * costs.target(1)))
    if costs.share < _DEAR or gain < LEAST_GAIN:
        return None
    length = facts.drafting()[0]
    needed = break_even_rate(costs, length)
    pays = "no acceptance makes up for it" if needed is None else f"drafts of {length} pay from an acceptance of {percent(needed)} on"
    evidence = (
        f"a draft token takes {milliseconds(costs.step)}, {percent(costs.share)} of a step of the target ({milliseconds(costs.target(1))})",
        f"{pays}; measured: {percent(facts.acceptance.rate)}",
    )
    remedy = "use a smaller drafter, or one that reads the target's states (EAGLE, Medusa); store it in fewer bits; capture=True"
    return Cause("drafter too dear", "the drafter costs too much for what it saves", evidence, remedy, gain, measured=False)


def _slow_start(facts: PairFacts) -> Cause | None:
    """The drafter's own prompt costs more than short outputs earn."""
    costs = facts.costs
    gain = facts.gain(costs=replace(costs, draft_prefill=0.0))
    if gain < LEAST_GAIN:
        return None
    evidence = (
        f"the drafter takes {milliseconds(costs.draft_prefill)} before its first draft token, "
        f"as long as {costs.draft_prefill / costs.target(1):.0f} steps of the target, for outputs of {facts.tokens:.0f} tokens",
    )
    remedy = "draft only for longer outputs, or with a drafter that reads the target's states"
    return Cause("drafter's prompt", "the drafter's own prompt costs more than short outputs earn", evidence, remedy, gain, measured=False)


def _batch(facts: PairFacts) -> Cause | None:
    """The batch fills the machine: scoring several columns costs as much more as they are more."""
    if facts.alone is None or facts.costs.growth() < 1.3 * facts.alone.growth():
        return None
    gain = facts.best(costs=facts.alone)[1] / facts.best()[1]
    if gain < LEAST_GAIN:
        return None
    evidence = (
        f"8 columns cost {facts.costs.growth():.1f} times one at batch {facts.batch_size}, {facts.alone.growth():.1f} times at batch 1",
        f"expected speed {facts.best()[1]:.2f} times plain decoding, {facts.best(costs=facts.alone)[1]:.2f} times at batch 1",
    )
    remedy = "draft less (draft_length='auto' does) or not at all at this batch size"
    return Cause("batch too large", "the batch already fills the machine, so draft tokens are not scored for free", evidence, remedy, gain)


def _columns_too_dear(facts: PairFacts) -> Cause | None:
    """One row already fills the machine: the target takes nearly as long for a draft token as for a step of its own."""
    costs = facts.costs
    gain = facts.gain(costs=replace(costs, columns=dict.fromkeys(costs.columns, costs.target(1))))
    if facts.batch_size > 1 or costs.growth() < _FULL or facts.best()[0] > 0 or gain < LEAST_GAIN:
        return None
    seconds = ", ".join(f"{milliseconds(costs.target(size))} over {size}" for size in (1, 2, 4, 8))
    evidence = (f"a forward of the target takes {seconds} columns",)
    remedy = "use a machine with compute to spare (a GPU, more cores), a dtype that it computes faster, or a drafter of higher acceptance"
    text = "one row already fills the machine: the target takes nearly as long to check a draft token as to write one"
    return Cause("columns too dear", text, evidence, remedy, gain, measured=False)


def _length(facts: PairFacts) -> Cause | None:
    """The fixed draft length is too long or too short."""
    if facts.length is None or facts.length == 0 or facts.tree:
        return None
    (used, speed), (best, possible) = facts.used(), facts.drafting()
    if possible / speed < LEAST_GAIN:
        return None
    text = f"{used} draft tokens a round are too {'many' if used > best else 'few'}: {best} would be best"
    evidence = (f"expected speed {speed:.2f} times plain decoding with {used}, {possible:.2f} with {best}",)
    return Cause("draft length", text, evidence, f"use draft_length={best}, or 'auto'", possible / speed)


SECONDS: tuple[FindCause, ...] = (_too_dear, _slow_start, _batch, _columns_too_dear, _length)
"""All of them; each returns None where its cause does not apply."""
