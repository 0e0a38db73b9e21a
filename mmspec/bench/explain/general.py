"""Causes of low acceptance that are told by exclusion, where no specific one was found."""

from mmspec.bench.explain import probes
from mmspec.bench.explain.acceptance import SURE
from mmspec.bench.explain.cause import LEAST_GAIN, Cause, FindCause, cause_of_acceptance, percent
from mmspec.bench.explain.facts import GOOD, PairFacts
from mmspec.bench.explain.speed import break_even_rate

_SURE_RATE = 0.3  # acceptance where the target is sure, below which a drafter does not know its target
_FLAT, _SELDOM = 1.5, 0.5  # nats; acceptance


def _other_target(facts: PairFacts) -> Cause | None:
    """The drafter was trained for another target: it is wrong even where the target is sure."""
    acceptance = facts.acceptance
    if acceptance.chance is None or acceptance.rate >= GOOD:
        return None
    sure_fails = acceptance.sure * acceptance.judged >= 20 and acceptance.sure_rate < _SURE_RATE
    if not (sure_fails or facts.trained_for):
        return None
    evidence = [] if not facts.trained_for else [f"its files name {facts.trained_for} as its target"]
    evidence.append(
        f"where the target is sure (its best token has {SURE:g} or more) {percent(acceptance.sure_rate)} are accepted; "
        f"the most likely tokens agree at {percent(acceptance.agreement or 0.0)}, by chance they would at {percent(acceptance.chance)}"
    )
    if {probes.BELOW, probes.ABOVE} & set(facts.probes):
        evidence.append("reading hidden states one layer above or below does not help")
    text = "the drafter was trained for another target, or hardly at all: it does not know what this one writes"
    remedy = "use the drafter of exactly this target (base or instruct, same version), or train one on its own output"
    return cause_of_acceptance("another target", text, evidence, remedy, facts, None)


def _perhaps_quantised(facts: PairFacts) -> Cause | None:
    """The target's weights are quantised, and its full precision was not given to compare with."""
    if not facts.quantised or facts.acceptance.rate >= GOOD - 0.1 or probes.REFERENCE in facts.probes:
        return None
    text = f"the target is quantised ({facts.quantised}); drafters are trained for full precision unless they say otherwise"
    evidence = (f"{percent(facts.acceptance.rate)} of judged draft tokens are accepted",)
    remedy = "compare with --reference (the target in full precision); train the drafter on the quantised target's own output"
    return cause_of_acceptance("quantised target", text, evidence, remedy, facts, None)


def _flat(facts: PairFacts) -> Cause | None:
    """The target's distribution is flat: its next token is hard to predict for any drafter."""
    acceptance = facts.acceptance
    if acceptance.entropy < _FLAT or acceptance.sure >= 0.5 or acceptance.rate >= _SELDOM:
        return None
    if acceptance.sure * acceptance.judged >= 20 and acceptance.sure_rate < acceptance.rate + 0.1:
        return None
    text = "the target's distribution is flat: it is unsure what comes next, so no cheap drafter can know"
    evidence = (
        f"its entropy is {acceptance.entropy:.1f} nats, and its best token has {SURE:g} or more at {percent(acceptance.sure)} of positions",
        f"there {percent(acceptance.sure_rate)} are accepted, everywhere {percent(acceptance.rate)}",
    )
    remedy = "expect little on such text; trees (--tree comb) cover several likely tokens"
    return cause_of_acceptance("flat distribution", text, evidence, remedy, facts, None)


def _nothing_to_copy(facts: PairFacts) -> Cause | None:
    """A drafter that copies finds nothing to copy."""
    acceptance = facts.acceptance
    if facts.kind != "other" or acceptance.undrafted < 0.5 * acceptance.rounds:
        return None
    text = "the drafter rarely has anything to propose: the output copies little of the prompt or of earlier output"
    evidence = (f"{acceptance.undrafted} of {acceptance.rounds} rounds had no draft token",)
    remedy = "draft with a model or a trained drafter on such text; longer outputs leave more to copy"
    return cause_of_acceptance("nothing to copy", text, evidence, remedy, facts, None)


def _weak(facts: PairFacts) -> Cause | None:
    """The drafter is related to the target and still accepted too seldom to pay."""
    length = facts.drafting()[0]
    needed = break_even_rate(facts.costs, length)
    if facts.acceptance.rate >= GOOD or facts.drafting()[1] >= LEAST_GAIN or needed is None:
        return None
    text = "the drafter predicts the target too seldom"
    evidence = (
        f"{percent(facts.acceptance.rate)} of judged draft tokens are accepted; "
        f"{length} draft token{'s' if length > 1 else ''} a round pay from {percent(needed)} on",
    )
    remedy = "train or distil a drafter on this target's own output to prompts like these"
    cause = cause_of_acceptance("weak drafter", text, evidence, remedy, facts, None)
    return cause if cause.gain >= LEAST_GAIN else None


GENERAL: tuple[FindCause, ...] = (_perhaps_quantised, _nothing_to_copy, _other_target, _flat, _weak)
"""In this order: the first that applies is the cause."""
