"""How well rankings meet what users chose next: recall, NDCG and coverage."""

from collections.abc import Sequence

from mmspec.recsys import metrics
from mmspec.recsys.catalogue import Item

RANKS = (5, 10, 20)


def ranking_quality(found: Sequence[Sequence[Item]], truths: Sequence[Item], items: int, ranks: Sequence[int] = RANKS) -> dict[str, float]:
    """Measure rankings against one item a user.

    Args:
        found: items of each user, best first.
        truths: the item that each user chose.
        items: number of items of the catalogue.
        ranks: how many items count.

    Returns:
        "recall@k", "NDCG@k" and "coverage@k" for each k of `ranks`.
    """
    wanted = [[item] for item in truths]
    told: dict[str, float] = {}
    for k in ranks:
        told |= {f"recall@{k}": metrics.recall(found, wanted, k), f"NDCG@{k}": metrics.ndcg(found, wanted, k)}
        told[f"coverage@{k}"] = metrics.coverage(found, k, items)
    return told
