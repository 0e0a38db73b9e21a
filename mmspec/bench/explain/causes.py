"""The causes that explain a pair's speed, the one that costs most first."""

from mmspec.bench.explain.cause import Cause
from mmspec.bench.explain.facts import PairFacts
from mmspec.bench.explain.general import GENERAL
from mmspec.bench.explain.seconds import SECONDS
from mmspec.bench.explain.specific import SPECIFIC


def causes_of(facts: PairFacts) -> list[Cause]:
    """Find the causes that explain a pair's speed.

    Args:
        facts: what was measured.

    Returns:
        The causes, the one that costs most first. A general cause of low acceptance is given only where no specific one was found.
    """
    specific = [cause for find in SPECIFIC if (cause := find(facts)) is not None]
    general = [] if specific else [cause for find in GENERAL if (cause := find(facts)) is not None][:1]
    seconds = [cause for find in SECONDS if (cause := find(facts)) is not None]
    return sorted([*specific, *general, *seconds], key=lambda cause: -cause.gain)
