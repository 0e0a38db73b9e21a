"""A service of replicas: Ray, Ray Serve and its proxy, from the start to a clean end at SIGTERM and SIGINT."""

import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from threading import Event
from typing import Any

from mmspec.serving.http.options import ServerOptions
from mmspec.serving.http.server import address_of, bound_socket
from mmspec.serving.replicas.deployment import NAME, ReplicaCount, ReplicaPlan, application
from mmspec.serving.replicas.totals import ReplicaTotals

_ENDS = (signal.SIGINT, signal.SIGTERM)


def serve_replicas(plan: ReplicaPlan, count: ReplicaCount, options: ServerOptions, told: Callable[[str], None]) -> None:
    """Serve replicas until SIGTERM or SIGINT: running requests may finish within the grace, then they are cancelled.

    They run on the cluster that the environment variable RAY_ADDRESS names; without it in a Ray of their own on this machine, which ends
    with this call. Its ports for its own processes ask for a random token.

    Args:
        plan: what every replica loads.
        count: how many there are.
        options: host, port and grace.
        told: called with the URL once all replicas answer.

    Raises:
        ValueError: for an address that cannot be used, models that cannot be loaded, and a cluster without room, in one line.
    """
    with bound_socket(options) as bound:
        url = address_of(bound)
    out = sys.stdout
    with redirect_stdout(sys.stderr), _connected(count) as ray, _stopped() as stop:  # Ray prints what it notes to standard output
        gpus = _gpus(ray, plan, count)
        totals = ray.remote(ReplicaTotals).options(num_cpus=0).remote()
        try:
            _start(application(plan, count, totals, gpus, options.grace), (options.host, int(url.rpartition(":")[2])), ray, totals)
            if not stop.is_set():
                with redirect_stdout(out):
                    told(url)
            stop.wait()
        finally:
            _drain(options.grace)


@contextmanager
def _connected(count: ReplicaCount) -> Iterator[Any]:
    """Ray, connected to the cluster."""
    address = os.environ.get("RAY_ADDRESS", "local")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == "local":  # what follows is read when ray is imported
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise ImportError(f"replicas need Ray Serve ({error.name} is missing): pip install 'mmspec[ray]'") from None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        ray.init("local", num_cpus=max(os.cpu_count() or 1, count.bound), include_dashboard=False, **quiet)
    else:
        ray.init(address, **quiet)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    try:
        yield ray
        if address != "local":
            serve.shutdown()
    finally:
        ray.shutdown()  # and with it a Ray of our own


@contextmanager
def _stopped() -> Iterator[Event]:
    """An event that SIGTERM and SIGINT set."""
    event = Event()
    before = {number: signal.signal(number, lambda *_: event.set()) for number in _ENDS}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _gpus(ray: Any, plan: ReplicaPlan, count: ReplicaCount) -> bool:
    """True if every replica gets a GPU. ValueError if there are too few."""
    there = int(ray.cluster_resources().get("GPU", 0)) if plan.names.device != "cpu" else 0
    if 0 < there < count.bound:
        raise ValueError(f"{count.bound} replicas need a GPU each, and there are {there}: ask for fewer, or give --device cpu")
    return there > 0


def _start(app: Any, address: tuple[str, int], ray: Any, totals: Any) -> None:
    """Start Ray Serve and the replicas, and wait until all of them answer."""
    from ray import serve

    if serve.status().applications:
        raise ValueError("Ray Serve already runs applications in this cluster: end them, or name another cluster in RAY_ADDRESS")
    host, port = address
    options = {"host": host, "port": port}
    serve.start(proxy_location="HeadOnly", http_options=options, logging_config={"enable_access_log": False, "log_level": "ERROR"})
    try:
        serve.run(app, name=NAME, route_prefix="/")
    except RuntimeError:
        if (refusal := ray.get(totals.refusal.remote())) is not None:
            raise ValueError(refusal) from None
        raise


def _drain(grace: float) -> None:
    """Let running requests finish, and end the replicas."""
    from ray import serve

    if NAME not in serve.status().applications:
        return
    serve.delete(NAME, _blocking=False)
    until = time.monotonic() + grace + 5
    while NAME in serve.status().applications and time.monotonic() < until:
        time.sleep(0.1)
