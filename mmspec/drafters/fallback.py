"""The adaptive fallback threshold of LLMCad (Xu et al. 2023) and EdgeLLM (Xu et al. 2024): when a small model hands over to a large one.

A chain of draft tokens ends where the product of their probabilities under the drafter falls below a threshold. The threshold follows the
verdicts: halved after a round whose draft tokens were all accepted, so that the next chain is longer, else divided by
T^((drafted - accepted) / drafted), where T is the product at the chain's end, so that the next chain is shorter. A best-first tree drafts
no path that is less likely than the threshold; its chain is the accepted path and what the tree holds below it
(`BestFirst.learn`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from mmspec.core.records import Scored
from mmspec.core.rows.changes import rows_of

_Begun = TypeVar("_Begun")
_LEAST = 1e-30  # a threshold of 0 would never rise again


@dataclass(frozen=True)
class AdaptiveFallback:
    """Ends chains and best-first trees by a threshold that follows the verdicts (LLMCad, Xu et al. 2023). For drafters that are models.

    Args:
        start: the threshold of the first round.

    Raises:
        ValueError: unless `start` lies above 0 and is at most 1.
    """

    start: float = 0.01
    reads = ()

    def __post_init__(self):
        if not 0 < self.start <= 1:
            raise ValueError(f"start is {self.start}: a threshold is a probability above 0, such as 0.01")

    def begin(self) -> "FallbackSession":
        """Return the thresholds of a generation."""
        return FallbackSession(self.start)


class FallbackSession:
    """The thresholds of a generation, one a row; a `Stop`. At least one draft token is made.

    Args:
        start: the threshold of rows that have seen no verdict.
    """

    reads = ()

    def __init__(self, start: float):
        self.start = start
        self.threshold: Tensor | None = None  # [B]
        self._products: list[Tensor] = []  # of the round under way, after each draft token, [B] each

    def before(self, scored: Scored, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.before`."""
        return None, reach

    def after(self, scored: Scored, value: Tensor, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.after`; `reach` is the product of the draft tokens' probabilities."""
        reach = reach * scored.p.last(1).prob(value)[:, 0]
        self._products.append(reach[:, None])
        return reach < self.thresholds(reach), reach

    def thresholds(self, like: Tensor) -> Tensor:
        """Return the threshold of every row [B], of the dtype and on the device of `like` [B] at first."""
        if self.threshold is None:
            self.threshold = torch.full_like(like, self.start)
        return self.threshold

    def record(self, products: Tensor) -> None:
        """Note the products [B, G] of the paths to all draft tokens of a round."""
        self._products = [products]

    def learn(self, drafted: Tensor, accepted: Tensor, last: Tensor) -> None:
        """Adapt the thresholds to a round.

        Args:
            drafted: [B] draft tokens of the chain, or of a path of a tree.
            accepted: [B] how many of them were accepted.
            last: [B] the draft token at the end of the chain or path, from 0; negative where nothing was drafted.
        """
        if not self._products or self.threshold is None:
            return
        products, self._products = torch.cat(self._products, 1), []
        end = products.gather(1, last.clamp_min(0)[:, None])[:, 0].clamp_min(_LEAST)
        refused = (drafted - accepted) / drafted.clamp_min(1)
        found = torch.where(refused > 0, self.threshold / end**refused, self.threshold / 2)
        self.threshold = torch.where(drafted > 0, found.clamp(_LEAST, 1), self.threshold)

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.threshold = None if self.threshold is None else rows_of(self.threshold, rows)

    def join_rows(self, other: "FallbackSession") -> None:
        """Append the rows of another session; both have drafted, since their models have run their prompts."""
        assert self.threshold is not None
        assert other.threshold is not None
        self.threshold = torch.cat([self.threshold, other.threshold])


def refuse_unbegun(stop: _Begun | AdaptiveFallback) -> _Begun:
    """Return `stop`. ValueError for thresholds that follow the verdicts where no session begins them."""
    if isinstance(stop, AdaptiveFallback):
        raise ValueError("AdaptiveFallback follows the verdicts on a model's drafts: this drafter is none, so give it another stop")
    return stop
