"""A recommender beside baselines on the same users: popularity, co-occurrence, SASRec. Rankings are kept, so that a kill loses little."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmspec.recsys.baselines import CoOccurrence
from mmspec.recsys.catalogue import Item
from mmspec.recsys.histories import Data
from mmspec.train.recommender.quality import RANKS, ranking_quality
from mmspec.train.recommender.sasrec import SasRecSettings, train_sasrec
from mmspec.train.recommender.target import best_of_plain_search
from mmspec.utils.files import write_json

BASELINES = ("popularity", "co-occurrence", "sasrec")
PART = 1000  # users ranked between two files

Ranker = Callable[[Sequence[Sequence[Item]]], list[list[Item]]]


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What to measure.

    Args:
        baselines: of `BASELINES`.
        unseen: whether all rankings leave out items of the history.
        within: places behind an item that co-occurrence counts.
        sasrec: how the baseline is trained.
    """

    baselines: tuple[str, ...] = BASELINES
    unseen: bool = True
    within: int = 5
    sasrec: SasRecSettings = field(default_factory=SasRecSettings)

    def __post_init__(self) -> None:
        for name in self.baselines:
            if name not in BASELINES:
                raise ValueError(f"unknown baseline {name!r}; valid: {', '.join(BASELINES)}")


def evaluate_recommender(
    model: Any, data: Data, settings: EvaluationSettings, work: Path, mark: str, device: str = "cpu", done: Any = lambda name, users: None
) -> dict[str, dict[str, float]]:
    """Measure a target and baselines on `data.test`; a run that was stopped goes on from `work`.

    Args:
        model: the target.
        data: histories and the catalogue.
        settings: what to measure.
        work: folder for rankings and the baseline's training.
        mark: fingerprint of the target and the data, for which rankings in `work` are read again.
        device: where SASRec is trained.
        done: called with the name of a ranking and the number of users that were ranked.

    Returns:
        Recall, NDCG and coverage at 5, 10 and 20, by name: "target" and the baselines.
    """
    k, truths, histories = max(RANKS), [items[-1] for items in data.test], [items[:-1] for items in data.test]
    rankers: dict[str, Ranker] = {"target": lambda part: best_of_plain_search(model, data.catalogue, part, k, settings.unseen)}
    if "sasrec" in settings.baselines:
        baseline = train_sasrec(data, settings.sasrec, work / "sasrec", device, settings.unseen)
        rankers["sasrec"] = lambda part: baseline.ranked(data.catalogue, part, k, settings.unseen)
    for name, within in (("co-occurrence", settings.within), ("popularity", 0)):
        if name in settings.baselines:
            counts = CoOccurrence.of(data.past, within)
            rankers[name] = lambda part, counts=counts: counts.recommend(part, k, settings.unseen)
    found: dict[str, dict[str, float]] = {}
    for name, rank in rankers.items():
        own = hashlib.sha256(f"{mark} {settings}".encode()).hexdigest()[:16]
        ranked = _ranked(rank, histories, work / "ranked" / f"{name}-{own}", lambda users, name=name: done(name, users))
        found[name] = ranking_quality(ranked, truths, len(data.catalogue))
    return found


def _ranked(rank: Ranker, histories: Sequence[Sequence[Item]], folder: Path, done: Callable[[int], None]) -> list[list[Item]]:
    """Rankings of all histories, a file for each part of them."""
    folder.mkdir(parents=True, exist_ok=True)
    found: list[list[Item]] = []
    for start in range(0, len(histories), PART):
        path = folder / f"{start:09d}.json"
        if not path.exists():
            write_json(path, rank(histories[start : start + PART]))
        found += json.loads(path.read_text(encoding="utf-8"))
        done(min(PART, len(histories) - start))
    return found
