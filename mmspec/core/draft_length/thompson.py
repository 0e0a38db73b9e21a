"""EESD's Thompson sampling (Liu et al. 2024): each draft token is followed by another with probability theta, drawn anew every time."""

import random
from dataclasses import dataclass

from mmspec.core.records import Committed


@dataclass(frozen=True)
class Thompson:
    """EESD's Thompson sampling (Liu et al. 2024): each draft token is followed by another with probability theta, drawn anew every time.

    theta comes from Beta(s + 1, f + 1), the posterior of a draft token's acceptance after s accepted and f rejected ones, all positions
    and rows taken together. At least `least` and at most `most` draft tokens are made. Draws are the plan's own, by `seed`: they do not
    touch the generation's noise. It looks at acceptance only and never at costs, so it does not end up with no draft tokens at all.
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
    """The posterior of one generation."""

    def __init__(self, plan: Thompson):
        self.plan, self.random = plan, random.Random(plan.seed)
        self.accepted = self.rejected = 0

    def length(self) -> int:
        length = self.plan.least
        while length < self.plan.most and self.random.random() < self.random.betavariate(self.accepted + 1, self.rejected + 1):
            length += 1
        return length

    def observe(self, length: int, committed: Committed, seconds: float) -> None:
        # draft tokens behind the first rejected one were not judged: they say nothing
        self.accepted += sum(committed.accepted)
        self.rejected += sum(committed.judged) - sum(committed.accepted)
