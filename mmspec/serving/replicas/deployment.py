"""The Ray Serve deployment: every replica runs the server's application over models and an engine of its own."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from mmspec.serving.http.endpoints.app import create_app
from mmspec.serving.http.loading import ModelNames, load_served
from mmspec.serving.http.options import ServerLimits, client_names
from mmspec.serving.replicas.totals import PERIOD, ReplicaMetrics

NAME = "mmspec"
"""Name of the application in Ray Serve."""
SCALING_SECONDS = {"look_back_period_s": 30.0, "upscale_delay_s": 30.0, "downscale_delay_s": 600.0}
"""Over how long Ray Serve averages the requests under way, and for how long it waits before it adds and ends replicas."""
_HEALTH_SECONDS = 2.0  # between two checks of a replica


@dataclass(frozen=True)
class ReplicaPlan:
    """What every replica loads and allows.

    Args:
        names: the models.
        limits: bounds of requests, of each replica.
        keys: accepted API keys.
        home: the folder that names of folders are relative to.
        origins: web pages of these origins may send requests in a browser.
    """

    names: ModelNames
    limits: ServerLimits
    keys: tuple[str, ...]
    home: str
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReplicaCount:
    """How many replicas there are.

    Args:
        least: replicas at the start, and the fewest later.
        most: the most; None for `least` always. In between there is one for every `max_rows` requests under way, after the delays of
            `SCALING_SECONDS`.

    Raises:
        ValueError: for numbers below 1, and `most` below `least`.
    """

    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        if self.least < 1:
            raise ValueError(f"replicas is {self.least}: give at least 1")
        if self.most is not None and self.most < self.least:
            raise ValueError(f"max_replicas is {self.most}, and replicas is {self.least}: give at least as many")

    @property
    def bound(self) -> int:
        """The most replicas."""
        return self.least if self.most is None else self.most


class Replica:
    """One replica: an actor of Ray that holds the models.

    Args:
        plan: what it loads.
        totals: handle of the actor of `ReplicaTotals`.

    Raises:
        ValueError, FileNotFoundError, ImportError: for what cannot be loaded; `totals` is told, too.
    """

    def __init__(self, plan: ReplicaPlan, totals: Any):
        import ray
        from ray import serve

        self.plan = plan
        self.metrics = ReplicaMetrics(totals, serve.get_replica_context().replica_id.unique_id)
        try:
            if not Path(plan.home).is_dir():
                raise ValueError(f"{plan.home} is not there on {os.uname().nodename}: run the command in a folder that all machines share")
            os.chdir(plan.home)
            self.models = load_served(plan.names, plan.limits, clients=client_names(plan.keys))
        except (ValueError, FileNotFoundError, ImportError) as error:
            ray.get(totals.refuse.remote(str(error)))
            raise

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application, as Ray Serve asks for it."""
        app = create_app(self.models, self.plan.limits, self.plan.keys, self.metrics, self.plan.origins)
        app.router.lifespan_context = _reporting(app.router.lifespan_context, self.metrics)
        return app

    def check_health(self) -> None:
        """Tell Ray Serve to replace this replica once a model can answer no more.

        Raises:
            RuntimeError: then.
        """
        if not self.models.alive:
            raise RuntimeError("the thread of a model has ended")


def _reporting(lifespan: Any, metrics: ReplicaMetrics) -> Any:
    """A lifespan that also reports the metrics every `PERIOD` seconds."""

    @asynccontextmanager
    async def both(app: FastAPI) -> AsyncIterator[Any]:
        async def report() -> None:
            while True:
                await run_in_threadpool(metrics.report)
                await asyncio.sleep(PERIOD)

        task = asyncio.ensure_future(report())
        try:
            async with lifespan(app) as state:
                yield state
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            metrics.report()

    return both


def application(plan: ReplicaPlan, count: ReplicaCount, totals: Any, gpus: bool, grace: float) -> Any:
    """Return the application for `ray.serve.run`.

    Args:
        plan: what every replica loads.
        count: how many there are.
        totals: handle of the actor of `ReplicaTotals`.
        gpus: give every replica a GPU.
        grace: seconds that running requests may take to finish when a replica is stopped.
    """
    from ray import serve

    limits = plan.limits
    models = len(plan.names.names) + (plan.names.text is not None)
    scale: dict[str, Any] = {"num_replicas": count.least}
    if count.most is not None:
        bounds = {"min_replicas": count.least, "initial_replicas": count.least, "max_replicas": count.most}
        scale = {"autoscaling_config": bounds | SCALING_SECONDS | {"target_ongoing_requests": limits.max_rows}}
    made = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        ray_actor_options={"num_cpus": 1, "num_gpus": int(gpus)},
        max_ongoing_requests=models * (1 + limits.max_rows + limits.max_queue) + limits.max_connections,  # the replica itself answers 429
        max_queued_requests=limits.max_connections,
        graceful_shutdown_timeout_s=grace,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=_HEALTH_SECONDS,
        max_constructor_retry_count=1,  # of the start: what cannot be loaded is told at once
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
        **scale,
    )
    return made.bind(plan, totals)
