"""The server's process: its socket, uvicorn, and a clean end at SIGTERM and SIGINT."""

import asyncio
import logging
import math
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

import uvicorn
from fastapi import FastAPI

from mmspec.serving.http.options import ServerOptions
from mmspec.serving.http.protocol import BoundedProtocol

_LOG = logging.getLogger("mmspec.serving")
_ENDS = (signal.SIGINT, signal.SIGTERM)
_FILES = 256  # that the process opens beside connections
_ACCEPTED = 64  # connections that the loop accepts before it does anything else
_WAITING = 2048  # connections that may wait for that
_SWITCH = 0.001  # seconds after which a thread that runs Python lets the loop run: requests need it many times
_REST = 5.0  # seconds for requests to end once they are cancelled


def bound_socket(options: ServerOptions) -> socket.socket:
    """Take the port, before models are loaded, so that a second server on it fails at once.

    Args:
        options: host and port.

    Returns:
        The socket, which listens: connections wait until the server runs.

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
        found.listen()  # without it a second socket could be bound, too
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
        app: the application; `app.state.stop()` cancels its requests.
        options: the grace of its end.

    Returns:
        uvicorn's server; `run(sockets=[...])` blocks until `should_exit` is set or a signal arrives.
    """
    config = uvicorn.Config(
        app,
        http=BoundedProtocol.within(options.limits),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(options.grace + _REST),
        backlog=_ACCEPTED,
        lifespan="on",
    )
    return _Server(config, app.state.stop, options.grace)


class _Server(uvicorn.Server):
    """uvicorn's server, which ends requests itself after the grace: each gets its error, and nothing is torn down in the middle.

    Args:
        config: uvicorn's.
        stop: cancels all requests; may block.
        grace: seconds before that.
    """

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None], grace: float):
        super().__init__(config)
        self._stop, self._grace = stop, grace

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections.

        Args:
            sockets: what the server listens on.
        """
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_WAITING)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish, then cancel them, and end.

        Args:
            sockets: what the server listened on.
        """
        stopping = asyncio.ensure_future(self._stop_later())
        try:
            await super().shutdown(sockets)
        finally:
            stopping.cancel()

    async def _stop_later(self) -> None:
        await asyncio.sleep(self._grace)
        if self.server_state.tasks:
            _LOG.warning("%s requests did not end within %g s and are cancelled", len(self.server_state.tasks), self._grace)
        await asyncio.to_thread(self._stop)


def allow_connections(most: int) -> None:
    """Raise this process's limit of open files, if it is too low for its connections.

    Args:
        most: most connections.

    Raises:
        ValueError: if the limit cannot be raised that far, in one line.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = most + _FILES
    if soft != resource.RLIM_INFINITY and soft < need:
        if hard != resource.RLIM_INFINITY and hard < need:
            room = f"this process may open {hard} files"
            raise ValueError(f"max_connections is {most}, but {room}: raise ulimit -n, or give at most {hard - _FILES}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def serve_app(app: FastAPI, bound: socket.socket, options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT: running requests may finish within the grace, then they are cancelled.

    Args:
        app: the application.
        bound: what `bound_socket` returned.
        options: the grace.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    try:
        with _signals_end_quietly():
            make_server(app, options).run(sockets=[bound])
    finally:
        sys.setswitchinterval(before)


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
