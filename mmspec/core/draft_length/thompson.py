"""EESD's Thompson sampling of the draft length (Liu et al. 2024)."""

import random
from dataclasses import dataclass

from mmspec.core.records import Committed


@dataclass(frozen=True)
class Thompson:
    """EESD's Thompson sampling (Liu et al. 2024): each draft token is followed by another with probability theta, drawn anew every time.

    theta comes from Beta(s + 1, f + 1), the posterior of a draft token's acceptance after s accepted and f rejected ones, over all
    positions and rows. It reads acceptance only, not costs, so it never stops drafting.

    Args:
        most: largest length.
        least: smallest length.
        seed: of the controller's own draws, which do not affect the generation's noise.

    Raises:
        ValueError: unless 0 <= least <= most.
    """

    most: int = 16
    least: int = 1
    seed: int = 0

    def __post_init__(self):
        if not 0 <= self.least <= self.most:
            raise ValueError(f"least is {self.least} and most {self.most}: give 0 <= least <= most draft tokens")

    def begin(self) -> "ThompsonSession":
        return ThompsonSession(self)


class ThompsonSession:
    """The posterior of one generation.

    Args:
        plan: the settings.
    """

    def __init__(self, plan: Thompson):
        self.plan, self.random = plan, random.Random(plan.seed)
        self.accepted = self.rejected = 0

    def length(self) -> int:
        length = self.plan.least
        while length < self.plan.most and self.random.random() < self.random.betavariate(self.accepted + 1, self.rejected + 1):
            length += 1
        return length

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        # draft tokens after the first rejected one were not judged and do not count
        self.accepted += sum(committed.accepted)
        self.rejected += sum(committed.judged) - sum(committed.accepted)
