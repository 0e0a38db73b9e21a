"""Ranking metrics averaged over users: recall, NDCG, and coverage of the catalogue.

`found` holds each user's items, best first; `truths` the items each user chose: one (leave-one-out) or several. Users without truths are
left out. Missing ranks, where fewer than k items were found, count as wrong.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from math import log2

Item = Hashable
Found = Sequence[Sequence[Item]]
Truths = Sequence[Collection[Item]]


def recall(found: Found, truths: Truths, k: int) -> float:
    """Return the mean share of a user's truths among the first k; with one truth each, the hit rate."""
    return _mean(found, truths, k, lambda top, wanted: len(wanted.intersection(top)) / len(wanted))


def ndcg(found: Found, truths: Truths, k: int) -> float:
    """Return the mean NDCG of the first k: gain 1 / log2(rank + 1) for each truth, relative to the best possible."""
    return _mean(found, truths, k, lambda top, wanted: _gain(item in wanted for item in top) / _gain([True] * min(k, len(wanted))))


def coverage(found: Found, k: int, items: int) -> float:
    """Return the share of a catalogue of `items` that is among some user's first k."""
    if items < 1:
        raise ValueError(f"items is {items}: a catalogue has at least one item")
    return len({item for row in found for item in row[:k]}) / items


def _gain(hits) -> float:
    return sum(1 / log2(rank + 2) for rank, hit in enumerate(hits) if hit)


def _mean(found: Found, truths: Truths, k: int, score: Callable[[Sequence[Item], set[Item]], float]) -> float:
    if k < 1:
        raise ValueError(f"k is {k}: count at least one rank")
    if len(found) != len(truths):
        raise ValueError(f"{len(found)} rankings and {len(truths)} truths: give one of each a user")
    scores = [score(row[:k], set(wanted)) for row, wanted in zip(found, truths, strict=True) if wanted]
    if not scores:
        raise ValueError("no user has a truth: there is nothing to average")
    return sum(scores) / len(scores)
