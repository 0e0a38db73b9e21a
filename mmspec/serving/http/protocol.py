"""uvicorn's HTTP/1.1 protocol with bounds on connections, and on the time that the head of a request takes: uvicorn waits without limit."""

import asyncio
import logging
from collections import Counter
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from mmspec.serving.http.options import ServerLimits

_LOG = logging.getLogger("mmspec.serving.protocol")
_LOG.setLevel(logging.WARNING)
_LOG.addFilter(lambda record: "without completing response" not in record.getMessage())  # what is cut off, the gate tells
HEAD_SECONDS = 20.0
"""Seconds in which the request line and the headers have to arrive, from the connection or their first byte on."""
CROWDED = "mmspec.crowded"
"""In the state of a request's scope: its connection is one too many."""


class BoundedProtocol(H11Protocol):
    """Closes connections on which no request begins within `HEAD_SECONDS`, and earlier where there are too many.

    A new connection is never refused, so that `/health` can be asked for: the one that has waited longest for a request is closed for it.
    If all answer requests, requests on the new one are marked as `CROWDED`.
    """

    limits: ClassVar[ServerLimits] = ServerLimits()
    waiting: ClassVar[dict[str, dict["BoundedProtocol", None]]] = {}
    """By address the connections that wait for a request, in order."""
    counts: ClassVar[Counter[str]] = Counter()
    """By address all connections."""
    logger: logging.Logger
    _head: asyncio.TimerHandle | None = None

    @classmethod
    def within(cls, limits: ServerLimits) -> type["BoundedProtocol"]:
        """Return the protocol of one server.

        Args:
            limits: bounds of connections.
        """
        return type(cls.__name__, (cls,), {"limits": limits, "waiting": {}, "counts": Counter()})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request.

        Args:
            transport: the connection.
        """
        super().connection_made(transport)
        self.logger = _LOG
        self.counts[self._address] += 1
        if not self._has_room():
            self.app_state: dict[str, Any] = {**self.app_state, CROWDED: True}
        self._note()

    def data_received(self, data: bytes) -> None:
        """Take in bytes.

        Args:
            data: the bytes.
        """
        super().data_received(data)
        self._note()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait.

        Args:
            exc: why the connection has ended.
        """
        self._stop_waiting()
        self.counts[self._address] -= 1
        if not self.counts[self._address]:
            del self.counts[self._address]
        super().connection_lost(exc)

    @property
    def _address(self) -> str:
        return "" if self.client is None else self.client[0]

    def _has_room(self) -> bool:
        """Close a connection that waits, if this one is one too many; False if none does."""
        if self.counts[self._address] > self.limits.max_per_address:
            addresses = [self._address]
        elif self.counts.total() > self.limits.max_connections:
            addresses = [address for address, _ in self.counts.most_common()]
        else:
            return True
        first = next((each for address in addresses for each in self.waiting.get(address, ())), None)
        if first is not None:
            first._stop_waiting()
            first.transport.close()
        return first is not None

    def _note(self) -> None:
        """Begin to wait for a request, go on to, or stop to."""
        if self.cycle is not None and not self.cycle.response_complete:  # a request is being answered
            self._stop_waiting()
        elif self._head is None and not self.transport.is_closing():
            self.waiting.setdefault(self._address, {})[self] = None
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
            here = self.waiting[self._address]
            del here[self]
            if not here:
                del self.waiting[self._address]
