"""ASGI middleware in front of all endpoints: API keys, bounds of bodies, slow clients, and counts of what was answered."""

import asyncio
import hmac
import logging
from collections import Counter
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmspec.serving.http.bodies import SMALL, BodyBound
from mmspec.serving.http.errors import GONE, ApiError
from mmspec.serving.http.metrics import ServerMetrics
from mmspec.serving.http.options import ServerLimits, client_names
from mmspec.serving.http.protocol import CROWDED

_LOG = logging.getLogger("mmspec.serving")
OPEN = ("/health",)
"""Paths that need no key."""
ALWAYS = (*OPEN, "/metrics")
"""Paths that are answered however many connections there are."""
CLIENT = "mmspec.client"
"""Where the scope of a request holds the name of its client: of its API key if keys are asked for, else its address."""
_BODIES = 8  # so many largest bodies may be held at a time, and half of them for one client
_SOON = {"Retry-After": "1", "Connection": "close"}


class RequestGate:
    """Refuses requests without a key, bodies that are too large or too slow, and clients that do not read; counts the others.

    Args:
        app: the application behind it.
        limits: bounds of bodies and time.
        keys: accepted API keys; none means that no key is asked for.
        metrics: where answers are counted.
        bounds: what bodies may hold, by path.
        paths: the paths that are counted by name.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ServerLimits,
        keys: tuple[str, ...],
        metrics: ServerMetrics,
        bounds: Mapping[str, BodyBound],
        paths: frozenset[str],
    ):
        self.app, self.limits, self.metrics, self.bounds, self.paths = app, limits, metrics, bounds, paths
        self.keys = tuple(key.encode() for key in keys)
        self.names = client_names(keys)
        self.held: Counter[str] = Counter()  # bytes of bodies of requests under way, by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection, as ASGI says.

        Args:
            scope: facts of the connection.
            receive, send: its messages.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, path = asyncio.get_running_loop().time(), scope["path"]
        bound = self.bounds.get(path)
        passage = _Passage(receive, send, self, SMALL if bound is None else bound.size)
        try:
            refused = self._refused(scope, path, passage)
            if refused is not None:
                await refused.response()(scope, receive, passage.send)
            else:
                await self.app(scope, passage.receive, passage.send)
        except BaseException as error:
            why = error.__cause__ if isinstance(error.__cause__, ApiError) else error  # once an answer has begun
            if passage.begun and isinstance(why, ApiError):
                _LOG.warning("an answer of %s was cut off: %s", path, why.detail)  # and its connection is closed
            elif not passage.stuck:
                passage.status = 500 if isinstance(error, Exception) else passage.status
                raise
        finally:
            self.held[passage.client] -= passage.size
            endpoint = path if path in self.paths else "other"
            self.metrics.answered(endpoint, passage.status, asyncio.get_running_loop().time() - began)

    def _refused(self, scope: Scope, path: str, passage: "_Passage") -> ApiError | None:
        headers = Headers(scope=scope)
        passage.client = (scope.get("client") or ("",))[0]
        if self.keys:
            known = self._key(headers.get("authorization", ""))
            if known is None and path not in OPEN:
                message = "the API key is missing or wrong: send Authorization: Bearer KEY"
                return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer", "Connection": "close"})
            passage.client = passage.client if known is None else self.names[known]
        scope[CLIENT] = passage.client
        if scope.get("state", {}).get(CROWDED) and path not in ALWAYS:
            return ApiError(503, "there are too many connections: try again later", code="too_many_connections", headers=_SOON)
        length = headers.get("content-length", "0")
        if length.isdecimal():
            return passage.refused(int(length))
        return None

    def _key(self, header: str) -> int | None:
        """The number of the key in a header; None without one. The time of it does not depend on where keys differ."""
        scheme, _, given = header.partition(" ")
        raw = given.strip().encode("latin-1")  # the bytes that were sent
        found = [hmac.compare_digest(raw, key) for key in self.keys]
        return found.index(True) if scheme.lower() == "bearer" and any(found) else None


class _Passage:
    """`receive` and `send` of one request, within its limits."""

    def __init__(self, receive: Receive, send: Send, gate: RequestGate, most: int):
        self._receive, self._send, self.gate, self.most = receive, send, gate, most
        self.client = ""
        self.size, self.whole = 0, False
        self.status = GONE
        self.begun = self.stuck = False
        self.until = asyncio.get_running_loop().time() + gate.limits.timeout

    def refused(self, more: int) -> ApiError | None:
        """The error if `more` bytes of a body are too many: for the endpoint, for its client, or for the server."""
        if self.size + more > self.most:
            message = f"the body has more than {self.most} bytes, which is what this endpoint takes"
            return ApiError(413, message, code="too_large", headers={"Connection": "close"})
        held, all_bytes = self.gate.held, _BODIES * self.gate.limits.max_body
        if more and (held.total() + more > all_bytes or held[self.client] + more > all_bytes // 2):
            return ApiError(503, "the server holds as much of requests as it may: try again later", code="busy", headers=_SOON)
        return None

    async def receive(self) -> Message:
        if self.whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self.until):
                message = await self._receive()
        except TimeoutError:
            seconds = self.gate.limits.timeout
            raise ApiError(408, f"the body did not arrive within {seconds:g} s", headers={"Connection": "close"}) from None
        if message["type"] == "http.disconnect":
            raise ApiError(GONE, "the client has left before all of its body had arrived")
        if message["type"] == "http.request":
            more = len(message.get("body", b""))
            if (refused := self.refused(more)) is not None:
                raise refused
            self.size += more
            self.gate.held[self.client] += more
            self.whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.begun = message["status"], True
        try:
            async with asyncio.timeout(self.gate.limits.timeout):
                await self._send(message)
        except TimeoutError:
            self.stuck, self.status = True, GONE
            raise
