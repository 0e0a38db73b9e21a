"""Recordings before the generated frames of a delay pattern: the frames known whole, and the codes still to come of books that lag.

Where book 0 of a recording ends, book k has `delays[k]` codes left. They are the first ones of the generated frames, whatever the model
would draw there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.core.processors.history import History
from mmspec.speech.sampling.delay import forced


@dataclass(frozen=True)
class RecordedFrames:
    """What stands before the first generated frame of every row, and what of it is still to come.

    Args:
        frames: LongTensor [R, P, K], the decoder's prompts, padded on the left.
        mask: bool [R, P], the frames that are no padding.
        coming: LongTensor [R, D + 1, K], D the longest delay: the codes that the first generated frames hold, -1 where they are drawn.
    """

    frames: Tensor
    mask: Tensor
    coming: Tensor

    @staticmethod
    def of(rows: Sequence[Tensor], longest: int) -> "RecordedFrames":
        """Join rows of different lengths.

        Args:
            rows: for each row the steps [L, K] under the delay pattern, -1 for codes that are not known; see `delayed`.
            longest: the longest delay.

        Returns:
            The rows; a row's prompt ends where its book 0 does.
        """
        known = [int((row[:, 0] >= 0).sum()) for row in rows]
        most = max(known)
        frames = [F.pad(row[:count], (0, 0, most - count, 0)) for row, count in zip(rows, known, strict=True)]
        coming = [F.pad(row[count:], (0, 0, 0, longest + 1 - len(row) + count), value=-1) for row, count in zip(rows, known, strict=True)]
        mask = torch.arange(most) >= most - torch.tensor(known)[:, None]
        return RecordedFrames(torch.stack(frames), mask, torch.stack(coming))

    @property
    def twins(self) -> "RecordedFrames":
        """The rows followed by the same rows again."""
        return RecordedFrames(self.frames.repeat(2, 1, 1), self.mask.repeat(2, 1), self.coming.repeat(2, 1, 1))

    def to(self, device: torch.device) -> "RecordedFrames":
        """Return the rows on another device."""
        return RecordedFrames(self.frames.to(device), self.mask.to(device), self.coming.to(device))


def delayed(codes: Tensor, delays: Sequence[int], start: int) -> Tensor:
    """Lay a recording out under a delay pattern.

    Args:
        codes: LongTensor [T, K], its frames.
        delays: how many steps each book lags.
        start: what a book holds before its first code.

    Returns:
        Steps [T + 1 + D, K], D the longest delay; -1 behind a book's last code.
    """
    most = max(delays)
    books = [F.pad(F.pad(codes[:, book], (1 + lag, 0), value=start), (0, most - lag), value=-1) for book, lag in enumerate(delays)]
    return torch.stack(books, 1)


@dataclass(frozen=True)
class StillToCome:
    """The first frames hold the codes that a recording still has.

    Args:
        codes: LongTensor [B, D + 1, K], -1 where a code is drawn, as everywhere in the last step and behind it.
    """

    codes: Tensor
    frames: ClassVar[bool] = True

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        steps = history.position.clamp(max=self.codes.shape[1] - 1)
        codes = self.codes.gather(1, steps[..., None].expand(-1, -1, self.codes.shape[2]))
        return forced(scores, codes >= 0, codes)
