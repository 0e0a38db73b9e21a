"""Streams of sound: whole, block by block, and for codecs given as a function."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.speech.codecs.parts import BLOCK, FIRST_BLOCK, Layer, Local, Parts
from mmspec.speech.sound.stream import SoundStream


class WholeStream:
    """Stream of codecs that need every code first: all sound comes at the end."""

    def __init__(self, decode: Callable[[list[Any]], Tensor]):
        self.decode, self.steps = decode, []

    def push(self, steps: list[Any]) -> Iterator[Tensor]:
        """Decode the next codes and return the sound they complete."""
        self.steps += steps
        return iter(())

    def close(self) -> Iterator[Tensor]:
        """Return what is left of the stream; see `SoundStream.close`."""
        if self.steps:
            yield self.decode(self.steps)


class PartsStream:
    """Sound block by block. `codec` gives the sizes `first_block` and `block` and converts codes to a tensor. The blocks depend on the
    codes only.
    """

    def __init__(self, codec: Any, parts: Parts):
        self.codec, self.parts = codec, parts
        self.steps: list[Any] = []
        self.blocks = self.entered = self.left = 0  # blocks run, latents made, samples given out
        self.state: Any = None
        self.hidden: Tensor | None = None  # [1, D, n] latents behind the memory

    def push(self, steps: list[Any]) -> Iterator[Tensor]:
        """Yield the pieces that `steps` complete."""
        self.steps += steps
        while len(self.steps) >= self._stop(self.blocks + 1):
            self.blocks += 1
            yield from self._advance(self._stop(self.blocks), closed=False)

    def _stop(self, blocks: int) -> int:
        """Return the number of codes of the first `blocks` blocks."""
        return min(self.codec.first_block, self.codec.block) + (blocks - 1) * self.codec.block

    def close(self) -> Iterator[Tensor]:
        """Yield the remaining sound."""
        if self.steps:
            yield from self._advance(len(self.steps), closed=True)

    @torch.no_grad()
    def _advance(self, known: int, closed: bool) -> Iterator[Tensor]:
        """Yield the sound that the first `known` codes determine beyond what was returned before."""
        enter, leave = self.parts.enter, self.parts.leave
        stop = enter.stop(known, closed)
        if stop > self.entered:
            new, self.state = self.parts.carry(enter.window(self.codec.tensor(self.steps[:known]), self.entered, stop), self.state)
            self.hidden = new if self.hidden is None else torch.cat([self.hidden, new], -1)
            self.entered = stop
        if self.hidden is None:
            return
        stop = leave.stop(self.entered, closed)
        if stop > self.left:
            yield leave.window(self.hidden, self.left, stop).flatten().float().cpu()
            self.left = stop


@dataclass(frozen=True)
class WindowCodec:
    """Any codec as a function: `decode` maps frames [n, K] to `samples` samples each, [n * samples].

    Args:
        decode: maps frames [n, K] to samples [n * samples].
        rate: samples a second.
        samples: samples per frame.
        behind: frames before a frame that its sound depends on; None for all of them, and then all sound comes at the end.
        ahead: frames after a frame that its sound depends on.
        block: frames decoded together.
        first_block: frames of the first block, so that sound begins sooner.
        size: number of values of a code.
    """

    decode: Callable[[Tensor], Tensor]
    rate: int
    samples: int
    behind: int | None = None
    ahead: int = 0
    block: int = BLOCK
    size: int | None = None
    first_block: int = FIRST_BLOCK

    @property
    def pace(self) -> float:
        """Frames a second."""
        return self.rate / self.samples

    def stream(self) -> SoundStream:
        """Open a stream that decodes codes to sound piece by piece."""
        if self.behind is None:
            return WholeStream(lambda steps: self.decode(torch.tensor(steps)).flatten().float().cpu())
        return PartsStream(self, self._parts(self.behind))

    def tensor(self, steps: Sequence[Any]) -> Tensor:
        """Return `steps` as codes [1, K, T]."""
        codes = torch.as_tensor(steps)
        return (codes[:, None] if codes.dim() == 1 else codes).T[None]

    def _parts(self, behind: int) -> Parts:
        run = lambda codes: self.decode(codes[0].T).reshape(1, 1, -1)  # noqa: E731
        near = Layer(behind + self.ahead + 1, behind, self.ahead)
        return Parts(Local(lambda codes: codes), lambda x, state: (x, state), Local(run, (near, Layer(self.samples, 0, 0, self.samples))))
