"""SNAC (Siuzdak et al. 2024, arXiv 2410.14411): codes at several rates, decoded piece by piece; the codec of Orpheus.

A frame is one code of the slowest book and 2 and 4 of the others, in the order in which Orpheus writes them. The decoder is convolutional,
so a sample depends on a bounded number of frames on either side. It adds noise, which here is a function of a sample's place, so that the
same codes give the same sound, in pieces or at once.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.core.hashing import stream_bits, uniform
from mmspec.speech.codecs.parts import Layer, Local, Parts, layers_of
from mmspec.speech.codecs.streams import PartsStream
from mmspec.speech.sound.stream import SoundStream
from mmspec.utils.weights import own_memory

ORDER = ((0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (2, 2), (2, 3))
"""(book, place in the frame) of the 7 codes of a frame."""
STRIDES = [4, 2, 1]


class SnacCodec:
    """A `snac.SNAC` of three books: frames of 7 codes to samples, and back.

    Example:
        codec = SnacCodec(snac.SNAC.from_pretrained("hubertsiuzdak/snac_24khz"))

    Args:
        model: the codec's model.
        block: frames decoded together.

    Raises:
        ValueError: for models of other books, or with attention, which cannot be run piece by piece.
    """

    def __init__(self, model: Any, block: int = 2):
        if list(getattr(model, "vq_strides", ())) != STRIDES or model.attn_window_size is not None:
            raise ValueError(
                f"{type(model).__name__} is not the SNAC that Orpheus writes codes for: expected vq_strides {STRIDES} and no attention, "
                "as snac_24khz has"
            )
        if block < 1:
            raise ValueError(f"block is {block}: decode at least 1 frame at a time")
        self.model, self.block, self.first_block = model.eval(), block, block
        self.rate, self.size = int(model.sampling_rate), int(model.codebook_size)
        self.samples = int(model.hop_length) * STRIDES[0]
        ahead = Layer(STRIDES[0], 0, 0, STRIDES[0])
        self.parts = Parts(Local(self._latents, (ahead,)), lambda x, state: (x, state), Local(self._decode, layers_of(model.decoder)))

    @property
    def pace(self) -> float:
        """Frames a second."""
        return self.rate / self.samples

    def tensor(self, steps: Sequence[Sequence[int]]) -> Tensor:
        """Return frames of 7 codes, and the number of each frame, as LongTensor [1, 8, T]. ValueError for an unknown code."""
        codes = torch.as_tensor(steps, device=self._device)
        bad = (codes < 0) | (codes >= self.size)
        if bad.any():
            raise ValueError(f"code {int(codes[bad][0])} is none of the codec's {self.size}: check which ids of the model stand for codes")
        return torch.cat([codes, torch.arange(len(codes), device=codes.device)[:, None]], 1).T[None]

    def stream(self) -> SoundStream:
        """Open a stream that decodes codes to sound piece by piece."""
        return PartsStream(self, self.parts)

    @torch.no_grad()
    def decode(self, steps: Sequence[Sequence[int]]) -> Tensor:
        """Return all samples [S] of `steps`, decoded at once."""
        return self._decode(self._latents(self.tensor(steps))).flatten().float().cpu() if len(steps) else torch.zeros(0)

    @torch.no_grad()
    def encode(self, samples: Tensor) -> list[list[int]]:
        """Return the frames of 7 codes of a recording.

        Args:
            samples: float [S] at `rate`.

        Returns:
            Frames, as many as it takes to cover the recording.
        """
        books = self.model.encode(samples.to(self._device)[None, None])
        parts = [book[0].reshape(-1, STRIDES[0] // stride) for book, stride in zip(books, STRIDES, strict=True)]
        return torch.stack([parts[book][:, place] for book, place in ORDER], 1).tolist()

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _latents(self, frames: Tensor) -> Tensor:
        """Latents [1, D + 1, 4 T] of frames [1, 8, T], the last channel the number of each."""
        books = [torch.stack([frames[:, at] for at, (of, _) in enumerate(ORDER) if of == book], -1).flatten(1) for book in range(3)]
        found = self.model.quantizer.from_codes(books)
        first = frames[:, -1:] * STRIDES[0]
        numbers = (first[..., None] + torch.arange(STRIDES[0], device=first.device)).flatten(2)
        return torch.cat([found, numbers.to(found)], 1)

    def _decode(self, latents: Tensor) -> Tensor:
        """Samples [1, 1, S] of latents [1, D + 1, T], with the noise of their places."""
        x, first, layer = latents[:, :-1], int(latents[0, -1, 0]), 0
        for part in self.model.decoder.model:
            for inner in _members(part):
                if isinstance(inner, torch.nn.ConvTranspose1d):
                    first *= inner.stride[0]
                if type(inner).__name__ == "NoiseBlock":
                    x, layer = x + _noise(layer, first, x) * inner.linear(x), layer + 1  # pyright: ignore[reportCallIssue]
                else:
                    x = inner(x)
        return x


def load_snac(place: str | Path, block: int = 2) -> SnacCodec:
    """Load a SNAC from a folder (config.json and pytorch_model.bin) or hub name.

    Args:
        place: folder or hub name.
        block: frames decoded together.

    Returns:
        The codec.

    Raises:
        ValueError: without the package snac, or for another model.
    """
    if find_spec("snac") is None:
        raise ValueError("SNAC's codes are decoded by its own package: pip install 'mmspec[snac]'")
    from snac import SNAC

    return SnacCodec(own_memory(SNAC.from_pretrained(str(place))), block)


def _members(part: Any) -> Sequence[Any]:
    """The members of a block that samples up; of any other layer, itself."""
    inner = getattr(part, "block", ())
    return inner if any(isinstance(each, torch.nn.ConvTranspose1d) for each in inner) else (part,)


def _noise(layer: int, first: int, like: Tensor) -> Tensor:
    """Standard normal numbers [1, 1, T] of the places `first` and on, at the rate of `layer`."""
    places = first + torch.arange(like.shape[-1], device=like.device)
    angle, radius = (uniform(stream_bits(torch.tensor(2 * layer + half, device=like.device), places)) for half in (0, 1))
    return ((-2 * radius.log()).sqrt() * (2 * torch.pi * angle).cos())[None, None].to(like)
