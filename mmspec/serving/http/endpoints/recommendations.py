"""`/v1/recommendations`: not an endpoint of OpenAI's, in the same style."""

from typing import Any

from fastapi import APIRouter, Request

from mmspec.recsys.generation import Recommendations, recommend
from mmspec.serving.http.choices import drafting_facts
from mmspec.serving.http.endpoints.shared import check_count, server_state, worked
from mmspec.serving.http.errors import ApiError
from mmspec.serving.http.models import RecommenderServed
from mmspec.serving.http.schemas.media import Item, RecommendationBody
from mmspec.serving.http.worker import WorkerJob

router = APIRouter()
ITEMS = 10_000
"""Most items of a list in a request."""


@router.post("/v1/recommendations")
async def recommend_items(body: RecommendationBody, request: Request) -> dict[str, Any]:
    """Recommend items.

    Args:
        body: the request.
        request: its connection.

    Returns:
        For every history items, scores and names, best first.

    Raises:
        ApiError: for what is wrong with the request.
    """
    state = server_state(request)
    served: RecommenderServed = state.models.find("recommender", body.model)
    histories = _histories(body)
    check_count(state, len(histories))
    for name in ("allow", "deny"):
        _check_items(served, name, getattr(body, name) or [])
    for history in histories:
        _check_items(served, "history", history)
        if not history:
            raise ApiError(400, "history is empty: a user needs at least one item", "history")
    out: Recommendations = await worked(request, served, lambda job: _recommend(served, body, histories, job))
    state.metrics.add(served.id, [out.stats])
    return {"object": "list", "model": served.id, "data": _rows(served, out), "mmspec": drafting_facts(None, [out.stats])}


def _rows(served: RecommenderServed, out: Recommendations) -> list[dict[str, Any]]:
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


def _recommend(served: RecommenderServed, body: RecommendationBody, histories: list[list[Item]], job: WorkerJob) -> Recommendations:
    loaded, rows = served.loaded, len(histories)
    return recommend(
        loaded.model,
        histories,
        loaded.drafter,
        method="plain" if loaded.drafter is None else "strict",
        k=body.k,
        catalogue=loaded.catalogue,
        unseen=body.unseen,
        allow=None if body.allow is None else [body.allow] * rows,
        deny=None if body.deny is None else [body.deny] * rows,
        on_step=job.on_step,
    )
