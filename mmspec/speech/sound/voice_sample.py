"""A recording whose voice a model imitates."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmspec.speech.sound.audio import at_rate, check_sound
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
        ValueError: for samples that are empty, not finite or of several channels, or for a rate below 1.
    """

    samples: Tensor
    rate: int
    text: str | None = None

    def __post_init__(self):
        if self.samples.dim() != 1 or not len(self.samples) or not torch.isfinite(self.samples).all():
            raise ValueError(f"a voice's samples have shape {list(self.samples.shape)}: give one finite number or more, one channel [S]")
        if self.rate < 1:
            raise ValueError(f"a voice's rate is {self.rate}: give its samples a second, such as 24000")

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
            ValueError: if it holds no sound.
        """
        import soundfile

        check_sound(path)
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        return VoiceSample(torch.from_numpy(samples).mean(1), int(rate), text)

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
