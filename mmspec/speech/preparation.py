"""From the arguments of a call, or of a request to an engine, to what is decoded: settings, prompts, processors, and streams of sound."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmspec.core.processors.history import Processor
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.rules.base import Accept
from mmspec.core.stopping import DefaultStopping
from mmspec.models.guidance import Guided, Pairs, is_guided
from mmspec.models.target import HFTarget
from mmspec.run.guidance import scale_of
from mmspec.run.request import Request
from mmspec.speech.families.base import SpeechModel, SpeechSampling, one_voice_each
from mmspec.speech.sound.stream import SoundStream

DRAWING = ("temperature", "top_k", "top_p", "repetition_penalty", "guidance", "samplers")
"""Arguments of a call that replace settings of the model's own `sampling`."""


@dataclass(frozen=True)
class PreparedSpeech:
    """Texts as a model decodes them.

    Args:
        prompt: the prompts, as the model's family takes them; under guidance, of pairs of rows.
        processors: form the distributions.
        steps: most steps of a row.
        streams: decode the steps of each row to sound.
    """

    prompt: Any
    processors: Pipeline
    steps: int
    streams: Sequence[SoundStream]

    @property
    def guided(self) -> bool:
        """True if the rows are pairs, under classifier-free guidance."""
        return isinstance(self.processors, Guided)


def prepared_speech(
    model: SpeechModel,
    texts: Sequence[Any],
    voice: Any,
    sampling: SpeechSampling,
    request: Request,
    rule: Accept,
    max_seconds: float | None,
) -> PreparedSpeech:
    """Prepare texts.

    Args:
        model: the model.
        texts: one a row.
        voice: one voice, or one per text.
        sampling: the settings, as `SpeechModel.drawn` returned them.
        request: with the settings' temperature and truncations.
        rule: the accept rule.
        max_seconds: longest duration in seconds; None for what the model has room for.

    Returns:
        The texts as they are decoded.

    Raises:
        ValueError: for texts, voices, durations and scales that the model does not take.
    """
    prompt, steps = prompts(model, texts, voice), most_steps(model, max_seconds)
    first: tuple[Processor, ...] = (*model.closing(steps), *model.rules(prompt))
    processors = Pipeline((*request.distributions(rule, first).steps, *sampling.last))
    streams = model.streams(prompt, len(texts))
    if scale_of(sampling.guidance, "3") is not None:
        return PreparedSpeech(model.paired(prompt), model.guided(processors.steps, sampling), steps, streams)
    return PreparedSpeech(prompt, processors, steps, streams)


def prompts(model: SpeechModel, texts: Sequence[Any], voice: Any) -> Any:
    """Return texts as the model's family takes them.

    Args:
        model: the model.
        texts: one a row.
        voice: one voice, or one per text.

    Raises:
        ValueError: for texts and voices that the model does not take.
    """
    return model.encode(texts, one_voice_each(voice, texts, model.voices, model.clones))


def changed_sampling(sampling: SpeechSampling, **given: Any) -> SpeechSampling:
    """Return settings of which some are replaced.

    Args:
        sampling: the settings.
        given: those of `DRAWING`; None keeps what is there.
    """
    named = {"last" if name == "samplers" else name: value for name, value in given.items() if value is not None}
    return replace(sampling, **named | ({"last": tuple(named["last"])} if "last" in named else {}))


def most_steps(model: SpeechModel, max_seconds: float | None) -> int:
    """Return the most steps a row may take.

    Args:
        model: the model.
        max_seconds: longest duration in seconds; None for what the model has room for.

    Raises:
        ValueError: for a duration of less than one step, or of more than the model has room for.
    """
    if max_seconds is None:
        known = [most for most in (model.usual, model.longest) if most]
        return min(known, default=round(30 * model.pace) + model.lead)
    steps = int(max_seconds * model.pace) + model.lead
    if steps < 1 + model.lead:
        raise ValueError(f"max_seconds is {max_seconds}: ask for at least {1 / model.pace:.3g}, one step of this model")
    if model.longest is not None and steps > model.longest:
        budget = (model.longest - model.lead) / model.pace
        raise ValueError(f"max_seconds is {max_seconds}, but this model has room for {budget:.3g}: ask for less")
    return steps


def speech_stopping(model: SpeechModel, rows: int, steps: int) -> DefaultStopping:
    """Return the stopping criteria of a generation.

    Args:
        model: the model.
        rows: number of rows.
        steps: most steps of a row.
    """
    return DefaultStopping(rows, steps, model.ends, device=model.model.device, forced=model.forced)


def speech_target(model: SpeechModel, processors: Any, reserve: int) -> HFTarget:
    """Return the target of a model.

    Args:
        model: the model.
        processors: form its distributions.
        reserve: slots beyond the prompt.
    """
    trees = getattr(model, "trees", True)  # of a user's own model, by its self-test
    return HFTarget(model.model, model.family, processors, reserve=reserve, trees=trees)


def drafting_target(drafter: Any, target: HFTarget) -> HFTarget | Pairs | None:
    """Return a speech model as a drafter's target, with the target's processors; None for other drafters.

    Args:
        drafter: the drafter.
        target: the target.

    Raises:
        ValueError: for drafters that read states of one row, under guidance.
    """
    if isinstance(drafter, SpeechModel):
        return whole_target(replace(target, model=drafter.model, family=drafter.family))
    if is_guided(target.processors) and hasattr(drafter, "guide"):
        raise ValueError(f"{type(drafter).__name__} reads one row's states, guidance has two: draft with a speech model, or guidance=1")
    return None


def whole_target(target: HFTarget) -> HFTarget | Pairs:
    """Return the target that the engine runs: with guidance, pairs of rows as one.

    Args:
        target: over all rows.
    """
    return Pairs(target) if is_guided(target.processors) else target
