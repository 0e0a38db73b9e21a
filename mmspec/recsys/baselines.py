"""What a model must beat: the items that most people took, and those that people took next."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

from mmspec.recsys.catalogue import Item


@dataclass(frozen=True)
class CoOccurrence:
    """How often an item came `within` places after another; nearer ones weigh more. `within` 0 leaves popularity alone.

    What a user has already taken is never recommended again.
    """

    counts: Counter[Item]
    after: Mapping[Item, Mapping[Item, float]]
    within: int

    @staticmethod
    def of(histories: Sequence[Sequence[Item]], within: int = 1) -> "CoOccurrence":
        after: defaultdict[Item, defaultdict[Item, float]] = defaultdict(lambda: defaultdict(float))
        for history in histories:
            for gap in range(1, within + 1):
                for before, item in zip(history, history[gap:], strict=False):
                    after[before][item] += 1 / gap
        return CoOccurrence(
            Counter(item for history in histories for item in history), {item: dict(found) for item, found in after.items()}, within
        )

    def recommend(self, histories: Sequence[Sequence[Item]], k: int) -> list[list[Item]]:
        """Each user's k best, by what followed the newest items; the most popular ones fill what is left."""
        popular = [item for item, _ in self.counts.most_common(k + max(map(len, histories), default=0))]
        return [self._one(history, k, popular) for history in histories]

    def _one(self, history: Sequence[Item], k: int, popular: list[Item]) -> list[Item]:
        score: defaultdict[Item, float] = defaultdict(float)
        for gap, item in enumerate(reversed(history[-self.within :] if self.within else []), 1):
            for found, count in self.after.get(item, {}).items():
                score[found] += count / gap
        seen = set(history)
        best = [item for item in nlargest(k + len(seen), score, key=score.__getitem__) if item not in seen][:k]
        return (best + [item for item in popular if item not in seen and item not in best])[:k]
