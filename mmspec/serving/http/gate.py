"""ASGI middleware in front of all endpoints: API keys, bounds of bodies, slow clients, and counts of what was answered."""

import asyncio
import hmac
from time import perf_counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmspec.serving.http.errors import GONE, ApiError
from mmspec.serving.http.metrics import ServerMetrics
from mmspec.serving.http.options import ServerLimits

OPEN = ("/health",)
"""Paths that need no key."""


class RequestGate:
    """Refuses requests without a key, bodies that are too large or too slow, and clients that do not read; counts the others.

    Args:
        app: the application behind it.
        limits: bounds of bodies and time.
        keys: accepted API keys; none means that no key is asked for.
        metrics: where answers are counted.
        paths: the paths that are counted by name.
    """

    def __init__(self, app: ASGIApp, limits: ServerLimits, keys: tuple[str, ...], metrics: ServerMetrics, paths: frozenset[str]):
        self.app, self.limits, self.metrics, self.paths = app, limits, metrics, paths
        self.keys = tuple(key.encode() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection, as ASGI says.

        Args:
            scope: facts of the connection.
            receive, send: its messages.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, path = perf_counter(), scope["path"]
        passage = _Passage(receive, send, self.limits)
        try:
            refused = self._refused(scope, path)
            if refused is not None:
                await refused.response()(scope, receive, passage.send)
            else:
                await self.app(scope, passage.receive, passage.send)
        except BaseException as error:
            if not passage.stuck:
                passage.status = 500 if isinstance(error, Exception) else passage.status
                raise
        finally:
            endpoint = path if path in self.paths else "other"
            self.metrics.answered(endpoint, passage.status, perf_counter() - began)

    def _refused(self, scope: Scope, path: str) -> ApiError | None:
        headers = Headers(scope=scope)
        if self.keys and path not in OPEN and not self._is_known(headers.get("authorization", "")):
            message = "the API key is missing or wrong: send Authorization: Bearer KEY"
            return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer", "Connection": "close"})
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limits.max_body:
            return too_large(self.limits.max_body)
        return None

    def _is_known(self, header: str) -> bool:
        """Compare with every key, in a time that does not depend on where keys differ."""
        scheme, _, given = header.partition(" ")
        raw = given.strip().encode("latin-1")  # the bytes that were sent
        found = [hmac.compare_digest(raw, key) for key in self.keys]
        return scheme.lower() == "bearer" and any(found)


def too_large(most: int) -> ApiError:
    """Return the error for a body of more than `most` bytes."""
    return ApiError(413, f"the body has more than {most} bytes", code="too_large", headers={"Connection": "close"})


class _Passage:
    """`receive` and `send` of one request, within its limits."""

    def __init__(self, receive: Receive, send: Send, limits: ServerLimits):
        self._receive, self._send, self.limits = receive, send, limits
        self.size, self.whole = 0, False
        self.status = GONE
        self.stuck = False
        self.until = asyncio.get_running_loop().time() + limits.timeout

    async def receive(self) -> Message:
        if self.whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self.until):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {self.limits.timeout:g} s", headers={"Connection": "close"}) from None
        if message["type"] == "http.request":
            self.size += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
            if self.size > self.limits.max_body:
                raise too_large(self.limits.max_body)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        try:
            async with asyncio.timeout(self.limits.timeout):
                await self._send(message)
        except TimeoutError:
            self.stuck, self.status = True, GONE
            raise
