"""`mmspec.speech.synthesize`: a text-to-speech model, faster, sounding the same."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mmspec.core.accept import Accept
from mmspec.core.control import Control
from mmspec.core.decode import generate as run
from mmspec.core.hf import HFTarget
from mmspec.core.limits import Limits
from mmspec.core.noise import Noise
from mmspec.core.processors import Pipeline, Processor
from mmspec.core.records import Step
from mmspec.core.stats import Stats
from mmspec.drafters.model import ModelDrafter
from mmspec.drafters.shapes import Chain
from mmspec.options import Tree, control_of, drafter_of, draw_for, laws_for, rule_of
from mmspec.speech.family import Sampling, SpeechModel, one_voice_each
from mmspec.speech.sound import save


@dataclass(frozen=True)
class Speech:
    """What was said. `tokens` are the steps of every row: ids, or frames of K codes."""

    waveforms: list[Tensor] = field(repr=False)  # [T] float32 each
    sample_rate: int
    tokens: Tensor = field(repr=False)  # [B, S] or [B, S, K], right-padded
    lengths: Tensor  # [B] steps, the end included
    stats: Stats
    first_sound: list[float]  # seconds from the call to each row's first piece of sound; nan where there was none
    seconds: float  # of the whole call, sound included

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of sound, over the whole batch."""
        return self.seconds * self.sample_rate / max(1, sum(map(len, self.waveforms)))

    def save(self, path: str | Path) -> list[Path]:
        """Write the sound: `path` itself for one utterance, else numbered beside it (out-0.wav, out-1.wav). Returns the paths written.

        The ending says the format: .wav, .flac or .ogg. Each file has a temporary name until it is whole.
        """
        path = Path(path)
        many = len(self.waveforms) > 1
        paths = [path.with_stem(f"{path.stem}-{row}") for row in range(len(self.waveforms))] if many else [path]
        for each, wave in zip(paths, self.waveforms, strict=True):
            save(each, wave, self.sample_rate)
        return paths


@torch.no_grad()
def synthesize(
    model: SpeechModel,
    texts: Sequence[str],
    drafter: Any = None,
    accept: str | Accept = "exact",
    seed: int | Sequence[int] = 0,
    *,
    voice: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    guidance: float | None = None,
    samplers: Sequence[Processor] | None = None,
    max_seconds: float | None = None,
    draft_length: int | str | Control = "auto",
    tree: Tree = None,
    on_sound: Callable[[int, Tensor], None] | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Speech:
    """Say `texts` with `model`, drafting with `drafter`.

    Args:
        model: a `SpeechModel`: the target of `mmspec.load("speech")`, or an adapter around a transformers model.
        texts: one an utterance.
        drafter, accept, draft_length, tree: as `mmspec.text.generate` takes them. "exact" is greedy at temperature 0, else "coupled":
            the very steps, and so the very samples, that plain sampling gives for the seed.
        seed: an int (row r gets seed + r) or one per row.
        voice: one of the model's `voices`, or one a text; its first where none is given.
        temperature, top_k, top_p, repetition_penalty, guidance: instead of the model's own `sampling`; 0, 0, 1, 1 and 1 mean none.
        samplers: processors behind all others, such as `mmspec.core.ras.RepetitionAware`, instead of the model's own.
        max_seconds: where to cut, at the latest; by default what the model has room for.
        on_sound: called with (row, samples) as soon as a piece of sound is settled for good. All pieces of a row make its waveform.
        on_step: sees every round.

    Raises:
        ValueError: for anything the request gets wrong, in one line that says how to mend it.
    """
    clock = perf_counter()
    sampling = _changed(model.sampling, temperature, top_k, top_p, repetition_penalty, guidance, samplers)
    rule = rule_of(accept, sampling.temperature)
    prompt = model.encode(texts, one_voice_each(voice, texts, model.voices))
    steps = _steps(model, max_seconds)
    laws = laws_for(rule, sampling.temperature, sampling.top_k, sampling.top_p, sampling.repetition_penalty, model.rules(prompt))
    laws = Pipeline((*laws.steps, *sampling.last))
    target = HFTarget(model.model, model.family, laws, reserve=min(steps + 32, 1024))
    guesser = drafter_of(_as_drafter(drafter, target, rule), target, rule, tree)
    limits = Limits(len(texts), steps, model.ends, device=model.model.device)
    sounds = _Sounds(model, len(texts), clock, on_sound)

    def seen(step: Step) -> None:
        sounds.push(step.settled.values)
        if on_step is not None:
            on_step(step)

    out = run(
        target,
        guesser,
        rule,
        prompt,
        limits=limits,
        noise=Noise.from_seed(seed, len(texts), model.model.device),
        control=control_of(draft_length, guesser),
        on_step=seen,
    )
    waves = sounds.close()
    return Speech(waves, model.rate, out.sequences, out.lengths, out.stats, sounds.first, perf_counter() - clock)


def _as_drafter(drafter: Any, target: HFTarget, rule: Accept) -> Any:
    """A speech model as a drafter: behind the target's own rules and samplers. Anything else as it is."""
    if not isinstance(drafter, SpeechModel):
        return drafter
    return ModelDrafter(replace(target, model=drafter.model, family=drafter.family), Chain(draw_for(rule)))


class _Sounds:
    """Every row's sound as its steps settle."""

    def __init__(self, model: SpeechModel, rows: int, clock: float, on_sound: Callable[[int, Tensor], None] | None):
        self.streams, self.pieces = [model.stream() for _ in range(rows)], [[] for _ in range(rows)]
        self.first, self.clock, self.on_sound = [float("nan")] * rows, clock, on_sound

    def push(self, values: list[list[Any]]) -> None:
        for row, steps in enumerate(values):
            if steps:
                self._keep(row, self.streams[row].push(steps))

    def close(self) -> list[Tensor]:
        for row, stream in enumerate(self.streams):
            self._keep(row, stream.close())
        return [torch.cat(pieces) if pieces else torch.zeros(0) for pieces in self.pieces]

    def _keep(self, row: int, pieces: Any) -> None:
        for piece in pieces:
            if not self.pieces[row]:
                self.first[row] = perf_counter() - self.clock
            self.pieces[row].append(piece)
            if self.on_sound is not None:
                self.on_sound(row, piece)


def _changed(sampling: Sampling, temperature, top_k, top_p, repetition_penalty, guidance, samplers) -> Sampling:
    given = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
        "guidance": guidance,
        "last": None if samplers is None else tuple(samplers),
    }
    return replace(sampling, **{name: value for name, value in given.items() if value is not None})


def _steps(model: SpeechModel, max_seconds: float | None) -> int:
    """Steps a row may take. ValueError for no time, or more than the model has room for."""
    if max_seconds is None:
        return model.longest or round(30 * model.pace)
    steps = int(max_seconds * model.pace)
    if steps < 1:
        raise ValueError(f"max_seconds is {max_seconds}: ask for at least {1 / model.pace:.3g}, one step of this model")
    if model.longest is not None and steps > model.longest:
        raise ValueError(f"max_seconds is {max_seconds}, but this model has room for {model.longest / model.pace:.3g}: ask for less")
    return steps
