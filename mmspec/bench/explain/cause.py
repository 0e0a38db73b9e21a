"""A cause for a drafter that is not accepted or not faster, with its evidence and what it costs."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mmspec.bench.explain.acceptance import DraftAcceptance
from mmspec.bench.explain.facts import GOOD, PairFacts

LEAST_GAIN = 1.1
"""Causes of seconds that cost less are not reported."""


@dataclass(frozen=True)
class Cause:
    """A cause and its evidence.

    Attributes:
        name: what it is called in JSON.
        text: the cause in one sentence.
        evidence: the figures that show it.
        remedy: what to do.
        gain: how many times faster the request would be without it, at the best draft length.
        measured: `gain` follows from what was measured with and without the cause; otherwise it is an estimate.
    """

    name: str
    text: str
    evidence: tuple[str, ...]
    remedy: str
    gain: float
    measured: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


FindCause = Callable[[PairFacts], Cause | None]
"""Reads one cause from the facts; None where it does not apply."""


def cause_of_acceptance(
    name: str, text: str, evidence: Sequence[str], remedy: str, facts: PairFacts, found: tuple[str, DraftAcceptance] | None
) -> Cause:
    """Make a cause of low acceptance.

    Args:
        name, text, evidence, remedy: as in `Cause`.
        facts: what was measured.
        found: the probe that ran without the cause, which gives the gain; None for an estimate, the gain of an acceptance of `GOOD`.

    Returns:
        The cause.
    """
    gain = facts.gain((GOOD,), drafted=1.0) if found is None else facts.gain(found[1].rates())
    return Cause(name, text, tuple(evidence), remedy, gain, measured=found is not None)


def percent(value: float) -> str:
    """Write a share as "62 %"."""
    return f"{100 * value:.0f} %"


def milliseconds(seconds: float) -> str:
    """Write seconds as "4.1 ms"."""
    return f"{1000 * seconds:.1f} ms"
