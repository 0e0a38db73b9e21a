"""Many texts through one speech model: the worker of speech jobs, and what identifies such a job."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor

from mmspec.core.rules.base import TOKEN_EXACT
from mmspec.core.stats import Stats
from mmspec.core.stopping import LENGTH
from mmspec.jobs.rows import continued
from mmspec.loading.speech import Speaker
from mmspec.run.request import Request
from mmspec.run.rules import rule_of
from mmspec.serving.models.speech import SpeechOptions, SynthesisModel
from mmspec.speech.families.base import one_voice_each
from mmspec.speech.generation import stream, synthesize
from mmspec.speech.sound.audio import at_rate
from mmspec.speech.sound.files import sound_bytes

COUNTED = ("tokens", "target_calls", "row_calls", "drafted", "accepted")


_SHARED = ("accept", "draft_length", "tree")  # options of all texts, the others are of each


class _Line(NamedTuple):
    """A text, its voice and its seed."""

    text: str
    voice: Any
    seed: int


@dataclass(frozen=True)
class Say:
    """Worker that writes a sound file for each record's "text", in its "voice" or else `voice`, with its "seed" or else seed + index.

    `options` go to `mmspec.speech.synthesize`. Sound is decoded row by row, so that its bytes do not depend on the batch. `rows` is the
    most texts that are said at a time, of batches that may be larger; None for whole batches. `continuous` lets texts join as others end,
    where model and drafter allow it; else, and where `rows` is None, batches begin and end together.
    """

    speaker: Speaker
    options: dict[str, Any]  # accept, draft_length, tree, temperature, max_seconds ...
    voice: str | None = None
    seed: int = 0
    form: str = "wav"
    rate: int | None = None  # samples a second, the model's own by default
    rows: int | None = None
    continuous: bool = True
    stats: Stats = field(default_factory=Stats)
    spent: dict[str, float] = field(default_factory=lambda: {"sound": 0.0, "work": 0.0, "cut": 0.0})  # seconds; texts

    def check(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the record. ValueError for a text that cannot be spoken, an unknown voice, or an invalid seed."""
        text, seed = record.get("text"), record.get("seed", 0)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ValueError(f"seed is {seed!r}: give a whole number, or leave it out")
        if not isinstance(text, str) or not text.strip():
            raise ValueError('no "text" with something in it')
        self.speaker.model.encode([text], one_voice_each([self._voice(record)], [text], self.speaker.model.voices))
        return record

    def __call__(self, batch: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Synthesize a batch of (index, record) and yield the bytes of each waveform with its record."""
        lines = [_Line(record["text"], self._voice(record), record.get("seed", self.seed + index)) for index, record in batch]
        own, joining = self.speaker.model.rate, None if self.rows is None or not self.continuous else self._model
        waves, begun = self._together(lines) if joining is None else self._joining(joining, lines), perf_counter()
        for (wave, reason), line, (_, record) in zip(waves, lines, batch, strict=True):
            self.spent["work"] += perf_counter() - begun
            self.spent["sound"] += len(wave) / own
            self.spent["cut"] += reason == LENGTH
            told = record | {"voice": line.voice, "seed": line.seed, "seconds": round(len(wave) / own, 6), "finish_reason": reason}
            yield sound_bytes(at_rate(wave, own, self.rate or own), self.rate or own, self.form), told
            begun = perf_counter()

    def _together(self, lines: Sequence[_Line]) -> Iterator[tuple[Tensor, str | None]]:
        """The waveforms and why they ended, from batches that begin and end together."""
        size = self.rows or max(1, len(lines))
        for part in (lines[first : first + size] for first in range(0, len(lines), size)):
            out = synthesize(
                self.speaker.model,
                [line.text for line in part],
                self.speaker.drafter,
                seed=[line.seed for line in part],
                voice=[line.voice for line in part],
                on_step=self.stats.add,
                **self.options,
            )
            self.stats.exactness = out.stats.exactness
            yield from zip(out.waveforms, out.finish_reasons, strict=True)

    def _joining(self, model: SynthesisModel, lines: Sequence[_Line]) -> Iterator[tuple[Tensor, str | None]]:
        """The waveforms and why they ended, from one generation that texts join and leave."""
        self.stats.exactness = model.rule.exactness
        own = {name: value for name, value in self.options.items() if name not in _SHARED}
        works = (model.read(line.text, SpeechOptions(line.seed, line.voice, **own)) for line in lines)
        return ((out.waveforms[0], out.finish_reasons[0]) for out in continued(model, works, self.rows or 1, self.stats.add))

    @cached_property
    def _model(self) -> SynthesisModel | None:
        """Target and drafter for continuous batching; None where rows cannot join a running generation: see `mmspec.Engine`."""
        shared = {name: self.options[name] for name in _SHARED if name in self.options}
        temperature = self.options.get("temperature", self.speaker.model.sampling.temperature)
        if temperature == 0 and shared.get("accept", "exact") == "exact":
            shared["accept"] = "greedy"
        try:
            found = SynthesisModel.of(self.speaker.model, Request.of(drafter=self.speaker.drafter, **shared), None)
            found.read(self._example, SpeechOptions(voice=self._voice({})))
        except ValueError:
            return None
        return found

    @property
    def _example(self) -> str:
        return next(iter(self.speaker.examples.get("texts", ())), "a")

    def _voice(self, record: dict[str, Any]) -> Any:
        return record.get("voice") or self.voice or next(iter(self.speaker.model.voices), None)

    @property
    def token_exact(self) -> bool:
        """True if the sound does not depend on drafter and draft length."""
        temperature = self.options.get("temperature", self.speaker.model.sampling.temperature)
        return rule_of(self.options.get("accept", "exact"), temperature).exactness == TOKEN_EXACT

    def rehearse(self) -> None:
        """Begin to synthesize an example, so that invalid options raise their ValueError before a job begins."""
        next(stream(self.speaker.model, self._example, self.speaker.drafter, voice=self._voice({}), **self.options), None)

    def measures(self) -> dict[str, float]:
        """Return the counts so far."""
        return {name: getattr(self.stats, name) for name in COUNTED} | {"drift": self.stats.drift or 0.0, **self.spent}


def speech_job_identity(work: Say) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (model, options): what the sounds of a job depend on beside the texts. Paths and devices are left out."""
    from mmspec.utils.fingerprints import config_digest, rest, weights

    model: Any = work.speaker.model
    found = {"target": weights(model.model), "config": config_digest(model.model.config), "everything else": rest(model, model.model)}
    names = ("temperature", "top_k", "top_p", "max_seconds")
    options: dict[str, Any] = {"sampling": repr(model.sampling)} | {name: work.options.get(name) for name in names}
    later = {name: work.options.get(name) for name in ("repetition_penalty", "guidance")}  # left out of jobs that do not have them
    options |= {name: value for name, value in later.items() if value is not None}
    options |= {"accept": work.options.get("accept", "exact"), "voice": work.voice, "seed": work.seed, "form": work.form, "rate": work.rate}
    if not work.token_exact:
        options |= {name: work.options.get(name) for name in ("draft_length", "tree")} | {"drafter": work.speaker.drafter_name}
        net = getattr(work.speaker.drafter, "model", work.speaker.drafter)
        found |= {"drafter": weights(net)} if hasattr(net, "state_dict") else {}
    return found, options
