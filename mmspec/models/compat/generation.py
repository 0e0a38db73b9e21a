"""The inside of `generate`: the current call, its decoding loop, and Whisper's decoder prompt."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation import GenerationMixin


def copied(generation_config: Any) -> Any:
    """A deep copy of a generation config, with the fields that a checkpoint added (`lang_to_id`, `task`)."""
    return copy.deepcopy(generation_config)


def whisper_opening(model: Any, generation_config: Any, encoder_outputs: Any, rows: int) -> Tensor:
    """The decoder's prompt [B, P] of Whisper for `rows` rows: start, language, task and no-timestamps tokens.

    Relies on `WhisperForConditionalGeneration._retrieve_init_tokens` (private, same signature from 5.17 to 5.24), which calls the
    documented `detect_language` where no language is set. Languages are read from `encoder_outputs`; None if none is to be detected.
    """
    return model._retrieve_init_tokens(
        None,
        batch_size=rows,
        generation_config=generation_config,
        config=model.config,
        num_segment_frames=2 * model.config.max_source_positions,
        kwargs={} if encoder_outputs is None else {"encoder_outputs": encoder_outputs},
    )


def frame_of(function: Callable[..., Any]) -> FrameType | None:
    """The innermost frame on this thread's stack that runs `function`; None if there is none."""
    code, frame = inspect.unwrap(function).__code__, inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


@dataclass(frozen=True)
class GenerateCall:
    """Arguments of `generate` that it does not pass on to a custom decoding function."""

    streamer: Any = None
    assistant_model: Any = None
    assistant_tokenizer: Any = None
    synced_gpus: bool | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)  # every other keyword, model inputs in the form the caller gave them


def generate_call() -> GenerateCall | None:
    """The call of `generate` under way on this thread; None if there is none.

    Relies on the local variables `streamer`, `assistant_model`, `synced_gpus` and `kwargs` of `GenerationMixin.generate` (5.17 to 5.24):
    transformers drops the first three before it calls a custom decoding function, and encodes images before it.
    """
    frame = frame_of(vars(GenerationMixin)["generate"])
    if frame is None:
        return None
    found = frame.f_locals
    keywords = {key: value for key, value in found.get("kwargs", {}).items() if value is not None}
    return GenerateCall(
        found.get("streamer"), found.get("assistant_model"), keywords.get("assistant_tokenizer"), found.get("synced_gpus"), keywords
    )


def keep_tokenizer() -> None:
    """Put back the tokenizer that `generate` has removed from its keywords, if this is called while it looks for them.

    `GenerationMixin._extract_generation_mode_kwargs` (5.17 to 5.24) removes `tokenizer` and `assistant_tokenizer` from `kwargs`, drops both
    for a custom decoding function, and then reads the keywords that the function names itself. Stop strings and token healing need the
    tokenizer. Relies on the local variables `kwargs` and `generation_mode_kwargs` of that method.
    """
    frame = frame_of(vars(GenerationMixin)["_extract_generation_mode_kwargs"])
    if frame is None:
        return
    taken, keywords = frame.f_locals.get("generation_mode_kwargs"), frame.f_locals.get("kwargs")
    if isinstance(taken, dict) and isinstance(keywords, dict):
        for name in ("tokenizer", "assistant_tokenizer"):
            if taken.get(name) is not None:
                keywords.setdefault(name, taken[name])


def plain_sample(model: Any, input_ids: Tensor, **arguments: Any) -> Any:
    """transformers' own decoding loop, `GenerationMixin._sample` (private, 5.17 to 5.24): one forward and one call of each processor
    a step, over the whole padded batch. Takes what `generate` hands a custom decoding function, and a streamer."""
    return type(model)._sample(model, input_ids, **arguments)


def prefix_function(processor: Any) -> tuple[Callable[[int, Tensor], Sequence[int]], int]:
    """The function of a `PrefixConstrainedLogitsProcessor`, and for how many rows a prompt it was made: beams, or copies since 5.24.

    Relies on its private attributes `_prefix_allowed_tokens_fn` and `_num_beams` (5.17 to 5.24).
    """
    return processor._prefix_allowed_tokens_fn, processor._num_beams


def generation_defaults() -> dict[str, Any]:
    """What `generate` fills into settings that are None: `GenerationConfig._get_default_generation_params` (private, 5.17 to 5.24)."""
    return dict(getattr(GenerationConfig, "_get_default_generation_params", dict)())


def generation_settings(model: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The generation config of a call of `generate` with keywords `given`, defaults filled in, and the keywords that are no settings.

    Relies on `GenerationMixin._prepare_generation_config(generation_config, **kwargs)` (private, 5.17 to 5.24).
    """
    given = dict(given)
    config, others = model._prepare_generation_config(given.pop("generation_config", None), **given)
    return config, dict(others)


def sampling_processors(model: Any, generation_config: Any, ids: Tensor) -> list[Any]:
    """The logits processors of a generation config for prompts `ids` [B, P], without guidance.

    Relies on `GenerationMixin._get_logits_processor` (private, 5.17 to 5.24).
    """
    config = copy.deepcopy(generation_config)
    config.guidance_scale = None
    return list(
        model._get_logits_processor(
            generation_config=config, input_ids_seq_length=ids.shape[1], encoder_input_ids=ids, prefix_allowed_tokens_fn=None,
            logits_processor=LogitsProcessorList(), device=ids.device,
        )
    )  # fmt: skip


def encoder_source(rows: int) -> dict[str, Tensor]:
    """What the innermost `generate` that called this thread's custom decoding function gave its encoder, by name, for `rows` rows.

    `generate` hands a custom decoding function the encoder's states only; a drafter with an encoder of its own needs what that reads.
    Relies on the local variables `inputs_tensor` and `model_input_name` of `GenerationMixin.generate` (5.17 to 5.24). Empty if there is
    no such caller.
    """
    frame = frame_of(vars(GenerationMixin)["generate"])
    if frame is None:
        return {}
    name, source = frame.f_locals.get("model_input_name"), frame.f_locals.get("inputs_tensor")
    if name is None or not isinstance(source, Tensor) or (not source.is_floating_point() and bool((source < 0).any())):
        return {}  # where the caller passed encoder_outputs, `generate` fills ids with -100
    return {name: source.repeat_interleave(rows // len(source), dim=0)}


def inputs_replaced(model: Any) -> bool:
    """True if `model` has its own `prepare_inputs_for_generation`.

    PEFT's prompt and prefix tuning set it on the instance (peft 0.10 to 0.21) and insert virtual tokens there, which other decoding loops
    skip.
    """
    return "prepare_inputs_for_generation" in vars(model)


def weighs_timestamps(generation_config: Any) -> bool:
    """Whether timestamps are written where together they are likelier than every other token.

    Relies on `WhisperTimeStampLogitsProcessor` reading `_detect_timestamp_from_logprob` from the generation config (5.17 to 5.24).
    """
    return getattr(generation_config, "_detect_timestamp_from_logprob", True)
