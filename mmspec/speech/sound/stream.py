"""Sound from committed steps as they come. A piece is given out only when every step it rests on is committed: never taken back."""

from collections.abc import Iterator
from typing import Any, Protocol

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
