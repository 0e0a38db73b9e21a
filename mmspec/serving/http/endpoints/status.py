"""`/v1/models`, `/health` and `/metrics`."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from mmspec.serving.http.endpoints.shared import server_state
from mmspec.serving.http.errors import ApiError
from mmspec.serving.http.models import ServedModels

router = APIRouter()


@router.api_route("/v1/models", methods=["GET", "HEAD"])
async def list_models(request: Request) -> dict[str, Any]:
    """List the models.

    Args:
        request: the request.

    Returns:
        The list in OpenAI's shape; `kind` says which endpoint a model answers at.
    """
    models = server_state(request).models
    return {"object": "list", "data": [_entry(models, kind) for kind in models.all]}


@router.api_route("/v1/models/{name:path}", methods=["GET", "HEAD"])
async def one_model(name: str, request: Request) -> dict[str, Any]:
    """Describe a model.

    Args:
        name: its id.
        request: the request.

    Returns:
        The model in OpenAI's shape.

    Raises:
        ApiError: 404, for an unknown id.
    """
    models = server_state(request).models
    for kind, served in models.all.items():
        if served.id == name:
            return _entry(models, kind)
    raise ApiError(404, f"the model {name[:100]!r} does not exist", "model", "model_not_found")


def _entry(models: ServedModels, kind: str) -> dict[str, Any]:
    return {"id": models.all[kind].id, "object": "model", "created": models.created, "owned_by": "mmspec", "kind": kind}


@router.api_route("/health", methods=["GET", "HEAD"])
async def health(request: Request) -> JSONResponse:
    """Tell whether all models can answer.

    Args:
        request: the request.

    Returns:
        200, or 503 once the thread of a model has ended.
    """
    alive = server_state(request).models.alive
    return JSONResponse({"status": "ok" if alive else "failed"}, 200 if alive else 503)


@router.api_route("/metrics", methods=["GET", "HEAD"])
def metrics(request: Request) -> Response:
    """Return the metrics.

    Args:
        request: the request.

    Returns:
        Prometheus' text format.
    """
    return Response(server_state(request).metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})
