"""uvicorn's HTTP/1.1 protocol with a bound on the time that the head of a request takes: uvicorn itself waits for it without limit."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0
"""Seconds in which the request line and the headers have to arrive, from the connection or their first byte on."""


class BoundedHeadProtocol(H11Protocol):
    """Closes connections on which no request begins within `HEAD_SECONDS`."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request.

        Args:
            transport: the connection.
        """
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Take in bytes.

        Args:
            data: the bytes.
        """
        super().data_received(data)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait.

        Args:
            exc: why the connection has ended.
        """
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # a request is being answered
            self._stop_waiting()
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
