"""A small recogniser of a closed set of words, for scoring synthetic speech. Trained by `speech/train_recogniser.py`.

Convolutions over a log-mel spectrogram and connectionist temporal classification (Graves et al. 2006): a word or nothing every 20 ms.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torchaudio.functional import edit_distance

from mmspec.speech.sound.audio import logs, mel_spectrogram
from mmspec.utils.packing import read_bytes, save_bytes


@dataclass(frozen=True)
class RecogniserConfig:
    """Sizes of a recogniser."""

    words: tuple[str, ...]
    rate: int = 8000
    hop: int = 80
    window: int = 256
    bands: int = 40
    width: int = 96
    layers: int = 5


class Recogniser(nn.Module):
    """Words of waves."""

    def __init__(self, config: RecogniserConfig):
        super().__init__()
        self.config = config
        self.mel = mel_spectrogram(config.rate, hop=config.hop, window=config.window, points=config.window, bands=config.bands)
        self.enter = nn.Conv1d(config.bands, config.width, 5, stride=2, padding=2)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(config.width, config.width, 5, padding=2 * 2**depth, dilation=2**depth), nn.BatchNorm1d(config.width), nn.GELU()
            )
            for depth in (0, 1, 2, 3, 0)[: config.layers]
        )
        self.leave = nn.Conv1d(config.width, len(config.words) + 1, 1)

    def features(self, wave: Tensor) -> Tensor:
        """Log-mels [bands, frames] of `wave` [T], their mean taken off."""
        found = logs(self.mel(wave))
        return found - found.mean()

    def forward(self, features: Tensor) -> Tensor:
        """Scores [B, frames / 2, words + 1] of `features` [B, bands, frames]; the last one is nothing."""
        x = self.enter(features)
        for layer in self.layers:
            x = x + layer(x)
        return self.leave(x).transpose(1, 2)

    @torch.no_grad()
    def hear(self, wave: Tensor) -> str:
        """The likeliest words of `wave` [T], at the recogniser's rate: repeats taken together, nothings left out."""
        if len(wave) < self.config.window:
            return ""
        best = self(self.features(wave)[None])[0].argmax(-1).unique_consecutive().tolist()
        return " ".join(self.config.words[index] for index in best if index < len(self.config.words))

    def save(self, folder: Path) -> None:
        """Weights, matrices as bytes, and the words, each under a temporary name first."""
        weights = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("mel.")}
        save_bytes(weights, folder / "recogniser.safetensors")
        (folder / ".recogniser.tmp").write_text(json.dumps(asdict(self.config), indent=1) + "\n", encoding="utf-8")
        os.replace(folder / ".recogniser.tmp", folder / "recogniser.json")

    @staticmethod
    def load(folder: Path) -> "Recogniser":
        """Load what `save` wrote, in eval mode."""
        found = json.loads((folder / "recogniser.json").read_text(encoding="utf-8"))
        model = Recogniser(RecogniserConfig(**{**found, "words": tuple(found["words"])}))
        model.load_state_dict(read_bytes(folder / "recogniser.safetensors"), strict=False)
        return model.eval()


def word_errors(said: Sequence[str], heard: Sequence[str]) -> list[int]:
    """Words put in, left out or changed, for each pair of texts."""
    return [edit_distance(one.split(), other.split()) for one, other in zip(said, heard, strict=True)]
