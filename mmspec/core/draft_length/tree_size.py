"""The number of nodes of best-first trees with the highest expected throughput, from measured acceptance and cost."""

from dataclasses import dataclass

from mmspec.core.draft_length.throughput import Throughput, ThroughputSession
from mmspec.core.records import Committed

SIZES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_EVERY = 8  # rounds, of which one is larger than the best size
_FALLING = 0.8  # what a doubling is expected to bring that was not tried, in what the one before brought


@dataclass(frozen=True)
class TreeSize(Throughput):
    """Maximise expected values per second over the sizes of best-first trees (as SpecExec does by hand, Svirschevski et al. 2024).

    The first n draft tokens of a best-first tree are the tree of size n. A round of a large tree therefore shows what every smaller one
    would have committed; every eighth round is one size larger. Seconds by size are measured: where they hardly rise, as with weights on
    disk, trees grow until they do.

    Args:
        lengths: sizes to choose from, rising.
        first: size of the first rounds.
    """

    lengths: tuple[int, ...] = SIZES
    first: int = 16

    def begin(self) -> "TreeSizeSession":
        return TreeSizeSession(self)


class TreeSizeSession(ThroughputSession):
    """The running estimates of one generation.

    Args:
        plan: the settings.
    """

    def __init__(self, plan: TreeSize):
        super().__init__(plan)
        sizes = [size for size in plan.lengths if size > 0]
        self.classes = list(zip([0, *sizes], sizes, strict=False))  # of places in a tree: from one size to the next
        self.hits, self.tries = [0.0] * len(sizes), [0.0] * len(sizes)

    def _count(self, length: int, committed: Committed) -> None:
        for row, values in enumerate(committed.values):
            if not values or length == 0:
                continue
            accepted = range(committed.accepted[row]) if committed.places is None else committed.places[row]
            for index, (first, end) in enumerate(self.classes):
                if end <= length:
                    self.tries[index] = 0.98 * self.tries[index] + 1
                    self.hits[index] = 0.98 * self.hits[index] + sum(first <= place < end for place in accepted)

    def _best(self) -> int:
        best = super()._best()
        larger = [size for size in self.plan.lengths if best < size <= 2 * max(self.seconds)]
        return larger[0] if best and larger and self.rounds % _EVERY == 0 else best

    def expected(self, length: int) -> float:
        """Estimate the values a row commits in a round.

        Args:
            length: nodes of the tree.

        Returns:
            Values, 1 or more.
        """
        total, last = 1.0, 0.5 / _FALLING
        for index, (_, end) in enumerate(self.classes):
            if end > length:
                break
            last = (self.hits[index] + 2 * _FALLING * last) / (self.tries[index] + 2)
            total += last
        return total
