"""`mmspec.speech.synthesize` and `stream`: text-to-speech by speculative decoding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.control import Control
from mmspec.core.decode import OnStep, run
from mmspec.core.noise import Noise
from mmspec.core.processors.history import Processor
from mmspec.core.result import committed
from mmspec.core.rules.base import TOKEN_EXACT, Accept
from mmspec.core.stats import Stats
from mmspec.run.arguments import check, check_drafted, public_call, shown
from mmspec.run.request import Request, refuse
from mmspec.run.shapes import Tree, longest_draft
from mmspec.speech.families import speech_model
from mmspec.speech.families.base import SpeechModel, SpeechSampling
from mmspec.speech.preparation import (
    DRAWING,
    changed_sampling,
    drafting_target,
    prepared_speech,
    speech_stopping,
    speech_target,
    whole_target,
)
from mmspec.speech.sound.pieces import Sounds
from mmspec.speech.sound.speech import Speech
from mmspec.speech.sound.voice_sample import VoiceSample
from mmspec.speech.speech_stream import SentenceStream, SpeechStream
from mmspec.utils.renamed import once_positional


@runtime_checkable
class Staged(Protocol):
    """A speech model of several networks that run one after the other, such as Bark. It has its own `synthesize`."""

    def synthesize(self, texts: Any, drafter: Any, accept: str | Accept, seed: int | Sequence[int], **options: Any) -> Speech:
        """As `mmspec.speech.synthesize`, which calls it.

        Args:
            texts, drafter, accept, seed: as `mmspec.speech.synthesize` takes them.
            options: the other arguments of `mmspec.speech.synthesize`. A sampling setting is None where the stages' own settings apply.

        Returns:
            The sound, tokens and statistics.
        """
        ...


@once_positional(("drafter", "accept", "seed"))
@public_call
def synthesize(
    model: Any,
    texts: Sequence[Any] | Mapping[str, Tensor],
    drafter: Any = None,
    *,
    accept: str | Accept = "exact",
    draft_length: int | str | Control = "auto",
    tree: Tree = None,
    seed: int | Sequence[int] = 0,
    temperature: float | Sequence[float] | None = None,
    top_k: int | Sequence[int] | None = None,
    top_p: float | Sequence[float] | None = None,
    repetition_penalty: float | Sequence[float] | None = None,
    guidance: float | None = None,
    samplers: Sequence[Processor] | None = None,
    voice: str | VoiceSample | Sequence[str | VoiceSample | None] | None = None,
    max_seconds: float | None = None,
    on_sound: Callable[[int, Tensor], None] | None = None,
    on_step: OnStep = None,
    capture: bool = False,
) -> Speech:
    """Synthesize speech from `texts` with `model`, drafting with `drafter`.

    Args:
        model: a `SpeechModel`: the target of `mmspec.load("speech")`, or an adapter around a transformers model; or such a model itself,
            if its adapter needs nothing else.
        texts: list of texts, one a row; or what the model's processor returned for a batch, if the adapter takes that.
        drafter, accept, draft_length, tree: as in `mmspec.text.generate`. "exact" is greedy at temperature 0, else "coupled": the same
            tokens, and so the same samples, as plain sampling with this seed. For models of latents it is the token rule.
        seed: an int (row r gets seed + r) or one per row.
        voice: one of the model's `voices` or a `VoiceSample`, a recording whose voice the model imitates; or one per row. The first of the
            model's voices by default.
        temperature, top_k, top_p, repetition_penalty, guidance: replace those of the model's `sampling`; 0, 0, 1, 1 and 1 mean none.
        samplers: processors applied after all others, such as `mmspec.speech.sampling.ras.RepetitionAware`; replace the model's own.
        max_seconds: longest duration of the sound in seconds; by default what the model has room for.
        on_sound: called with (row, samples [T]) as soon as a piece of sound is final. All pieces of a row make up its waveform. Under
            token-exact rules drafting begins when every row has given out its first piece, unless `draft_length` is a `Control`.
        on_step: called with every round.
        capture: fix all shapes and compile the target's scoring step and a drafter model's steps, as in `mmspec.text.generate`.

    Returns:
        `tokens` LongTensor [B, S, ...], right-padded; `lengths` LongTensor [B]; `waveforms`, one float [samples] per row, at
        `sample_rate` Hz; `first_sound`, `worst_gap`, `jitter` in seconds and `underruns`, one per row; `stats`.

    Raises:
        ValueError: for an invalid argument; the message says what to give instead.
        FloatingPointError: when the target's logits hold NaN or infinity, naming the row and the output position.
    """
    check(
        texts=texts,
        guidance=guidance,
        samplers=samplers,
        voice=voice,
        max_seconds=max_seconds,
        on_sound=on_sound,
        on_step=on_step,
        capture=capture,
    )
    drawing = dict(zip(DRAWING, (temperature, top_k, top_p, repetition_penalty, guidance, samplers), strict=True))
    model = speech_model(model)
    if isinstance(model, Staged):
        refuse("models of one network, and this one has several", capture=capture or None)
        asked = {"voice": voice, "max_seconds": max_seconds, "draft_length": draft_length, "tree": tree}
        return model.synthesize(texts, drafter, accept, seed, on_sound=on_sound, on_step=on_step, **asked, **drawing)
    sampling = changed_sampling(model.sampling, **drawing)
    listening = on_sound is not None
    saying = _Saying(model, texts, voice, sampling, drafter, accept, seed, max_seconds, draft_length, tree, on_step, capture, listening)
    for row, piece in saying:
        if on_sound is not None:
            on_sound(row, piece)
    return saying.speech


@public_call
def stream(
    model: SpeechModel,
    text: str | Mapping[str, Tensor] | Iterator[str],
    drafter: Any = None,
    *,
    accept: str | Accept = "exact",
    seed: int = 0,
    **options: Any,
) -> SpeechStream:
    """Synthesize speech from one text, or from texts as they arrive, and return it piece by piece. Pieces are final.

    Under token-exact rules drafting begins behind the first piece, unless `draft_length` is a `Control`.

    Arguments are checked before this function returns; texts of an iterator when they arrive.

    Args:
        model: a `SpeechModel`.
        text: the text; or an iterator over texts, such as `whole_sentences` of what a language model writes: each is one request, and
            its sound is that of its row in `synthesize` of all of them with this seed.
        drafter, accept: as in `synthesize`.
        seed: an int; text i of an iterator gets seed + i.
        options: the other arguments of `synthesize`, without `on_sound`.

    Returns:
        An iterator over pieces of sound, float [samples]; of an iterator a `SentenceStream`.

    Raises:
        ValueError: as in `synthesize`, and for models of several networks, whose sound is complete only at the end.
        TypeError: for an unknown keyword.
    """
    if isinstance(model, Staged):
        raise ValueError(f"{type(model).__name__} has all its sound at the end, and nothing to give out before: use synthesize")
    if not isinstance(text, str | Mapping | Iterator):
        raise ValueError(f"text is {shown(text)}: give one text, or an iterator over texts; synthesize takes several at once")
    if unknown := set(options) - {*DRAWING, *_OPTIONS}:
        raise TypeError(f"stream() got an unexpected keyword argument {min(unknown)!r}")
    check(**{name: value for name, value in options.items() if name not in ("temperature", "top_k", "top_p", "repetition_penalty")})
    drawing = {name: options.pop(name, None) for name in DRAWING}
    given: dict[str, Any] = {"sampling": changed_sampling(model.sampling, **drawing), "drafter": drafter, "accept": accept, **options}
    if isinstance(text, Iterator):
        return SentenceStream(text, lambda each, turn: SpeechStream(_Saying(model, [each], seed=seed + turn, **given)))
    return SpeechStream(_Saying(model, [text], seed=seed, **given))


class _Saying:
    """One running generation."""

    @torch.no_grad()
    def __init__(
        self,
        model: SpeechModel,
        texts: Any,
        voice: Any = None,
        sampling: SpeechSampling | None = None,
        drafter: Any = None,
        accept: str | Accept = "exact",
        seed: int | Sequence[int] = 0,
        max_seconds: float | None = None,
        draft_length: int | str | Control = "auto",
        tree: Tree = None,
        on_step: OnStep = None,
        capture: bool = False,
        listening: bool = True,
    ):
        clock = perf_counter()
        sampling = model.drawn(model.sampling if sampling is None else sampling)
        request = Request.of(
            drafter=drafter, accept=accept, draft_length=draft_length, tree=tree, seed=seed,
            temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, repetition_penalty=sampling.repetition_penalty,
        )  # fmt: skip
        rule = request.rule()
        ready = prepared_speech(model, texts, voice, sampling, request, rule, max_seconds)
        steps = ready.steps
        check_drafted("draft_length", draft_length, longest_draft(tree, drafter, steps))
        own = speech_target(model, ready.processors, min(steps + 32, 1024))
        resolved = request.resolve(own, rule, lambda drafter: drafting_target(drafter, own))
        if capture:
            own, resolved = own.capture(steps + 64), resolved.capture(steps + 64)
        target = whole_target(own)
        noise = Noise.from_seed(seed, len(texts), model.model.device)
        self.model, self.stats = model, Stats(exactness=rule.exactness)
        self.stopping = speech_stopping(model, len(texts), steps)
        self.sounds = Sounds(model.rate, ready.streams, clock)
        self.on_step = on_step  # called after the sound of the round
        counted = {"control": resolved.control, "stats": self.stats}
        if listening and rule.exactness == TOKEN_EXACT and isinstance(draft_length, int | str):
            counted["plain"] = lambda: self.sounds.silent
        self.rounds = run(target, resolved.drafter, rule, ready.prompt, stopping=self.stopping, noise=noise, **counted)

    @torch.no_grad()
    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (row, piece of sound) as pieces become final."""
        for step in self.rounds:
            yield from self.sounds.push(step.committed.values, step.committed.ended)
            if self.on_step is not None:
                self.on_step(step)
        yield from self.sounds.close()

    @property
    def speech(self) -> Speech:
        return self.sounds.speech(committed(self.stopping, self.stats, self.model.model.device))


_OPTIONS = ("draft_length", "tree", "voice", "max_seconds", "on_step", "capture")
