"""A recording whose voice a model imitates."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmspec.speech.sound.audio import at_rate, read_sound_and_rate
from mmspec.speech.sound.files import check_rate
from mmspec.utils.strict import strict


@strict
@dataclass(frozen=True)
class VoiceSample:
    """A recording whose voice a model imitates, given as `voice` to `mmspec.speech.synthesize`.

    Example:
        voice = VoiceSample.read("me.wav", "The words said in the recording.")

    Args:
        samples: the recording, float [S].
        rate: samples a second.
        text: the words said in it; most models need them.

    Raises:
        ValueError: for samples that are empty, not finite or of several channels, or for a rate that is none of sound.
    """

    samples: Tensor
    rate: int
    text: str | None = None

    def __post_init__(self):
        if self.samples.dim() != 1 or not len(self.samples) or not torch.isfinite(self.samples).all():
            raise ValueError(f"a voice's samples have shape {list(self.samples.shape)}: give one finite number or more, one channel [S]")
        check_rate(self.rate, "a voice's rate")

    @staticmethod
    @strict
    def read(path: str | Path, text: str | None = None) -> "VoiceSample":
        """Read a sound file.

        Args:
            path: a WAV, FLAC, OGG or MP3 file; several channels are averaged.
            text: the words said in it.

        Returns:
            The recording at the file's own rate.

        Raises:
            FileNotFoundError: if the file does not exist.
            ValueError: if it cannot be read or holds no sound.
        """
        return VoiceSample(*read_sound_and_rate(path), text)

    def at(self, rate: int) -> Tensor:
        """Resample the recording.

        Args:
            rate: samples a second.

        Returns:
            Samples, float32 [S].
        """
        return at_rate(self.samples.float(), self.rate, rate)

    def said(self) -> str:
        """Say what is said in the recording.

        Returns:
            The words, without spaces around them.

        Raises:
            ValueError: if the recording was given without its words.
        """
        if not (self.text or "").strip():
            raise ValueError("the voice has no text: give VoiceSample the words said in it, which this model reads")
        return str(self.text).strip()
