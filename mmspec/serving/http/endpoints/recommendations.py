"""`/v1/recommendations`: not an endpoint of OpenAI's, in the same style."""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from fastapi import APIRouter, Request

from mmspec.core.records import Committed, Step
from mmspec.core.stats import Stats
from mmspec.recsys.generation import recommend
from mmspec.serving.http.bodies import ITEMS
from mmspec.serving.http.choices import drafting_facts
from mmspec.serving.http.endpoints.shared import ServerState, check_count, in_lane, read_body, server_state, worked
from mmspec.serving.http.errors import ApiError
from mmspec.serving.http.models import RecommenderServed
from mmspec.serving.http.schemas.media import Item, RecommendationBody
from mmspec.serving.http.worker import SharedCall, WorkerJob

router = APIRouter()


@dataclass(frozen=True)
class _Asked:
    """The users of one request, and the lists that hold for all of them."""

    histories: list[list[Item]]
    allow: list[Item] | None
    deny: list[Item] | None


@dataclass(frozen=True)
class _Found:
    """What a request gets of a call: items and scores of its users, and the counts of their rows."""

    items: list[list[Any]]
    scores: list[list[float]]
    stats: Stats


@router.post("/v1/recommendations")
async def recommend_items(request: Request) -> dict[str, Any]:
    """Recommend items.

    Args:
        request: the request; its body is `RecommendationBody`.

    Returns:
        For every history items, scores and names, best first.

    Raises:
        ApiError: for what is wrong with the request.
    """
    state = server_state(request)
    body, large = await read_body(request, RecommendationBody)
    served: RecommenderServed = state.models.find("recommender", body.model)
    asked = await in_lane(request, large, lambda check: _asked(state, served, body, check))
    shared = SharedCall((body.k, body.unseen), len(asked.histories), asked, lambda jobs: _recommend(served, body.k, body.unseen, jobs))
    out: _Found = await worked(request, served, shared)
    state.metrics.add(served.id, [out.stats])
    return {"object": "list", "model": served.id, "data": _rows(served, out), "mmspec": drafting_facts(None, [out.stats])}


def _asked(state: ServerState, served: RecommenderServed, body: RecommendationBody, check: Callable[[], None]) -> _Asked:
    histories = _histories(body)
    check_count(state, len(histories))
    for name in ("allow", "deny"):
        _check_items(served, name, getattr(body, name) or [])
    for history in histories:
        check()
        _check_items(served, "history", history)
        if not history:
            raise ApiError(400, "history is empty: a user needs at least one item", "history")
    return _Asked(histories, body.allow, body.deny)


def _rows(served: RecommenderServed, out: _Found) -> list[dict[str, Any]]:
    name = served.loaded.catalogue.name
    return [
        {"object": "recommendation", "index": index, "items": items, "scores": scores, "names": [name(item) for item in items]}
        for index, (items, scores) in enumerate(zip(out.items, out.scores, strict=True))
    ]


def _histories(body: RecommendationBody) -> list[list[Item]]:
    try:
        return body.users
    except ValueError as error:
        raise ApiError(400, str(error), "history") from None


def _check_items(served: RecommenderServed, name: str, items: list[Item]) -> None:
    if len(items) > ITEMS:
        raise ApiError(413, f"{name} has {len(items)} items: send at most {ITEMS}", name, "too_large")
    catalogue = served.loaded.catalogue
    for item in items:
        if type(item) not in catalogue.kinds or item not in catalogue:
            raise ApiError(400, f"{name} has the item {item!r:.60}, which is not in the catalogue of {len(catalogue)} items", name)


def _recommend(served: RecommenderServed, k: int, unseen: bool, jobs: Sequence[WorkerJob]) -> list[_Found]:
    """Search for the users of several requests in one call."""
    loaded = served.loaded
    parts: list[_Asked] = [job.shared.inputs for job in jobs if job.shared is not None]
    rows = [slice(*pair) for pair in pairwise(accumulate((len(part.histories) for part in parts), initial=0))]
    counts = [Stats() for _ in parts]

    def on_step(step: Step) -> None:
        if all(job.cancelled for job in jobs):
            raise CancelledError("the request was cancelled")
        for stats, own in zip(counts, rows, strict=True):
            stats.add(replace(step, committed=_committed(step.committed, own)))

    out = recommend(
        loaded.model,
        [history for part in parts for history in part.histories],
        loaded.drafter,
        method="plain" if loaded.drafter is None else "strict",
        draft_length="auto" if loaded.drafter is None else served.cost,
        k=k,
        catalogue=loaded.catalogue,
        unseen=unseen,
        allow=None if all(part.allow is None for part in parts) else [part.allow for part in parts for _ in part.histories],
        deny=None if all(part.deny is None for part in parts) else [part.deny for part in parts for _ in part.histories],
        on_step=on_step,
    )
    for stats in counts:
        stats.exactness = out.stats.exactness
    return [_Found(out.items[own], out.scores[own], stats) for own, stats in zip(rows, counts, strict=True)]


def _committed(all_rows: Committed, own: slice) -> Committed:
    """The outcome of some rows."""
    found = {name: getattr(all_rows, name)[own] for name in ("values", "accepted", "judged", "drafted", "ended", "healthy", "drift")}
    return Committed(**found, expected=all_rows.expected[own])
