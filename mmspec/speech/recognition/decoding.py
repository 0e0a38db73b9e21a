"""A decoding function for the `generate` of recognisers, which calls it once for every window of the sound.

Whisper's `generate` moves a window over long sound, and repeats windows at higher temperatures where the text looks wrong. For that it asks
for every step's scores, and for words' times for cross-attentions. Both are computed here by one forward over the window's finished text.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from transformers.generation import GenerateEncoderDecoderOutput

from mmspec.core.decode import OnStep
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import Step
from mmspec.core.stats import Stats
from mmspec.core.stopping import LENGTH, STOP
from mmspec.models import compat
from mmspec.models.families.registry import positions_of
from mmspec.models.target import HFTarget
from mmspec.run.drop_in.arguments import own_inputs, refuse
from mmspec.run.drop_in.inputs import inputs_for, plain_reason
from mmspec.run.drop_in.speculate import DropInCall, Speculation
from mmspec.run.request import Request

_ANSWERED = ("output_scores", "output_attentions", "return_dict_in_generate")
"""What Whisper's loop asks for besides sequences, answered by a forward over the finished text."""


@dataclass(eq=False)
class RecognitionDecoding:
    """A `custom_generate` that decodes windows and counts what it does.

    Args:
        request: how to draft and judge.
        on_step: called with every round.
        on_window: called with the model, the inputs of every window (its encoder's states, and its decoder's prompt) and the prompt and
            new tokens LongTensor [B, P + T].
    """

    request: Request
    on_step: OnStep = None
    on_window: Callable[[Any, Mapping[str, Any], Tensor], Any] | None = None
    stats: Stats = field(default_factory=Stats)
    prompts: list[list[int]] = field(default_factory=list)  # ids of the decoder's prompt of every row, in its first window

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        inputs_tensor: Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode one window of every row; see transformers' `custom_generate`."""
        config = copy.copy(generation_config)
        for name in _ANSWERED:
            setattr(config, name, False)
        refuse(config, compat.generate_call())
        if not self.prompts:
            self.prompts = input_ids.tolist()
        _share_encoding(logits_processor, model_kwargs)
        call = _Window(Speculation(self.request), model, input_ids, logits_processor, stopping_criteria, config)
        call.sound = input_ids if inputs_tensor is None else inputs_tensor
        given = own_inputs(config, compat.generate_call(), model_kwargs)
        reason = call.unformed() or plain_reason(model, call.family, input_ids, config, given, model_kwargs, None)
        if reason is not None:
            raise ValueError(f"this request cannot be drafted for: {reason}")
        inputs = inputs_for(model, input_ids, given, model_kwargs)
        sequences = call.drafted(inputs, self._count)
        self.stats.exactness = call.rule.exactness
        if self.on_window is not None:
            self.on_window(model, inputs, sequences)
        if not any(getattr(generation_config, name, False) for name in _ANSWERED):
            return sequences
        found: dict[str, Any] = {"sequences": sequences}
        if generation_config.output_scores and sequences.shape[1] > input_ids.shape[1]:
            found["scores"] = call.scores(inputs, sequences)
        if generation_config.output_attentions:
            found["cross_attentions"] = _cross_attentions(model, inputs, sequences)
        return GenerateEncoderDecoderOutput(**found)

    def begin(self) -> None:
        """Forget the rows of the batch before."""
        self.prompts = []

    def _count(self, step: Step) -> None:
        self.stats.add(step)
        if self.on_step is not None:
            self.on_step(step)


class _Window(DropInCall):
    """One window of every row."""

    sound: Tensor

    def noise(self, device: torch.device) -> Noise:
        """Return noise that depends on the seed and on the row's own window, prompt and temperature, not on the rows beside it."""
        if not self.config.do_sample:
            return Noise.from_seed(0, len(self.ids), device)
        seed = self.asked.request.seed
        seeds = [seed] * len(self.ids)
        found = [_row_seed(each, sound, ids, self.config) for each, sound, ids in zip(seeds, self.sound, self.ids, strict=True)]
        return Noise.from_seed(found, len(self.ids), device)

    def scores(self, inputs: Mapping[str, Any], sequences: Tensor) -> tuple[Tensor, ...]:
        """Return the processed scores [B, V] of every new token, by one forward.

        Args:
            inputs: of `inputs_for`.
            sequences: LongTensor [B, P + T].
        """
        steps = tuple(form for form in self.forms if form is not None)
        target = HFTarget(self.model, self.family, Pipeline(steps), limit=positions_of(self.model))
        session, pending = target.begin(inputs)
        new = sequences[:, self.ids.shape[1] :].to(self.model.device)
        draft = pending.extend_chain(new, torch.full_like(pending.start, new.shape[1]))
        scores = session.score(draft).p.scores[:, : new.shape[1]]
        return tuple(scores.to(sequences.device).unbind(1))


def finish_reason_of(model: Any, written: Sequence[Tensor]) -> str:
    """Return why the transcript of a recording ended, of `core.stopping.FINISH_REASONS`.

    Args:
        model: the recogniser.
        written: ids LongTensor [T] of every window of the recording, ends and padding included: a window that was cut ends in neither.
    """
    config = model.generation_config
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return LENGTH if any(int(ids[-1]) not in (*ends, config.pad_token_id) for ids in written if len(ids)) else STOP


def _row_seed(seed: int | None, sound: Tensor, ids: Tensor, config: Any) -> int:
    text = f"{seed} {config.temperature} {ids.tolist()}".encode()
    return int.from_bytes(blake2b(sound.float().cpu().numpy().tobytes() + text, digest_size=7).digest(), "big")


def _share_encoding(processors: Any, model_kwargs: Mapping[str, Any]) -> None:
    """Give Whisper's detection of silence the encoder's states, so that it does not run the encoder again."""
    for each in processors:
        if getattr(each, "inputs", None) is not None and model_kwargs.get("encoder_outputs") is not None:
            each.inputs["encoder_outputs"] = model_kwargs["encoder_outputs"]


def _cross_attentions(model: Any, inputs: Mapping[str, Any], sequences: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """Return the cross-attentions [B, heads, P + T - 1, frames] of every layer, as a single step.

    Args:
        model: an encoder-decoder with eager attention.
        inputs: of `inputs_for`.
        sequences: LongTensor [B, P + T].
    """
    ids = sequences[:, :-1].to(model.device)
    mask = inputs.get("decoder_attention_mask")
    more: dict[str, Any] = {}
    if mask is not None:
        mask = torch.nn.functional.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=1)
        more = {"decoder_attention_mask": mask, "decoder_position_ids": (mask.cumsum(1) - 1).clamp_min(0)}
    out = model(encoder_outputs=inputs["encoder_outputs"], decoder_input_ids=ids, output_attentions=True, use_cache=False, **more)
    return (out.cross_attentions,)
