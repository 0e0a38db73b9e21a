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
    logger: logging.Logger
    _head: asyncio.TimerHandle | None = None
    _waits_since = 0.0

    @classmethod
    def within(cls, limits: ServerLimits) -> type["BoundedProtocol"]:
        """Return the protocol of a server.

        Args:
            limits: bounds of connections.
        """
        return type(cls.__name__, (cls,), {"limits": limits})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request.

        Args:
            transport: the connection.
        """
        super().connection_made(transport)
        self.logger = _LOG
        self._waits_since = self.loop.time()
        self._wait_for_head()
        if not self._has_room():
            self.app_state: dict[str, Any] = {**self.app_state, CROWDED: True}

    def data_received(self, data: bytes) -> None:
        """Take in bytes.

        Args:
            data: the bytes.
        """
        super().data_received(data)
        if self.cycle is not None:
            self._waits_since = self.loop.time()
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait.

        Args:
            exc: why the connection has ended.
        """
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _idle(self) -> bool:
        """True while it waits for a request."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _address(self) -> str:
        return "" if self.client is None else self.client[0]

    def _has_room(self) -> bool:
        """Close a connection that waits, if this one is one too many; False if none does."""
        others = [each for each in self.connections if isinstance(each, BoundedProtocol) and not each.transport.is_closing()]
        counts = Counter(each._address for each in others)
        if counts[self._address] > self.limits.max_per_address:
            others = [each for each in others if each._address == self._address]
        elif len(others) <= self.limits.max_connections:
            return True
        idle = [each for each in others if each is not self and each._idle]
        if not idle:
            return False
        first = min(idle, key=lambda each: (-counts[each._address], each.cycle is not None, each._waits_since))
        first.transport.close()  # of the address with the most; rather one that never sent a request
        return True

    def _wait_for_head(self) -> None:
        if not self._idle:  # a request is being answered
            self._stop_waiting()
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
