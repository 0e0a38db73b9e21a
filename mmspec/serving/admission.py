"""Which requests have a place, and which of those that wait starts next."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from itertools import count

from mmspec.serving.handle import RequestHandle
from mmspec.serving.models.base import may_begin

SHORT = 64
"""Largest `size` of a request that may take a row kept for short ones."""


class Places:
    """The places of a model: requests that run and that wait.

    Half of the places are kept for `clients`, the same number for each, so that no client can take all of them; the others are for whoever
    comes first.

    Args:
        total: all places.
        clients: those that places are kept for; none are kept for a single one.
    """

    def __init__(self, total: int, clients: Collection[Hashable] = ()):
        self.total, self.clients = total, tuple(clients)
        self.kept = total // (2 * len(self.clients)) if len(self.clients) > 1 else 0

    def free(self, holders: Iterable[Hashable], client: Hashable, total: int | None = None) -> bool:
        """Return True if a client may have one more place.

        Args:
            holders: the client of every request that has one.
            client: who asks.
            total: all places, where they depend on the request.
        """
        held = Counter(holders)
        others = sum(max(0, self.kept - held[each]) for each in self.clients if each != client)
        return held.total() + others < (self.total if total is None else total)


class RequestQueue:
    """The requests of an engine. Not safe under threads by itself.

    The one with the largest priority starts first; of equal ones that with the earliest due time. The due time of a request is that of its
    arrival plus its size, times the requests of its client that were here already, itself included; time is counted in tokens that a row
    has committed. So short requests overtake long ones, those of clients with few requests overtake those of clients with many, and none
    waits without end: what comes later than the due time of a request starts after it.

    Args:
        rows: requests that may run.
        waiting: requests that may wait; a request for which no row is free yet has one of rows + waiting places.
        short_rows: further rows, which requests of a size above `SHORT` leave free.
        clients: those that places are kept for, see `Places`.
    """

    def __init__(self, rows: int, waiting: int, short_rows: int = 0, clients: Collection[Hashable] = ()):
        self.rows, self.short_rows = rows, short_rows
        self.places = Places(rows + waiting, clients)
        self._waiting: list[tuple[tuple[int, float, int], RequestHandle]] = []
        self._begun: list[RequestHandle] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def active(self) -> int:
        """Requests that wait and are not cancelled."""
        return sum(not handle.cancelled for _, handle in self._waiting)

    def free(self, client: Hashable) -> bool:
        """Return True if a client may add a request.

        Args:
            client: whose request it is.
        """
        return self.places.free((handle.client for handle in self._here()), client)

    def add(self, handle: RequestHandle, now: float) -> None:
        """Add a request.

        Args:
            handle: the request.
            now: tokens that a row has committed since the start.
        """
        same = 1 + sum(each.client == handle.client for each in self._here())
        self._waiting.append(((-handle.priority, now + handle.work.size * same, next(self._numbers)), handle))

    def take(self, most: int | None) -> RequestHandle | None:
        """Remove the request that starts next, and return it; None if none may start.

        Args:
            most: as in `may_begin`.
        """
        self.settle()
        long = sum(handle.work.size > SHORT for handle in self._begun)
        may = [entry for entry in self._waiting if long < self.rows or entry[1].work.size <= SHORT]
        if not may:
            return None
        first = min(may, key=lambda entry: entry[0])
        if not may_begin(first[1].work, most):
            return None
        self._waiting.remove(first)
        self._begun.append(first[1])
        return first[1]

    def settle(self) -> bool:
        """Free the places of requests that have ended. True if there were some."""
        before = len(self._begun)
        self._begun = [handle for handle in self._begun if not handle.done]
        return len(self._begun) < before

    def drop_cancelled(self) -> list[RequestHandle]:
        """Remove the requests that wait and are cancelled, and return them."""
        gone = [handle for _, handle in self._waiting if handle.cancelled]
        if gone:
            self._waiting = [entry for entry in self._waiting if not entry[1].cancelled]
        return gone

    def clear(self) -> list[RequestHandle]:
        """Remove the requests that wait, and return them."""
        handles, self._waiting = [handle for _, handle in self._waiting], []
        return handles

    def _here(self) -> list[RequestHandle]:
        return [*(handle for handle in self._begun if not handle.done), *(handle for _, handle in self._waiting)]
