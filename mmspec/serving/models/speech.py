"""A speech model in an engine: what all requests share, and what is read of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.processors.by_row import RowPipelines
from mmspec.core.processors.history import Processor
from mmspec.core.stats import Stats
from mmspec.core.stopping import EndTest
from mmspec.models.guidance import GuidedRows, Pairs
from mmspec.models.target import HFTarget
from mmspec.run.arguments import check, public_call, shown
from mmspec.run.guidance import scale_of
from mmspec.run.request import Request
from mmspec.serving.models.base import PROMPT_COLUMNS, RequestOutput
from mmspec.serving.models.rows import RowsModel, by_rows, check_greedy, check_one_row, shared_rule
from mmspec.speech.families import speech_model
from mmspec.speech.families.base import SpeechModel
from mmspec.speech.generation import Staged
from mmspec.speech.preparation import (
    DRAWING,
    PreparedSpeech,
    changed_sampling,
    drafting_target,
    prepared_speech,
    prompts,
    speech_target,
    whole_target,
)
from mmspec.speech.sound.pieces import Sounds
from mmspec.speech.sound.speech import Speech
from mmspec.speech.sound.voice_sample import VoiceSample


@public_call
@dataclass(frozen=True)
class SpeechOptions:
    """The options of one request, as in `mmspec.speech.synthesize`.

    Args:
        seed: seed of the request.
        voice: one of the model's voices, or a recording; None for the first one.
        temperature, top_k, top_p, repetition_penalty, guidance, samplers: replace those of the model's own sampling.
        max_seconds: longest duration of the sound in seconds; None for what the model has room for.
    """

    seed: int = 0
    voice: str | VoiceSample | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    guidance: float | None = None
    samplers: Sequence[Processor] | None = None
    max_seconds: float | None = None


@dataclass(frozen=True)
class SpeechWork:
    """One request, checked.

    Args:
        text: its text, or what the model's processor returned for it.
        ready: the text as it is decoded.
        columns: columns of its prompt.
        options: its options.
        model: the model.
    """

    text: Any
    ready: PreparedSpeech
    columns: int
    options: SpeechOptions
    model: SpeechModel = field(repr=False)

    stops = ()
    together = True

    @property
    def seed(self) -> int:
        """The seed of its noise."""
        return self.options.seed

    @property
    def most(self) -> int:
        """Largest number of steps."""
        return self.ready.steps

    @property
    def size(self) -> int:
        """How long it may run; see `EngineWork.size`."""
        return self.most + self.columns // PROMPT_COLUMNS

    def output(self) -> "SpeechOutput":
        """Return what makes sound of its steps."""
        return SpeechOutput(Sounds(self.model.rate, self.ready.streams, perf_counter()), self.model.model.device)


class SpeechOutput(RequestOutput):
    """The sound of one request, decoded in the engine's thread as its steps are committed.

    Args:
        sounds: decodes them.
        device: device of the result.
    """

    def __init__(self, sounds: Sounds, device: torch.device):
        super().__init__(device)
        self.sounds = sounds

    def add(self, values: Sequence[Any], ended: bool) -> list[Tensor]:
        """Decode steps and return the pieces of sound [samples] that are final with them; see `RequestOutput.add`."""
        pieces = [piece for _, piece in self.sounds.push([values], [ended])]
        if ended:
            pieces += [piece for _, piece in self.sounds.close()]
        return pieces

    def result(self, tokens: Sequence[Any], stats: Stats) -> Speech:
        """Return what `mmspec.speech.synthesize` returns; seconds are counted from the submission."""
        return self.sounds.speech(super().result(tokens, stats))


@dataclass(frozen=True, kw_only=True)
class SynthesisModel(RowsModel):
    """A speech model and a drafter that serve many requests.

    Args:
        model: the speech model.
        request, rule, control, max_length, drafter: as in `RowsModel`.
    """

    options: ClassVar[type] = SpeechOptions
    model: SpeechModel
    _joins: Event = field(default_factory=Event, repr=False)  # set once a session was opened and its rows can join

    @staticmethod
    def of(target: Any, request: Request, max_length: int | None) -> "SynthesisModel":
        """Check a target and a drafter. Where the model reads "a" as a text, a session of both is opened, else by the first request.

        Args:
            target: a `SpeechModel`, or a transformers model that has an adapter which needs nothing else.
            request: what all requests share.
            max_length: most tokens of a prompt and its output; None for no bound but the model's.

        Returns:
            The model.

        Raises:
            ValueError: for models, drafters and rules whose rows cannot join a running generation.
        """
        model = speech_model(target)
        if isinstance(model, Staged):
            raise ValueError(
                f"{type(model).__name__} generates in a loop of its own, which no request can join: use mmspec.speech.synthesize"
            )
        rule = shared_rule(request)
        own = speech_target(model, _by_row(model, []), 1)
        resolved = request.resolve(own, rule, lambda drafter: drafting_target(drafter, own))
        found = SynthesisModel(
            model=model,
            request=request,
            rule=rule,
            control=by_rows(resolved.control),
            max_length=max_length,
            drafter=resolved.drafter,
        )
        try:
            work = found._work("a", SpeechOptions())
        except ValueError:  # it reads what its processor returned, or other letters
            return found
        found._check_rows(work)
        return found

    @property
    def ends(self) -> Sequence[int] | EndTest:
        """Steps that end a row, or a test for them."""
        return self.model.ends

    @property
    def forced(self) -> bool:
        """True for models whose processors end a row within its steps; see `RowsModel.forced`."""
        return self.model.forced

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.model.model.device

    def read(self, inputs: str | Mapping[str, Tensor], options: SpeechOptions) -> SpeechWork:
        """Check a request.

        Args:
            inputs: a text, or what the model's processor returned for one.
            options: its options.

        Returns:
            The request, checked.

        Raises:
            ValueError: for invalid arguments, in one line; by the first request also for models and drafters whose rows cannot join.
        """
        work = self._work(inputs, options)
        self._check_rows(work)
        return work

    def _work(self, inputs: Any, options: SpeechOptions) -> SpeechWork:
        if not isinstance(inputs, str | Mapping):
            raise ValueError(f"text is {shown(inputs)}: a request of an engine is one text; submit several one by one")
        check_one_row(options)
        check(guidance=options.guidance, samplers=options.samplers, voice=options.voice, max_seconds=options.max_seconds)
        Noise.from_seed([options.seed], 1)  # checks it
        drawing = {name: getattr(options, name) for name in DRAWING}
        sampling = self.model.drawn(changed_sampling(self.model.sampling, **drawing))
        self._check_guidance(sampling.guidance)
        check_greedy(self.rule, sampling.temperature)
        self._check_drawing(sampling.temperature)
        named = ("temperature", "top_k", "top_p", "repetition_penalty")
        shared = Request.of(**{name: getattr(sampling, name) for name in named})
        ready = prepared_speech(self.model, [inputs], options.voice, sampling, shared, self.rule, options.max_seconds)
        columns = self.model.family.prompt(self.model.model, ready.prompt)[0].shape[1]
        if self.max_length is not None and columns + ready.steps > self.max_length:
            raise ValueError(
                f"the prompt has {columns} columns, and {ready.steps} steps exceed the engine's {self.max_length}: lower max_seconds"
            )
        return SpeechWork(inputs, ready, columns, options, self.model)

    def _check_rows(self, work: SpeechWork) -> None:
        """ValueError where rows of a session cannot join; looked at once."""
        if not self._joins.is_set():
            self.open([work]).refuse_fixed_rows()
            self._joins.set()

    def target(self, works: Sequence[SpeechWork], reserve: int) -> HFTarget:
        """Return the target with the processors of some requests; see `RowsModel.target`."""
        return speech_target(self.model, _by_row(self.model, works), reserve)

    def prompt(self, works: Sequence[SpeechWork]) -> Any:
        """Return the prompts of some requests as one batch; see `RowsModel.prompt`."""
        if len(works) == 1:
            return works[0].ready.prompt
        found = prompts(self.model, [work.text for work in works], [work.options.voice for work in works])
        return self.model.paired(found) if works[0].ready.guided else found

    def whole(self, target: HFTarget) -> HFTarget | Pairs:
        """Return the target, or pairs of its rows under guidance."""
        return whole_target(target)

    def model_of(self, target: HFTarget) -> Callable[[Any], Any]:
        """Return what makes a drafting target of a speech model."""
        return lambda drafter: drafting_target(drafter, target)

    def _check_drawing(self, temperature: float) -> None:
        """ValueError where `synthesize` takes the likeliest codes at temperature 0, and the rule of this engine draws some of them."""
        if temperature == 0 and self.model.draws_always and not getattr(self.rule, "reads_raw", False):
            raise ValueError(
                f"temperature is {temperature}, but this engine draws the codes behind the first one of a frame: "
                "submit it to an engine with accept='greedy'"
            )

    def _check_guidance(self, scale: float | None) -> None:
        """ValueError where a request would have one row and the others pairs, or the other way round."""
        own = self.model.sampling.guidance
        if (scale_of(scale, "3") is None) != (scale_of(own, "3") is None):
            raise ValueError(
                f"guidance is {scale}, but the model's own is {own}, and the requests of an engine all have guidance or none: "
                "submit it to an engine whose model has another sampling"
            )


def _by_row(model: SpeechModel, works: Sequence[SpeechWork]) -> RowPipelines:
    """The processors of some requests of a model."""
    rows = RowPipelines(tuple(work.ready.processors for work in works))
    return rows if scale_of(model.sampling.guidance, "3") is None else GuidedRows.of(rows.rows)
