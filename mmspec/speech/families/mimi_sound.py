"""Sound from frames of Mimi codes as they settle (Mimi: Defossez et al. 2024)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_BLOCKS = (4, 8, 16, 32)
"""Frames of the first pieces; the last number holds for all behind."""


class MimiStream:
    """Sound of one row, in blocks whose edges do not depend on how the frames came: the same frames give the same samples.

    The decoder is causal: a frame's samples rest on it and those before it, all of which a block runs again. transformers keeps keys and
    values of the decoder's attention between calls, but not what its convolutions saw, so there is nothing cheaper that is exact. Where
    the codec is not causal everything is given out by `close`.
    """

    def __init__(self, codec: Any):
        self.codec, self.frames, self.done, self.blocks = codec, [], 0, 0
        self.causal = codec.config.use_causal_conv

    def push(self, steps: list[list[int]]) -> Iterator[Tensor]:
        """The blocks that `steps`, frames of K codes, complete. ValueError for a code that the codec lacks."""
        self.frames += steps
        while self.causal and len(self.frames) >= self.done + self._block:
            yield self._sound(self.done + self._block)

    def close(self) -> Iterator[Tensor]:
        if len(self.frames) > self.done:
            yield self._sound(len(self.frames))

    @property
    def _block(self) -> int:
        return _BLOCKS[min(self.blocks, len(_BLOCKS) - 1)]

    @torch.no_grad()
    def _sound(self, until: int) -> Tensor:
        """What frames from `done` up to `until` add."""
        codes = torch.tensor(self.frames[:until], device=self.codec.device)
        size = self.codec.config.codebook_size
        if codes.max() >= size:
            frame, book = (codes >= size).nonzero()[0].tolist()
            code = int(codes[frame, book])
            raise ValueError(
                f"frame {frame} has code {code} in book {book}, but the codec has {size} codes a book: sample with a lower top_k"
            )
        wave = self.codec.decode(codes.T[None]).audio_values[0, 0]
        each = len(wave) // until
        first, self.done, self.blocks = self.done * each, until, self.blocks + 1
        return wave[first:].float().cpu()
