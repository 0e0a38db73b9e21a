"""Training histories that go on as co-occurrence counts say: a part of a history, then items drawn by what followed its newest items.

A small shop has few histories, which a model soon knows by heart. Counts generalise from as few events; a model that also learns from draws
of them begins where they end.
"""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mmspec.recsys.baselines import CoOccurrence
from mmspec.recsys.catalogue import Item
from mmspec.recsys.histories import Data

WITHIN = 5  # places apart at which two items count
DRAWN = 4  # items drawn behind a part of a history at most


def with_walks(data: Data, share: float) -> Data:
    """Replace a share of the training histories by walks over co-occurrence counts of training histories.

    Args:
        data: histories and the catalogue.
        share: chance of a training history to be replaced, 0 to 1.

    Returns:
        The same data with other `users`. History n is the same whenever it is asked for.

    Raises:
        ValueError: for a share outside 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"walks is {share}: it is the chance of a training history to be replaced, 0 to 1")
    if not share:
        return data
    after, real = CoOccurrence.of(data.past, WITHIN).after, data.users

    def users(first: int, end: int) -> list[Sequence[Item]]:
        found = []
        for number, history in zip(range(first, end), real(first, end), strict=True):
            pick = random.Random(f"walk {number}")
            found.append(_walk(history, after, pick) if pick.random() < share else history)
        return found

    return replace(data, users=users)


def _walk(history: Sequence[Item], after: Mapping[Item, Mapping[Item, float]], pick: random.Random) -> Sequence[Item]:
    """The beginning of a history, and up to `DRAWN` new items, each drawn in proportion to its score by co-occurrence."""
    walk = list(history[: pick.randint(1, len(history))])
    for _ in range(DRAWN):
        score: defaultdict[Item, float] = defaultdict(float)
        for gap, item in enumerate(reversed(walk[-WITHIN:]), 1):
            for found, count in after.get(item, {}).items():
                score[found] += count / gap
        fresh = {item: count for item, count in score.items() if item not in walk}
        if not fresh:
            break
        walk += pick.choices(list(fresh), list(fresh.values()))
    return walk if len(walk) > 1 else history
