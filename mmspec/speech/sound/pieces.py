"""The pieces of sound that rounds complete, and when they came."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isnan
from statistics import pstdev
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mmspec.core.result import Result
from mmspec.speech.sound.speech import Speech
from mmspec.speech.sound.stream import SoundStream


class Sounds:
    """The sound of every row, decoded as rounds commit. The stream of a row is closed as soon as the row ends.

    Args:
        rate: samples a second.
        streams: the stream of every row.
        clock: `perf_counter()` when the call began.
    """

    def __init__(self, rate: int, streams: Sequence[SoundStream], clock: float):
        rows = len(streams)
        self.streams, self.pieces = list(streams), [[] for _ in range(rows)]
        self.rate = rate
        self.clock, self.seconds, self.open = clock, float("nan"), set(range(rows))
        self.first, self.worst = ([float("nan")] * rows for _ in range(2))
        self.times: list[list[float]] = [[] for _ in range(rows)]  # seconds from the call to every piece
        self.dry, self.underruns = [float("inf")] * rows, [0] * rows  # when a listener has heard all that there is, and how often that was

    def push(self, values: Sequence[Sequence[Any]], ended: Sequence[bool]) -> Iterator[tuple[int, Tensor]]:
        """Decode what a round committed.

        Args:
            values: the steps of every row.
            ended: True for rows that end with them.

        Yields:
            (row, piece) for every piece that it completes.
        """
        for row in sorted(self.open):
            yield from self._told(row, self.streams[row].push(list(values[row])))
            if ended[row]:
                yield from self._end(row)

    def close(self) -> Iterator[tuple[int, Tensor]]:
        """Close the streams of all rows."""
        for row in sorted(self.open):
            yield from self._end(row)
        self.seconds = perf_counter() - self.clock

    def _end(self, row: int) -> Iterator[tuple[int, Tensor]]:
        self.open.remove(row)
        yield from self._told(row, self.streams[row].close())

    @property
    def silent(self) -> bool:
        """True while a row that has not ended has given out nothing."""
        return any(not self.pieces[row] for row in self.open)

    def jitter(self, row: int) -> float:
        """Return the standard deviation of the seconds between the pieces of a row; nan with fewer than three pieces."""
        times = self.times[row]
        return float("nan") if len(times) < 3 else pstdev(after - before for before, after in pairwise(times))

    def speech(self, out: Result) -> Speech:
        """Return what was said so far.

        Args:
            out: the steps of all rows.
        """
        waves = [torch.cat(pieces) if pieces else torch.zeros(0) for pieces in self.pieces]
        return Speech(
            out.tokens, out.lengths, out.stats, waves, self.rate, self.first, self.worst, self.seconds,
            self.underruns, [self.jitter(row) for row in range(len(waves))], finish_reasons=out.finish_reasons,
        )  # fmt: skip

    def _told(self, row: int, pieces: Iterator[Tensor]) -> Iterator[tuple[int, Tensor]]:
        for piece in pieces:
            now = perf_counter() - self.clock
            if self.pieces[row]:
                self.worst[row] = max(now - self.times[row][-1], 0.0 if isnan(self.worst[row]) else self.worst[row])
            else:
                self.first[row] = now
            late = now > self.dry[row]
            self.underruns[row] += late
            self.dry[row] = (now if late or not self.pieces[row] else self.dry[row]) + len(piece) / self.rate
            self.times[row].append(now)
            self.pieces[row].append(piece)
            yield row, piece
