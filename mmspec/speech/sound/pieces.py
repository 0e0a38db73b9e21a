"""The pieces of sound that rounds complete, and when they came."""

from collections.abc import Iterator
from math import isnan
from time import perf_counter
from typing import Any

from torch import Tensor

from mmspec.core.records import Committed


class Sounds:
    """The sound of every row, decoded as rounds commit. The stream of a row is closed as soon as the row ends.

    Args:
        model: the speech model.
        rows: number of rows.
        clock: `perf_counter()` when the call began.
    """

    def __init__(self, model: Any, rows: int, clock: float):
        self.streams, self.pieces = [model.stream() for _ in range(rows)], [[] for _ in range(rows)]
        self.clock, self.seconds, self.open = clock, float("nan"), set(range(rows))
        self.first, self.last, self.worst = ([float("nan")] * rows for _ in range(3))

    def push(self, found: Committed) -> Iterator[tuple[int, Tensor]]:
        """Decode what a round committed.

        Args:
            found: the round.

        Yields:
            (row, piece) for every piece that it completes.
        """
        for row in sorted(self.open):
            yield from self._told(row, self.streams[row].push(found.values[row]))
            if found.ended[row]:
                yield from self._end(row)

    def close(self) -> Iterator[tuple[int, Tensor]]:
        """Close the streams of all rows."""
        for row in sorted(self.open):
            yield from self._end(row)
        self.seconds = perf_counter() - self.clock

    def _end(self, row: int) -> Iterator[tuple[int, Tensor]]:
        self.open.remove(row)
        yield from self._told(row, self.streams[row].close())

    def _told(self, row: int, pieces: Iterator[Tensor]) -> Iterator[tuple[int, Tensor]]:
        for piece in pieces:
            now = perf_counter() - self.clock
            if self.pieces[row]:
                self.worst[row] = max(now - self.last[row], 0.0 if isnan(self.worst[row]) else self.worst[row])
            else:
                self.first[row] = now
            self.last[row] = now
            self.pieces[row].append(piece)
            yield row, piece
