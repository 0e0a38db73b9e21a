"""A small codec for speech: one code every 20 ms, and sound again from a stream of codes, a few at a time.

A patch is two frames of a log-mel spectrogram, and its code the nearest of K centres (k-means; a vector quantiser without gradients).
The decoder, causal convolutions with a short look-ahead, turns codes into magnitudes better than the centres themselves, as codes
around a patch tell much of what quantising it lost. Phases are found block by block (`sound.PhaseFinder`), so that sound
given out while codes still come is, sample for sample, the sound decoded from all of them.
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
from mmspec.utils.packed_files import read_bytes, save_bytes


@dataclass(frozen=True)
class PatchCodecConfig:
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
    overlap: int = 2  # patches behind a block that its last samples rest on

    @property
    def samples(self) -> int:
        """Samples of one code."""
        return self.hop * self.stack

    @property
    def look_ahead(self) -> int:
        """Codes that must be known behind one before its sound is."""
        return self.layers * self.ahead + self.overlap


class PatchCodec(nn.Module):
    """Codes [T] of a wave [T * samples] and back. Its decoder is trained by `speech/train_codec.py`."""

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
        """Log-mel patches [T, bands * stack] of `wave` [samples]; what is left of the last patch is filled with silence."""
        config = self.config
        count = max(1, -(-len(wave) // config.samples))
        wave = F.pad(wave, (0, count * config.samples - len(wave)))
        frames = logs(self.mel(wave))[:, : count * config.stack]  # [bands, frames]
        return frames.T.reshape(count, -1)

    def encode(self, wave: Tensor) -> Tensor:
        """Codes [T] of `wave` [samples]."""
        return torch.cdist(self.patches(wave), self.centres).argmin(1)

    # --- codes to sound -----------------------------------------------------------------------------------------------

    def magnitudes(self, codes: Tensor) -> Tensor:
        """Log-magnitudes [B, frames, bins] of `codes` [B, T]; code t tells of nothing beyond code t + layers * ahead."""
        config = self.config
        x = rearrange(self.centres[codes], "b t d -> b d t")
        for index, layer in enumerate(self.layers):
            padded = F.pad(x, (config.kernel - 1 - config.ahead, config.ahead))
            fresh = F.gelu(layer(padded))
            x = fresh if index == 0 else x + fresh
        return rearrange(self.leave(rearrange(x, "b d t -> b t d")), "b t (s f) -> b (t s) f", s=config.stack)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """The wave [T * samples] of `codes` [T]."""
        stream = self.stream()
        return torch.cat([*stream.push(codes.tolist()), *stream.close()]) if len(codes) else self.centres.new_zeros(0)

    def stream(self) -> "PatchStream":
        return PatchStream(self)

    def save(self, folder: Path) -> None:
        """Weights, matrices as bytes, and the sizes, each under a temporary name first."""
        save_bytes(
            {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("mel.")}, folder / "codec.safetensors"
        )
        (folder / ".codec.tmp").write_text(json.dumps(asdict(self.config), indent=1) + "\n", encoding="utf-8")
        os.replace(folder / ".codec.tmp", folder / "codec.json")

    @staticmethod
    def load(folder: Path) -> "PatchCodec":
        codec = PatchCodec(PatchCodecConfig(**json.loads((folder / "codec.json").read_text(encoding="utf-8"))))
        codec.load_state_dict(read_bytes(folder / "codec.safetensors"), strict=False)
        return codec.eval()


class PatchStream:
    """Sound from codes as they come: blocks of samples, each as soon as every code it rests on is known."""

    def __init__(self, codec: PatchCodec):
        config = self.config = codec.config
        self.codec, self.codes, self.done = codec, [], 0
        self.phases = PhaseFinder(hop=config.hop, window=config.window, points=config.window)

    def push(self, steps: list[int]) -> Iterator[Tensor]:
        """The blocks that the codes `steps` complete, [samples] each."""
        self.codes += steps
        while len(self.codes) >= self.done + self.config.block + self.config.look_ahead:
            yield self._block(self.config.block, self.config.overlap)

    def close(self) -> Iterator[Tensor]:
        """What is left once no code follows."""
        while self.done < len(self.codes):
            left = len(self.codes) - self.done
            count = min(self.config.block, left)
            yield self._block(count, min(self.config.overlap, left - count))

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
