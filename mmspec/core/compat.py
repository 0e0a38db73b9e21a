"""Every reach into transformers' internals: private methods, frames, replaced classes, and names that are not documented.

Each function says what it relies on and since which release; `tests/core/test_compat.py` holds a canary for each, which fails when a new
release of transformers no longer works as assumed here. No other module of mmspec may reach below transformers' documented interface.
"""

import copy
import inspect
from typing import Any

from torch import Tensor
from transformers.generation import GenerationMixin


def copied(generation_config: Any) -> Any:
    """A deep copy of a generation config, with the fields that a checkpoint added (`lang_to_id`, `task`)."""
    return copy.deepcopy(generation_config)


def whisper_opening(model: Any, generation_config: Any, encoder_outputs: Any, rows: int) -> Tensor:
    """The decoder's prompt [B, P] of Whisper for `rows` rows: start, language, task and no-timestamps tokens.

    Relies on `WhisperForConditionalGeneration._retrieve_init_tokens` (private, same signature from 5.17 to 5.23), which calls the
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


def encoder_source(rows: int) -> dict[str, Tensor]:
    """What the innermost `generate` that called this thread's custom decoding function gave its encoder, by name, for `rows` rows.

    `generate` hands a custom decoding function the encoder's states only; a drafter with an encoder of its own needs what that reads.
    Relies on the local variables `inputs_tensor` and `model_input_name` of `GenerationMixin.generate` (5.17 to 5.23). Empty if there is
    no such caller.
    """
    code, frame = inspect.unwrap(vars(GenerationMixin)["generate"]).__code__, inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        return {}
    name, source = frame.f_locals.get("model_input_name"), frame.f_locals.get("inputs_tensor")
    if name is None or not isinstance(source, Tensor) or (not source.is_floating_point() and bool((source < 0).any())):
        return {}  # where the caller passed encoder_outputs, `generate` fills ids with -100
    return {name: source.repeat_interleave(rows // len(source), dim=0)}
