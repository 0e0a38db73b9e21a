"""Speech on the page: both generations of a text, their sound as it is committed."""

import base64
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

import torch
from torch import Tensor

from mmspec import minis
from mmspec.core.control import Fixed
from mmspec.core.records import Step
from mmspec.loading.speech import MINIS, Speaker
from mmspec.serving.ui.comparison import LiveComparison, LiveGeneration
from mmspec.serving.ui.marks import OWN, Marks
from mmspec.serving.ui.models import UiModel
from mmspec.serving.ui.rendering import Sameness, board
from mmspec.serving.ui.settings import draft_length_field, number_field, text_field, whole_field
from mmspec.speech.generation import synthesize
from mmspec.speech.sound.files import sound_bytes
from mmspec.speech.sound.speech import Speech

ACCEPT = ("exact", "match", "token", "block", "tolerance", "ssd", "membership")
"""Accept rules that the page offers."""
_MODEL_FREE = ("lookup", "suffix", "ngram", "recycling")
_BARS = 120  # of a waveform


class SpeechView:
    """The sound of a generation as far as it is committed.

    Args:
        rate: samples a second.
        pace: codes a second.

    Attributes:
        sound: data URI of the whole sound; None before the end.
        rate: samples a second.
    """

    def __init__(self, rate: int, pace: float):
        self.rate, self.pace = rate, pace
        self.sound: str | None = None
        self._pieces: list[Tensor] = []
        self._marks = Marks()

    def add(self, step: Step) -> None:
        """Take in a round.

        Args:
            step: the round.
        """
        self._marks.add(step)

    def add_sound(self, piece: Tensor) -> None:
        """Take in a piece of sound.

        Args:
            piece: float [T] samples; [T, 2] in stereo.
        """
        self._pieces.append(piece)

    def finish(self, out: Speech) -> None:
        """Take in the result.

        Args:
            out: the sound.
        """
        wave = out.waveforms[0]
        self.sound = f"data:audio/wav;base64,{base64.b64encode(sound_bytes(wave, out.sample_rate, 'wav')).decode()}"

    @property
    def samples(self) -> int:
        """Samples so far."""
        return sum(len(piece) for piece in list(self._pieces))

    @property
    def seconds(self) -> float:
        """Seconds of sound so far."""
        return self.samples / self.rate

    def bars(self, samples: int) -> list[tuple[float, str]]:
        """Return the waveform so far.

        Args:
            samples: samples that the whole width stands for.

        Returns:
            (height as a part of the highest, mark of the code that it begins in) of each bar.
        """
        if not (pieces := list(self._pieces)):
            return []
        wave = torch.cat(pieces).abs()
        wave = wave.amax(1) if wave.dim() > 1 else wave
        width, marks = max(1, ceil(samples / _BARS)), list(self._marks.marks)
        peak, found = max(float(wave.max()), 1e-3), []
        for start in range(0, len(wave), width):
            code = int(start / self.rate * self.pace)
            found.append((float(wave[start : start + width].max()) / peak, marks[code] if code < len(marks) else OWN))
        return found


@dataclass(frozen=True)
class SpeechSide:
    """The text-to-speech model of a page.

    Args:
        model: the model with its drafter.
    """

    model: UiModel

    @property
    def speaker(self) -> Speaker:
        """The model, its drafter and its examples."""
        return self.model.loaded

    @property
    def examples(self) -> list[list[str]]:
        """Texts to begin with, each with its voice if the model has voices."""
        found = self.speaker.examples
        texts, voices = found.get("texts", ()), found.get("voice", ())
        if self.voices and voices:
            return [[text, voice] for text, voice in zip(texts, voices, strict=True)]
        return [[text] for text in texts]

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the model's voices."""
        return tuple(getattr(self.speaker.model, "voices", ()))

    @property
    def temperature(self) -> float:
        """The model's own temperature."""
        return getattr(getattr(self.speaker.model, "sampling", None), "temperature", 1.0)

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters: the speaker's own, those of the mini, and those that need no model."""
        own = tuple(_shipped()) if self.speaker.name in MINIS else ()
        return tuple(dict.fromkeys((self.speaker.drafter_name, *own, *_MODEL_FREE)))

    def compare(
        self,
        text: Any,
        voice: Any,
        drafter: str,
        accept: str,
        draft_length: Any,
        temperature: Any,
        max_seconds: Any,
        seed: Any,
        slow: Any = 1,
    ) -> LiveComparison:
        """Return plain and speculative synthesis of a text, not yet run.

        Args:
            text: what to say.
            voice: one of `voices`; not read if there are none.
            drafter: one of `drafters`.
            accept: one of `ACCEPT`.
            draft_length: draft codes a round, or "auto".
            temperature, max_seconds, seed: as in `mmspec.speech.synthesize`.
            slow: how many times slower it is shown.

        Returns:
            The comparison.

        Raises:
            ValueError: for an invalid value, in one line. Others are refused by `mmspec.speech.synthesize` when it runs.
        """
        model, words = self.speaker.model, text_field("text", text, "write what to say")
        options: dict[str, Any] = {
            "temperature": number_field("temperature", temperature),
            "max_seconds": number_field("longest", max_seconds),
            "seed": whole_field("seed", seed),
            "voice": voice if self.voices else None,
        }
        length = draft_length_field("draft length", draft_length)
        control = Fixed(length) if isinstance(length, int) else length  # drafts from the first round, and not behind the first sound
        drafting = {"drafter": self._drafter(drafter), "accept": accept, "draft_length": control}
        plain: dict[str, Any] = {"drafter": None, "accept": "exact"}

        def say(more: dict[str, Any], view: SpeechView, on_step: Any) -> Speech:
            return synthesize(model, [words], on_sound=lambda _, piece: view.add_sound(piece), on_step=on_step, **(options | more))

        def view() -> SpeechView:
            return SpeechView(model.rate, getattr(model, "pace", 1.0))

        return LiveComparison(
            [
                LiveGeneration("plain", lambda view, on_step: say(plain, view, on_step), view, "plain"),
                LiveGeneration("speculative", lambda view, on_step: say(drafting, view, on_step), view, (drafter, accept)),
            ],
            number_field("slow motion", slow),
        )

    def board(self, comparison: LiveComparison, text: str) -> str:
        """Render both panes.

        Args:
            comparison: what `compare` returned.
            text: what is said.

        Returns:
            HTML.
        """
        whole = max(each.view.samples for each in comparison.generations)
        if not comparison.done:
            whole = max(whole, comparison.generations[0].view.rate)  # the first second has a scale of its own
        return board("speech.html", comparison, "codes", _sameness(comparison), whole=whole, width=_BARS, text=text)

    def _drafter(self, name: str) -> Any:
        """The drafter called `name`, as `synthesize` takes it."""
        if name == self.speaker.drafter_name:
            return self.speaker.drafter
        if name in _MODEL_FREE:
            return name
        if name not in self.drafters:
            raise ValueError(f"unknown drafter {name!r:.40}; valid: {', '.join(self.drafters)}")
        found, target = _shipped()[name], self.speaker.model.model
        getattr(found, "model", found).to(target.device, target.dtype)
        return found


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Any]:
    return minis.load("speech").drafters


def _sameness(comparison: LiveComparison) -> Sameness | None:
    if not comparison.done:
        return None
    plain, other = (each.out for each in comparison.generations)
    codes = [out.tokens[0, : out.lengths[0]].tolist() for out in (plain, other)]
    return Sameness(codes[0], codes[1], other.stats.exactness, "codes")
