"""Many users through one recommender: the worker of recommendation jobs, and what identifies such a job."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mmspec.jobs.engine.records import Reject
from mmspec.loading.recsys import Recommender
from mmspec.models.families.registry import positions_of
from mmspec.recsys.generation import Recommendations, recommend

COUNTED = {"target_calls": "target_calls", "row_calls": "row_calls", "levels": "tokens", "drafted": "drafted", "accepted": "accepted"}
DIGITS = 4
"""Scores are rounded to so many decimals."""
_WORDS = {int: "a whole number", str: "text", float: "a number with a fraction", bool: "true or false", type(None): "null", list: "a list"}
_SHOWN = 40  # characters of a value that a reason shows

User = tuple[Any, list[Any]]  # a checked record: the user's id, and the history


@dataclass
class RecommendationTotals:
    """Counts over several searches. A call is one user's share of one target forward."""

    users: int = 0
    items: int = 0
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    seconds: float = 0.0
    drift: float = 0.0
    exactness: str = ""

    def add(self, out: Recommendations) -> None:
        """Add the counts of one search."""
        self.users += len(out.items)
        self.items += sum(map(len, out.items))
        for name, source in COUNTED.items():
            self.counts[name] += getattr(out.stats, source)
        self.seconds += out.stats.seconds["total"]
        self.drift += out.stats.drift or 0.0
        self.exactness = out.stats.exactness

    @property
    def calls(self) -> float:
        """Target calls a user."""
        return self.counts["row_calls"] / max(1, self.users)

    def measures(self) -> dict[str, float]:
        """Return the counts so far."""
        return {"users": self.users, "recommendations": self.items, **self.counts, "seconds": self.seconds, "drift": self.drift}


@dataclass(frozen=True)
class Recommend:
    """Worker that recommends the best items for every record's user id and history, as rows of user_id, rank, item and score.

    `options` go to `recommend`: k, mode, width, draft_length, unseen, allowed, temperature. A batch is searched in parts of `rows` users
    with histories of similar length, to save padding; the parts follow from the batch alone. Record i of the input draws with `seed` + i
    where a mode draws. A user without any item to recommend is a `Reject`.
    """

    recommender: Recommender
    options: dict[str, Any] = field(default_factory=dict)
    rows: int = 64
    seed: int = 0
    user: str = "user_id"  # what the columns are called
    history: str = "history"
    user_type: type = object
    totals: RecommendationTotals = field(default_factory=RecommendationTotals)

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows is {self.rows}: search for at least 1 user at once")

    @cached_property
    def _kinds(self) -> frozenset[type]:
        return frozenset(map(type, self.recommender.catalogue.items))

    @cached_property
    def _positions(self) -> int | None:
        """How many tokens a history may have."""
        model, catalogue = self.recommender.model, self.recommender.catalogue
        limit = None if model.config.is_encoder_decoder else positions_of(model)
        return None if limit is None else limit - catalogue.levels

    def check(self, record: dict[str, Any]) -> User:
        """Return (user id, history). ValueError for values that are null, empty, of another type or not in the catalogue."""
        user, history, catalogue = record[self.user], record[self.history], self.recommender.catalogue
        if user is None:
            raise ValueError(f"{self.user} is null: give every user an id")
        if not isinstance(user, self.user_type) or isinstance(user, bool):
            raise ValueError(f"{self.user} {_short(user)} is {_word(user)}, and those of the first file are {_plural(self.user_type)}")
        if history is None:
            raise ValueError(f"{self.history} is null: a user needs at least one item")
        if not isinstance(history, list):
            raise ValueError(f"{self.history} {_short(history)} is {_word(history)}: give a list of items")
        if not history:
            raise ValueError(f"{self.history} is empty: a user needs at least one item")
        for place, item in enumerate(history, 1):
            if type(item) not in self._kinds:
                kinds = " or ".join(sorted(map(_plural, self._kinds)))
                raise ValueError(f"item {place} of the {self.history}, {_short(item)}, is {_word(item)}: the catalogue's items are {kinds}")
            if item not in catalogue:
                raise ValueError(f"item {_short(item)} is not in the catalogue of {len(catalogue)} items")
        if self._positions is not None and (length := len(catalogue.tokens(history))) > self._positions:
            raise ValueError(f"{self.history} takes {length} tokens, and the model has room for {self._positions}: give fewer items")
        return user, history

    def __call__(self, batch: Sequence[tuple[int, User]]) -> list[Any]:
        """Return columns for each user, or a `Reject`, in the order of the batch."""
        found: list[Any] = [None] * len(batch)
        for part in self.parts([user for _, user in batch]):
            out = self.search([batch[place][1][1] for place in part], [self.seed + batch[place][0] for place in part])
            for place, items, scores in zip(part, out.items, out.scores, strict=True):
                found[place] = _columns(batch[place][1][0], items, scores)
        return found

    def parts(self, users: Sequence[User]) -> Iterator[list[int]]:
        """Yield the numbers of `users` that are searched together, shortest histories first."""
        most = self.recommender.catalogue.most
        order = sorted(range(len(users)), key=lambda place: min(len(users[place][1]), most))
        for first in range(0, len(order), self.rows):
            yield order[first : first + self.rows]

    def search(self, histories: Sequence[Sequence[Any]], seeds: Sequence[int]) -> Recommendations:
        """Call `recommend` once and count it."""
        told = self.recommender
        out = recommend(told.model, histories, self._drafter(), catalogue=told.catalogue, seed=list(seeds), **self.options)
        self.totals.add(out)
        return out

    def rehearse(self) -> None:
        """Search for a user with one item, so that invalid options raise their ValueError before a job begins."""
        told = self.recommender
        recommend(told.model, [told.catalogue.items[:1]], self._drafter(), catalogue=told.catalogue, **self.options)

    def _drafter(self) -> Any:
        """The drafter; None for plain search, which takes none."""
        return None if self.options.get("mode") == "plain" else self.recommender.drafter

    def measures(self) -> dict[str, float]:
        """Return the counts so far."""
        return self.totals.measures()


def _columns(user: Any, items: list[Any], scores: list[float]) -> Any:
    if not items:
        return Reject("nothing is left to recommend: the history holds every item that is allowed")
    rounded = [round(score, DIGITS) + 0.0 for score in scores]  # + 0.0: no -0.0
    return {"user_id": [user] * len(items), "rank": list(range(1, len(items) + 1)), "item": items, "score": rounded}


def _word(value: Any) -> str:
    return _WORDS.get(type(value), f"a {type(value).__name__}")


def _plural(kind: type) -> str:
    return {int: "whole numbers", str: "text"}.get(kind, f"of type {kind.__name__}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def digest(*parts: Any) -> str:
    """Return the SHA-256 over tensors and JSON data."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            found.update(f"{part.dtype} {tuple(part.shape)}\n".encode())
            found.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(json.dumps(part, sort_keys=True, default=str).encode())
    return found.hexdigest()


def recommendation_job_identity(recommender: Recommender, drafts: bool = True) -> dict[str, str]:
    """Return what recommendations depend on beside records and options: fingerprints of target, config, catalogue and, where it `drafts`,
    drafter.

    Drafts do not change strict results, except for the last bit of a score.
    """
    from mmspec.jobs.engine.fingerprints import weights

    catalogue, drafter = recommender.catalogue, recommender.drafter
    written = [catalogue.before, catalogue.after, catalogue.most]
    found = {
        "target": weights(recommender.model),
        "config": digest(_told(recommender.model)),
        "catalogue": digest(list(catalogue.items), catalogue.paths, written),
    }
    if drafts and drafter is not None:
        found["drafter"] = weights(drafter) if hasattr(drafter, "state_dict") else digest(*_state(drafter))
    return found


def _told(model: Any) -> dict[str, Any]:
    skipped = ("_name_or_path", "transformers_version")
    return {key: value for key, value in model.config.to_dict().items() if key not in skipped}


def _state(drafter: Any) -> list[Any]:
    """Names and values of what a drafter that is no module was counted from."""
    state = drafter.state() if hasattr(drafter, "state") else {"drafter": repr(drafter)}
    return [part for name in sorted(state) for part in (name, state[name])]
