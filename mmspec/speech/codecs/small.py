"""A small speech codec: one code every 20 ms, and sound from a stream of codes.

A patch is two frames of a log-mel spectrogram, and its code the nearest of K centres (k-means). The decoder, causal convolutions with a
short look-ahead, maps codes to magnitudes. Phases are found block by block (`sound.PhaseFinder`), so that streamed sound equals, sample
for sample, the sound decoded from all codes.
"""

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from mmspec.speech.sound.audio import PhaseFinder, logs, mel_spectrogram
from mmspec.utils.packing import read_bytes, save_bytes


@dataclass(frozen=True)
class PatchCodecConfig:
    """Sizes of a `PatchCodec`."""

    rate: int = 8000
    hop: int = 80
    window: int = 256  # samples of a frame, and points of its transform
    bands: int = 64
    stack: int = 2  # frames of a patch
    codes: int = 1024
    width: int = 96
    layers: int = 4
    kernel: int = 5
    ahead: int = 1  # patches each layer looks ahead
    block: int = 8  # patches whose phases are found together
    first_block: int = 2  # of the first block, so that sound begins sooner
    overlap: int = 2  # patches behind a block that its last samples rest on

    @property
    def samples(self) -> int:
        """Samples of one code."""
        return self.hop * self.stack

    @property
    def look_ahead(self) -> int:
        """Number of later codes that the sound of a code depends on."""
        return self.layers * self.ahead + self.overlap


class PatchCodec(nn.Module):
    """Maps a wave [T * samples] to codes [T] and back. Its decoder is trained by `speech/train_codec.py`."""

    centres: Tensor  # [codes, bands * stack]

    def __init__(self, config: PatchCodecConfig):
        super().__init__()
        self.config = config
        self.mel = mel_spectrogram(config.rate, hop=config.hop, window=config.window, points=config.window, bands=config.bands)
        self.register_buffer("centres", torch.zeros(config.codes, config.bands * config.stack))
        sizes = [config.bands * config.stack] + [config.width] * config.layers
        self.layers = nn.ModuleList(nn.Conv1d(a, b, config.kernel) for a, b in itertools.pairwise(sizes))
        self.leave = nn.Linear(config.width, (config.window // 2 + 1) * config.stack)

    # --- sound to codes -----------------------------------------------------------------------------------------------

    def patches(self, wave: Tensor) -> Tensor:
        """Return log-mel patches [T, bands * stack] of `wave` [samples]; the last patch is filled up with silence."""
        config = self.config
        count = max(1, -(-len(wave) // config.samples))
        wave = F.pad(wave, (0, count * config.samples - len(wave)))
        frames = logs(self.mel(wave))[:, : count * config.stack]  # [bands, frames]
        return frames.T.reshape(count, -1)

    def encode(self, wave: Tensor) -> Tensor:
        """Return codes [T] of `wave` [samples]."""
        return torch.cdist(self.patches(wave), self.centres).argmin(1)

    # --- codes to sound -----------------------------------------------------------------------------------------------

    def magnitudes(self, codes: Tensor) -> Tensor:
        """Return log-magnitudes [B, frames, bins] of `codes` [B, T]; code t depends on no code beyond t + layers * ahead."""
        config = self.config
        x = rearrange(self.centres[codes], "b t d -> b d t")
        for index, layer in enumerate(self.layers):
            padded = F.pad(x, (config.kernel - 1 - config.ahead, config.ahead))
            fresh = F.gelu(layer(padded))
            x = fresh if index == 0 else x + fresh
        return rearrange(self.leave(rearrange(x, "b d t -> b t d")), "b t (s f) -> b (t s) f", s=config.stack)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Return the wave [T * samples] of `codes` [T]."""
        stream = self.stream()
        return torch.cat([*stream.push(codes.tolist()), *stream.close()]) if len(codes) else self.centres.new_zeros(0)

    def stream(self) -> "PatchStream":
        """Open a stream that decodes codes to sound piece by piece."""
        return PatchStream(self)

    def save(self, folder: Path) -> None:
        """Write weights, matrices as bytes, and the sizes, atomically."""
        save_bytes(
            {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("mel.")}, folder / "codec.safetensors"
        )
        (folder / ".codec.tmp").write_text(json.dumps(asdict(self.config), indent=1) + "\n", encoding="utf-8")
        os.replace(folder / ".codec.tmp", folder / "codec.json")

    @staticmethod
    def load(folder: Path) -> "PatchCodec":
        """Load what `save` wrote, in eval mode."""
        codec = PatchCodec(PatchCodecConfig(**json.loads((folder / "codec.json").read_text(encoding="utf-8"))))
        codec.load_state_dict(read_bytes(folder / "codec.safetensors"), strict=False)
        return codec.eval()


class PatchStream:
    """Streamed sound: blocks of samples, each as soon as every code it depends on is known."""

    def __init__(self, codec: PatchCodec):
        config = self.config = codec.config
        self.codec, self.codes, self.done = codec, [], 0
        self.phases = PhaseFinder(hop=config.hop, window=config.window, points=config.window)

    def push(self, steps: list[int]) -> Iterator[Tensor]:
        """Yield the blocks [samples] that the codes `steps` complete."""
        self.codes += steps
        while len(self.codes) >= self.done + self._size + self.config.look_ahead:
            yield self._block(self._size, self.config.overlap)

    def close(self) -> Iterator[Tensor]:
        """Yield the remaining sound."""
        while self.done < len(self.codes):
            left = len(self.codes) - self.done
            count = min(self._size, left)
            yield self._block(count, min(self.config.overlap, left - count))

    @property
    def _size(self) -> int:
        """Codes of the next block."""
        return self.config.block if self.done else min(self.config.first_block, self.config.block)

    @torch.no_grad()
    def _block(self, count: int, ahead: int) -> Tensor:
        config = self.config
        first = max(0, self.done - config.layers * (config.kernel - 1))  # as far back as the convolutions see
        known = self.codes[first : self.done + count + config.look_ahead]
        logs = self.codec.magnitudes(torch.tensor([known], device=self.codec.centres.device))[0]
        start = (self.done - first) * config.stack
        frames = logs[start : start + (count + ahead) * config.stack].cpu().exp().T
        self.done += count
        return self.phases.push(frames, count * config.stack)
