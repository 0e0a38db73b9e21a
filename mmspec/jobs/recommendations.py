"""Many users through one recommender: the worker of recommendation jobs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from mmspec.jobs.engine.records import Reject
from mmspec.jobs.recommendation_fallback import Fallback, whole_number
from mmspec.jobs.recommendation_totals import RecommendationTotals
from mmspec.loading.recsys import Recommender
from mmspec.models.families.registry import positions_of
from mmspec.recsys.candidates import rank_candidates
from mmspec.recsys.filters.item_filter import ItemFilter
from mmspec.recsys.generation import Recommendations, recommend
from mmspec.utils.names import unknown

DIGITS = 4
"""Scores are rounded to so many decimals."""
_WORDS = {int: "a whole number", str: "text", float: "a number with a fraction", bool: "true or false", type(None): "null", list: "a list"}
_SHOWN = 40  # characters of a value that a reason shows

LISTS = ("seen", "allow", "deny", "candidates")
"""Lists of items that a table may hold for each user."""
UNKNOWN = ("reject", "skip")


@dataclass(frozen=True, slots=True)
class UserLists:
    """What a table says of one user beside id and history.

    Args:
        history: the history as the table has it, for fallbacks.
        lists: items by the names of `LISTS`; None where the table has null.
    """

    history: Any
    lists: dict[str, list[Any] | None]


User = tuple[Any, list[Any]] | tuple[Any, list[Any], UserLists]  # a checked record: the user's id, the history, and more where asked for


@dataclass(frozen=True)
class Recommend:
    """Worker that recommends the best items for every record's user id and history, as rows of user_id, rank, item and score.

    `options` go to `recommend`: k, mode, width, draft_length, unseen, allowed, temperature. A batch is searched in parts of `rows` users
    with histories of similar length, to save padding; the parts follow from the batch alone. Record i of the input draws with `seed` + i
    where a mode draws. A user without any item to recommend is a `Reject`.

    Args:
        recommender: target, catalogue and drafter.
        options: of `recommend`.
        rows: users a search.
        seed: see above.
        user: name of the column of user ids.
        history: name of the column of histories.
        user_type: the Python type of user ids.
        totals: counts of all searches.
        columns: names of the columns of lists, by the names of `LISTS`.
        unknown: "reject" users with an item that the catalogue lacks, or "skip" the item.
        fallback: lists for users without any item of the catalogue, who are rejects without it. Rows then have a `source`.
    """

    recommender: Recommender
    options: dict[str, Any] = field(default_factory=dict)
    rows: int = 64
    seed: int = 0
    user: str = "user_id"  # what the columns are called
    history: str = "history"
    user_type: type = object
    totals: RecommendationTotals = field(default_factory=RecommendationTotals)
    columns: Mapping[str, str] = field(default_factory=dict)
    unknown: str = "reject"
    fallback: Fallback | None = None

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows is {self.rows}: search for at least 1 user at once")
        if self.unknown not in UNKNOWN:
            raise unknown("unknown", self.unknown, UNKNOWN)

    @cached_property
    def _kinds(self) -> frozenset[type]:
        return self.recommender.catalogue.kinds

    @cached_property
    def _positions(self) -> int | None:
        """How many tokens a history may have."""
        model, catalogue = self.recommender.model, self.recommender.catalogue
        limit = None if model.config.is_encoder_decoder else positions_of(model)
        return None if limit is None else limit - catalogue.levels

    def check(self, record: dict[str, Any]) -> User:
        """Return (user id, history). ValueError for values that are null, empty, of another type or not in the catalogue."""
        user, history, catalogue = self._user(record), record[self.history], self.recommender.catalogue
        kept = self._history(history)
        if not kept and self.fallback is None:
            raise ValueError(f"{self.history} holds no item of the catalogue of {len(catalogue)} items")
        if kept and self._positions is not None and (length := len(catalogue.tokens(kept))) > self._positions:
            raise ValueError(f"{self.history} takes {length} tokens, and the model has room for {self._positions}: give fewer items")
        if not self.columns and self.fallback is None:
            return user, kept
        return user, kept, UserLists(history, self._lists(record))

    def _user(self, record: dict[str, Any]) -> Any:
        """The user's id. ValueError for one that is null or of another type."""
        user = record[self.user]
        if user is None:
            raise ValueError(f"{self.user} is null: give every user an id")
        if not isinstance(user, self.user_type) or isinstance(user, bool):
            raise ValueError(f"{self.user} {_short(user)} is {_word(user)}, and those of the first file are {_plural(self.user_type)}")
        return user

    def _lists(self, record: dict[str, Any]) -> dict[str, list[Any] | None]:
        return {name: self._list(column, record[column], name in ("allow", "candidates")) for name, column in self.columns.items()}

    def _history(self, history: Any) -> list[Any]:
        """The history's items. ValueError for what is no history, unless there is a fallback, and for unknown items, unless skipped."""
        if not history and self.fallback is not None and (history is None or isinstance(history, list)):
            return []
        if history is None:
            raise ValueError(f"{self.history} is null: a user needs at least one item")
        if not isinstance(history, list):
            raise ValueError(f"{self.history} {_short(history)} is {_word(history)}: give a list of items")
        if not history:
            raise ValueError(f"{self.history} is empty: a user needs at least one item")
        return self._known(self.history, history, self.unknown == "skip")

    def _known(self, column: str, items: list[Any], skip: bool) -> list[Any]:
        """The items of the catalogue among `items`, whole numbers as int; others are left out or raise a ValueError."""
        catalogue, found = self.recommender.catalogue, []
        for place, item in enumerate(items, 1):
            if type(item) is float and int in self._kinds:
                item = whole_number(item)
            if type(item) not in self._kinds:
                kinds = " or ".join(sorted(map(_plural, self._kinds)))
                raise ValueError(f"item {place} of the {column}, {_short(item)}, is {_word(item)}: the catalogue's items are {kinds}")
            if item in catalogue:
                found.append(item)
            elif not skip:
                raise ValueError(f"item {_short(item)} is not in the catalogue of {len(catalogue)} items")
        return found

    def _list(self, column: str, items: Any, strict: bool) -> list[Any] | None:
        """A list of items of the table. Unknown items are left out where they could not be recommended anyway."""
        if items is None:
            return None
        if not isinstance(items, list):
            raise ValueError(f"{column} {_short(items)} is {_word(items)}: give a list of items, or null")
        return self._known(column, items, not strict or self.unknown == "skip")

    def __call__(self, batch: Sequence[tuple[int, User]]) -> list[Any]:
        """Return columns for each user, or a `Reject`, in the order of the batch."""
        found: list[Any] = [None] * len(batch)
        users = [user for _, user in batch]
        for part in self.parts(users):
            out = self.search([users[place] for place in part], [self.seed + batch[place][0] for place in part])
            for place, items, scores in zip(part, out.items, out.scores, strict=True):
                found[place] = self._columns(users[place][0], items, scores, ["model"] * len(items))
        for place, user in enumerate(users):
            if not user[1]:
                found[place] = self._without_model(user)
        return found

    def _columns(self, user: Any, items: list[Any], scores: list[float], sources: list[str]) -> Any:
        columns = _columns(user, items, scores)
        return columns if self.fallback is None or isinstance(columns, Reject) else columns | {"source": sources}

    def _without_model(self, user: Any) -> Any:
        """The columns of a user without any item of the catalogue."""
        assert self.fallback is not None
        catalogue, lists = self.recommender.catalogue, user[2].lists
        only = [lists[name] for name in ("allow", "candidates") if lists.get(name) is not None]
        deny = [*(lists.get("seen") or ()), *(lists.get("deny") or ())]
        filters = ItemFilter.of(catalogue, 1, _row_of(self.options.get("allowed")), _both(only), [deny], None)
        found = self.fallback.items(user[2].history, lambda row: filters.may(0, row), self.options.get("k", 10))
        rows, scores, sources = zip(*found, strict=True) if found else ((), (), ())
        return self._columns(user[0], [catalogue.items[row] for row in rows], list(scores), list(sources))

    def parts(self, users: Sequence[User]) -> Iterator[list[int]]:
        """Yield the numbers of `users` that are searched together, shortest histories first. Users without a history are left out."""
        most = self.recommender.catalogue.most
        there = [place for place, user in enumerate(users) if user[1]]
        order = sorted(there, key=lambda place: min(len(users[place][1]), most))
        for first in range(0, len(order), self.rows):
            yield order[first : first + self.rows]

    def search(self, users: Sequence[User], seeds: Sequence[int]) -> Recommendations:
        """Search for users once, within their lists, and count it. A table with candidates has those ranked instead."""
        told, histories = self.recommender, self._prompts([user[1] for user in users])
        lists = [user[2].lists if len(user) > 2 else {} for user in users]
        options: dict[str, Any] = dict(self.options)
        deny = [[*(one.get("seen") or ()), *(one.get("deny") or ())] for one in lists]
        if "candidates" in self.columns:
            out = self._rank(histories, lists, deny)
        else:
            options |= {"deny": deny} if any(deny) else {}
            options |= {"allow": [one.get("allow") for one in lists]} if "allow" in self.columns else {}
            out = recommend(told.model, histories, self._drafter(), catalogue=told.catalogue, seed=list(seeds), **options)
        self.totals.add(out)
        return out

    def _prompts(self, histories: list[list[Any]]) -> Any:
        """Histories as `recommend` takes them."""
        return histories

    def _rank(self, histories: Any, lists: list[dict[str, Any]], deny: list[list[Any]]) -> Recommendations:
        """Rank the candidates of every user; none where the table has null."""
        told, allowed = self.recommender, self.options.get("allowed")
        candidates = [_both([some for name in ("candidates", "allow") if (some := one.get(name)) is not None])[0] for one in lists]
        candidates = [[] if one.get("candidates") is None else found for one, found in zip(lists, candidates, strict=True)]
        if allowed is not None:
            candidates = [[item for item in found or () if bool(allowed[told.catalogue.row(item)])] for found in candidates]
        k, unseen = self.options.get("k", 10), self.options.get("unseen", False)
        return rank_candidates(told.model, histories, candidates, catalogue=told.catalogue, k=k, deny=deny, unseen=unseen)

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


def _row_of(mask: Tensor | None) -> Tensor | None:
    return mask if mask is None or mask.dim() == 1 else mask[:1]


def _both(lists: Sequence[Sequence[Any]]) -> list[list[Any] | None]:
    """Items of all lists, in the order of the first; [None] where there is no list."""
    return [[item for item in lists[0] if all(item in set(other) for other in lists[1:])]] if lists else [None]


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
