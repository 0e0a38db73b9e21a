"""The server's process: its socket, uvicorn, and a clean end at SIGTERM and SIGINT."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

import uvicorn
from fastapi import FastAPI

from mmspec.serving.http.options import ServerOptions
from mmspec.serving.http.protocol import BoundedHeadProtocol

CONNECTIONS = 1024
"""Most connections; above it requests get 503."""
_ENDS = (signal.SIGINT, signal.SIGTERM)


def bound_socket(options: ServerOptions) -> socket.socket:
    """Take the port, before models are loaded.

    Args:
        options: host and port.

    Returns:
        The socket; connections wait until the server runs.

    Raises:
        ValueError: if the address cannot be used, in one line.
    """
    try:
        family, kind, *_, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(family, kind)
    except OSError as error:
        raise ValueError(f"host is {options.host!r}: {error.strerror or error}") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        raise ValueError(f"{options.host} port {options.port} cannot be used: {error.strerror}; give another --port") from None
    return found


def address_of(bound: socket.socket) -> str:
    """Return the URL of a socket.

    Args:
        bound: the socket.
    """
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if bound.family == socket.AF_INET6 else f"http://{host}:{port}"


def make_server(app: FastAPI, options: ServerOptions) -> uvicorn.Server:
    """Return the server of an application.

    Args:
        app: the application.
        options: the grace of its end.

    Returns:
        uvicorn's server; `run(sockets=[...])` blocks until `should_exit` is set or a signal arrives.
    """
    config = uvicorn.Config(
        app,
        http=BoundedHeadProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=max(1, round(options.grace)),
        lifespan="on",
    )
    return uvicorn.Server(config)


def serve_app(app: FastAPI, bound: socket.socket, options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT: running requests may finish within the grace, then they are cancelled.

    Args:
        app: the application.
        bound: what `bound_socket` returned.
        options: the grace.
    """
    with _signals_end_quietly():
        make_server(app, options).run(sockets=[bound])


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more, for the handlers of before: they do nothing, so that the process ends with 0."""
    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
