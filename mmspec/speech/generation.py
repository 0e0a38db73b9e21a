"""`mmspec.speech.synthesize` and `stream`: a text-to-speech model, faster, sounding the same."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isnan
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.control import Control
from mmspec.core.decode import Drafter, committed, decode
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import Pipeline, Processor
from mmspec.core.records import Committed, Step
from mmspec.core.rules.base import Accept
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.models.guidance import Guided, Pairs
from mmspec.models.target import HFTarget
from mmspec.run.options import Tree, control_of, distributions_for, drafter_of, rule_of, shape_of
from mmspec.speech.families import speech_model
from mmspec.speech.families.base import SpeechModel, SpeechSampling, one_voice_each
from mmspec.speech.sound.speech import Speech


@runtime_checkable
class Staged(Protocol):
    """A speech model of several networks, one after the other, each with steps of its own (Bark): it says itself how they are run."""

    def synthesize(self, texts: Any, drafter: Any, accept: str | Accept, seed: int | Sequence[int], **options: Any) -> Speech:
        """As the function of that name, which calls it; of `options`, those that draw are None where the stages' own settings stand."""
        ...


def synthesize(
    model: Any,
    texts: Sequence[Any] | Mapping[str, Tensor],
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
        model: a `SpeechModel`: the target of `mmspec.load("speech")`, or an adapter around a transformers model; such a model itself,
            where its adapter needs nothing else.
        texts: one an utterance; or what the model's processor returned for a batch, where the adapter takes that.
        drafter, accept, draft_length, tree: as `mmspec.text.generate` takes them. "exact" is greedy at temperature 0, else "coupled":
            the very steps, and so the very samples, that plain sampling gives for the seed. For models of latents it is the token rule.
        seed: an int (row r gets seed + r) or one per row.
        voice: one of the model's `voices`, or one a text; its first where none is given.
        temperature, top_k, top_p, repetition_penalty, guidance: instead of the model's own `sampling`; 0, 0, 1, 1 and 1 mean none.
        samplers: processors behind all others, such as `mmspec.speech.sampling.ras.RepetitionAware`, instead of the model's own.
        max_seconds: where to cut, at the latest; by default what the model has room for.
        on_sound: called with (row, samples) as soon as a piece of sound is committed for good. All pieces of a row make its waveform.
        on_step: sees every round.

    Raises:
        ValueError: for anything the request gets wrong, in one line that says how to mend it.
        FloatingPointError: when the target's logits hold NaN or infinity, naming the row and the output position.
    """
    drawing = dict(zip(_DRAWING, (temperature, top_k, top_p, repetition_penalty, guidance, samplers), strict=True))
    model = speech_model(model)
    if isinstance(model, Staged):
        told = {"voice": voice, "max_seconds": max_seconds, "draft_length": draft_length, "tree": tree}
        return model.synthesize(texts, drafter, accept, seed, on_sound=on_sound, on_step=on_step, **told, **drawing)
    sampling = _changed(model.sampling, **drawing)
    saying = _Saying(model, texts, voice, sampling, drafter, accept, seed, max_seconds, draft_length, tree, on_step)
    for row, piece in saying:
        if on_sound is not None:
            on_sound(row, piece)
    return saying.speech


def stream(
    model: SpeechModel, text: str, drafter: Any = None, accept: str | Accept = "exact", seed: int = 0, **options: Any
) -> "SpeechStream":
    """The sound of `text`, piece by piece as it commits: nothing that was given out is taken back. `options` as `synthesize` takes them.

    A request that is wrong is told here, before the first piece. Raises as `synthesize` does.
    """
    if isinstance(model, Staged):
        raise ValueError(f"{type(model).__name__} has all its sound at the end, and nothing to give out before: use synthesize")
    drawing = {name: options.pop(name, None) for name in _DRAWING}
    return SpeechStream(
        _Saying(model, [text], sampling=_changed(model.sampling, **drawing), drafter=drafter, accept=accept, seed=seed, **options)
    )


class SpeechStream(Iterator[Tensor]):
    """Pieces of sound [samples], to be had one by one; together they are the waveform."""

    def __init__(self, saying: "_Saying"):
        self._saying, self._pieces = saying, iter(saying)

    def __next__(self) -> Tensor:
        return next(self._pieces)[1]

    @property
    def speech(self) -> Speech:
        """What was said so far; once the last piece is out, what `synthesize` returns. Its seconds count the reader's own time, too."""
        return self._saying.speech


class _Saying:
    """One call under way."""

    @torch.no_grad()
    def __init__(
        self,
        model: SpeechModel,
        texts: Any,
        voice: str | Sequence[str] | None = None,
        sampling: SpeechSampling | None = None,
        drafter: Any = None,
        accept: str | Accept = "exact",
        seed: int | Sequence[int] = 0,
        max_seconds: float | None = None,
        draft_length: int | str | Control = "auto",
        tree: Tree = None,
        on_step: Callable[[Step], None] | None = None,
    ):
        clock = perf_counter()
        sampling = model.sampling if sampling is None else sampling
        rule = rule_of(accept, sampling.temperature, sampling.top_k, sampling.top_p)
        prompt = model.encode(texts, one_voice_each(voice, texts, model.voices))
        steps = _steps(model, max_seconds)
        first = (*model.closing(steps), *model.rules(prompt))
        distributions = distributions_for(rule, sampling.temperature, sampling.top_k, sampling.top_p, sampling.repetition_penalty, first)
        distributions = Pipeline((*distributions.steps, *sampling.last))
        if _guides(sampling.guidance):
            distributions, prompt = model.guided(distributions.steps, sampling), model.paired(prompt)
        trees = getattr(model, "trees", True)  # of a user's own model, by its self-test
        own = HFTarget(model.model, model.family, distributions, reserve=min(steps + 32, 1024), trees=trees)
        target = _whole(own)
        proposer = _as_drafter(drafter, own, rule, tree)
        noise = Noise.from_seed(seed, len(texts), model.model.device)
        self.model, self.on_step, self.stats = model, on_step, Stats(exactness=rule.exactness)
        self.stopping = DefaultStopping(len(texts), steps, model.ends, device=model.model.device)
        self.sounds = _Sounds(model, len(texts), clock)
        self.rounds = decode(
            target, proposer, rule, prompt, stopping=self.stopping, noise=noise, control=control_of(draft_length, proposer)
        )

    @torch.no_grad()
    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """(row, piece of sound) as they commit."""
        for step in self.rounds:
            self.stats.add(step)
            yield from self.sounds.push(step.committed)
            if self.on_step is not None:
                self.on_step(step)
        yield from self.sounds.close()

    @property
    def speech(self) -> Speech:
        out, sounds = committed(self.stopping, self.stats), self.sounds
        waves = [torch.cat(pieces) if pieces else torch.zeros(0) for pieces in sounds.pieces]
        return Speech(waves, self.model.rate, out.sequences, out.lengths, out.stats, sounds.first, sounds.worst, sounds.seconds)


def _as_drafter(drafter: Any, target: HFTarget, rule: Accept, tree: Tree) -> Drafter:
    """The drafter that `drafter` stands for; a speech model drafts behind the target's own rules and samplers."""
    if not isinstance(drafter, SpeechModel):
        if isinstance(target.processors, Guided) and hasattr(drafter, "guide"):
            raise ValueError(f"{type(drafter).__name__} reads one row's states, guidance has two: draft with a speech model, or guidance=1")
        return drafter_of(drafter, target, rule, tree)
    return ModelDrafter(_whole(replace(target, model=drafter.model, family=drafter.family)), shape_of(tree, rule))


def _guides(scale: float | None) -> bool:
    """Is there anything to guide? ValueError for a scale that is none."""
    if scale is not None and not (isinstance(scale, (int, float)) and 0 <= scale < inf):
        raise ValueError(f"guidance is {scale!r}: a scale is a number from 0 on; 1 or None is no guidance, 3 is usual")
    return scale is not None and scale != 1


def _whole(target: HFTarget) -> HFTarget | Pairs:
    """The target the loop sees: one row where guidance makes one distribution of a pair."""
    return Pairs(target) if isinstance(target.processors, Guided) else target


class _Sounds:
    """Every row's sound as its steps commit; a row that has ended is closed at once, whatever the others do."""

    def __init__(self, model: SpeechModel, rows: int, clock: float):
        self.streams, self.pieces = [model.stream() for _ in range(rows)], [[] for _ in range(rows)]
        self.clock, self.seconds, self.open = clock, float("nan"), set(range(rows))
        self.first, self.last, self.worst = ([float("nan")] * rows for _ in range(3))

    def push(self, found: Committed) -> Iterator[tuple[int, Tensor]]:
        """(row, piece) for every piece that what was just committed completes."""
        for row in sorted(self.open):
            yield from self._told(row, self.streams[row].push(found.values[row]))
            if found.ended[row]:
                yield from self._end(row)

    def close(self) -> Iterator[tuple[int, Tensor]]:
        """Nothing follows in any row."""
        for row in sorted(self.open):
            yield from self._end(row)
        self.seconds = perf_counter() - self.clock

    def _end(self, row: int) -> Iterator[tuple[int, Tensor]]:
        self.open.remove(row)
        yield from self._told(row, self.streams[row].close())

    def _told(self, row: int, pieces: Iterator[Tensor]) -> Iterator[tuple[int, Tensor]]:
        for piece in pieces:
            now = perf_counter() - self.clock
            if self.pieces[row]:
                self.worst[row] = max(now - self.last[row], 0.0 if isnan(self.worst[row]) else self.worst[row])
            else:
                self.first[row] = now
            self.last[row] = now
            self.pieces[row].append(piece)
            yield row, piece


_DRAWING = ("temperature", "top_k", "top_p", "repetition_penalty", "guidance", "samplers")


def _changed(sampling: SpeechSampling, temperature, top_k, top_p, repetition_penalty, guidance, samplers) -> SpeechSampling:
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
        return model.longest or round(30 * model.pace) + model.lead
    steps = int(max_seconds * model.pace) + model.lead
    if steps < 1 + model.lead:
        raise ValueError(f"max_seconds is {max_seconds}: ask for at least {1 / model.pace:.3g}, one step of this model")
    if model.longest is not None and steps > model.longest:
        budget = (model.longest - model.lead) / model.pace
        raise ValueError(f"max_seconds is {max_seconds}, but this model has room for {budget:.3g}: ask for less")
    return steps
