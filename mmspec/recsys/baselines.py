"""Baselines of recommendation: popularity and co-occurrence."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

from mmspec.recsys.catalogue import Item


@dataclass(frozen=True)
class CoOccurrence:
    """Counts how often an item came up to `within` places after another; nearer ones weigh more. `within` 0 is popularity.

    Items that a user already has are not recommended, unless `unseen` is False.
    """

    counts: Counter[Item]
    after: Mapping[Item, Mapping[Item, float]]
    within: int

    @staticmethod
    def of(histories: Sequence[Sequence[Item]], within: int = 1) -> "CoOccurrence":
        """Count `histories`."""
        after: defaultdict[Item, defaultdict[Item, float]] = defaultdict(lambda: defaultdict(float))
        for history in histories:
            for gap in range(1, within + 1):
                for before, item in zip(history, history[gap:], strict=False):
                    after[before][item] += 1 / gap
        return CoOccurrence(
            Counter(item for history in histories for item in history), {item: dict(found) for item, found in after.items()}, within
        )

    def recommend(self, histories: Sequence[Sequence[Item]], k: int, unseen: bool = True) -> list[list[Item]]:
        """Return each user's k best items by what followed the newest items; popular items fill the rest."""
        popular = [item for item, _ in self.counts.most_common(k + max(map(len, histories), default=0))]
        return [self._one(history, k, popular, unseen) for history in histories]

    def _one(self, history: Sequence[Item], k: int, popular: list[Item], unseen: bool) -> list[Item]:
        score: defaultdict[Item, float] = defaultdict(float)
        for gap, item in enumerate(reversed(history[-self.within :] if self.within else []), 1):
            for found, count in self.after.get(item, {}).items():
                score[found] += count / gap
        seen = set(history) if unseen else set()
        best = [item for item in nlargest(k + len(seen), score, key=score.__getitem__) if item not in seen][:k]
        return (best + [item for item in popular if item not in seen and item not in best])[:k]
