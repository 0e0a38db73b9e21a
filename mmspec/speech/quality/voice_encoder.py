"""Embeddings of voices, whose cosine says how alike two voices are (Wan et al. 2018, generalised end-to-end loss).

The network and what it reads are those of Resemblyzer 0.1.4 (Apache-2.0), whose wheel holds its weights; `speech/fetch_voice_encoder.py`
keeps them. The package itself is not installed: it depends on webrtcvad, which needs a C compiler and the removed `pkg_resources`. It cuts
long silences before it embeds; that step is left out here.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torchaudio.transforms import MelSpectrogram

from mmspec.speech.sound.audio import at_rate
from mmspec.utils.cache_folder import cache_folder
from mmspec.utils.weights import load_file

RATE = 16_000
BANDS, WIDTH, LAYERS = 40, 256, 3
_LEVEL = 10 ** (-30 / 20)  # root mean square that quieter sound is brought to
_HOP, _FRAMES, _STEP = 160, 160, 77  # samples of a frame; frames of a part, and from one part to the next
_COVERED = 0.75  # share of the last part that must be sound


class VoiceEncoder(nn.Module):
    """Maps speech to an embedding of its voice."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(BANDS, WIDTH, LAYERS, batch_first=True)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, mels: Tensor) -> Tensor:
        """Return unit embeddings [B, WIDTH] of spectrograms [B, frames, BANDS]."""
        _, (hidden, _) = self.lstm(mels)
        return nn.functional.normalize(self.linear(hidden[-1]).relu(), dim=-1)

    @torch.no_grad()
    def embed(self, wave: Tensor, rate: int) -> Tensor:
        """Return the unit embedding [WIDTH] of `wave` [T]: the mean of those of overlapping parts of 1.6 seconds."""
        wave = at_rate(wave.float(), rate, RATE)
        wave = wave * (_LEVEL / wave.square().mean().sqrt().clamp_min(1e-6)).clamp_min(1.0)
        size, frames = _FRAMES * _HOP, -(-(len(wave) + 1) // _HOP)
        starts = list(range(0, max(1, frames - _FRAMES + _STEP + 1), _STEP))
        if len(starts) > 1 and len(wave) - starts[-1] * _HOP < _COVERED * size:
            starts.pop()
        wave = nn.functional.pad(wave, (0, max(0, starts[-1] * _HOP + size - len(wave))))
        mel = _mel()(wave).T  # [frames, BANDS]
        return nn.functional.normalize(self(torch.stack([mel[start : start + _FRAMES] for start in starts])).mean(0), dim=0)

    @torch.no_grad()
    def embed_voice(self, waves: Sequence[Tensor], rate: int) -> Tensor:
        """Return the unit embedding [WIDTH] of a voice from several recordings."""
        return nn.functional.normalize(torch.stack([self.embed(wave, rate) for wave in waves]).mean(0), dim=0)

    @staticmethod
    def load(folder: Path | None = None) -> "VoiceEncoder":
        """Load the weights that `speech/fetch_voice_encoder.py` keeps.

        Args:
            folder: by default the one in the cache folder.

        Returns:
            The encoder, in eval mode.

        Raises:
            ValueError: if there are none.
        """
        path = (folder or kept_encoder()) / "model.safetensors"
        if not path.is_file():
            raise ValueError(f"{path.parent} holds no voice encoder: fetch it with mmspec recipe speech/fetch_voice_encoder.py")
        encoder = VoiceEncoder()
        encoder.load_state_dict(load_file(path))
        return encoder.eval()


def kept_encoder() -> Path:
    """Return the folder in the cache folder that `speech/fetch_voice_encoder.py` writes."""
    return cache_folder() / "models" / "voice-encoder"


@cache
def _mel() -> MelSpectrogram:
    return MelSpectrogram(RATE, n_fft=400, hop_length=_HOP, n_mels=BANDS, power=2.0, norm="slaney", mel_scale="slaney", pad_mode="constant")
