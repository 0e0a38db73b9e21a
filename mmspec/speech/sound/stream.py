"""Sound from committed steps as they come. A piece is given out only when every step it rests on is committed: never taken back."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class SoundStream(Protocol):
    """Sound from committed steps as they come. A piece is given out only when every step it rests on is committed: never taken back.

    The pieces of one row, put together, are what `SpeechModel.sound` makes of all its steps at once.
    """

    def push(self, steps: list[Any]) -> Iterator[Tensor]:
        """The pieces [samples] that `steps`, just committed, complete."""
        ...

    def close(self) -> Iterator[Tensor]:
        """Yield the remaining sound after the last step."""
        ...


class StereoStream:
    """Stream of two channels whose books take turns: samples [T, 2] from the streams of left (even books) and right (odd books).

    Args:
        left, right: a stream per channel, over frames of its own books, which give pieces of equal length.
    """

    def __init__(self, left: SoundStream, right: SoundStream):
        self.left, self.right = left, right

    def push(self, steps: list[Any]) -> Iterator[Tensor]:
        """Decode the next codes; see `SoundStream.push`."""
        sides = [[step[side::2] for step in steps] for side in (0, 1)]
        yield from _side_by_side(self.left.push(sides[0]), self.right.push(sides[1]))

    def close(self) -> Iterator[Tensor]:
        """Return what is left; see `SoundStream.close`."""
        yield from _side_by_side(self.left.close(), self.right.close())


def _side_by_side(left: Iterator[Tensor], right: Iterator[Tensor]) -> Iterator[Tensor]:
    for one, other in zip(left, right, strict=True):
        yield torch.stack([one, other], -1)


class AfterCodes:
    """Stream of a row whose codes follow others: all are decoded together, and the sound of those before is left out.

    Args:
        sound: the codec's stream.
        before: the codes before.
        samples: samples of a code.
    """

    def __init__(self, sound: SoundStream, before: Sequence[Any], samples: int):
        self.sound, self.before, self.left_out = sound, list(before), len(before) * samples

    def push(self, steps: list[Any]) -> Iterator[Tensor]:
        """Decode the next codes; see `SoundStream.push`."""
        before, self.before = self.before, []
        yield from self._behind(self.sound.push(before + steps))

    def close(self) -> Iterator[Tensor]:
        """Return what is left; see `SoundStream.close`."""
        yield from self._behind(self.sound.close())

    def _behind(self, pieces: Iterator[Tensor]) -> Iterator[Tensor]:
        for piece in pieces:
            rest = piece[self.left_out :]
            self.left_out = max(0, self.left_out - len(piece))
            if len(rest):
                yield rest
