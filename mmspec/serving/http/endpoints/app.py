"""The application: all endpoints behind the gate."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from mmspec.serving.http.bodies import Lanes, body_bounds
from mmspec.serving.http.endpoints import images, recommendations, speech, status, text, transcriptions
from mmspec.serving.http.endpoints.shared import ServerState
from mmspec.serving.http.errors import install_handlers
from mmspec.serving.http.gate import RequestGate
from mmspec.serving.http.metrics import ServerMetrics
from mmspec.serving.http.models import ServedModels
from mmspec.serving.http.options import ServerLimits
from mmspec.utils.version import __version__

ROUTERS = {
    "text": text.router,
    "image": images.router,
    "speech": speech.router,
    "recognizer": transcriptions.router,
    "recommender": recommendations.router,
}
"""The endpoints of every kind of model."""


def create_app(
    models: ServedModels,
    limits: ServerLimits | None = None,
    keys: tuple[str, ...] = (),
    metrics: ServerMetrics | None = None,
    origins: tuple[str, ...] = (),
) -> FastAPI:
    """Make the application for some models. It closes them when it is shut down.

    Args:
        models: the models.
        limits: bounds of requests; the defaults if None.
        keys: accepted API keys; none means that no key is asked for.
        metrics: where answers are counted; None for metrics of this application alone.
        origins: web pages of these origins may send requests in a browser.

    Returns:
        An ASGI application.
    """
    limits, metrics = ServerLimits() if limits is None else limits, ServerMetrics() if metrics is None else metrics
    for served in models.all.values():
        metrics.watch(served.id, lambda served=served: served.queued, lambda served=served: served.running)

    state = ServerState(models, limits, metrics, body_bounds(models, limits), Lanes())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(state.stop)

    app = FastAPI(title="mmspec", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan, redirect_slashes=False)
    app.state.server, app.state.stop = state, state.stop
    install_handlers(app)
    for router in (status.router, *ROUTERS.values()):
        app.include_router(router)
    paths = frozenset(route.path for router in (status.router, *ROUTERS.values()) for route in router.routes if isinstance(route, Route))
    app.add_middleware(RequestGate, limits=limits, keys=keys, metrics=metrics, bounds=state.bounds, paths=paths)
    if origins:  # outside of the gate: browsers ask first, without a key
        headers = ("X-Seed", "X-Sample-Rate", "Retry-After")
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=headers)
    return app
