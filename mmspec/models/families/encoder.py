"""The encoder of an encoder-decoder model, run so that every row is encoded as it would be alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from mmspec.models.intercept import intercept_decoder_inputs
from mmspec.models.module_copy import own_copy

_PICTURES = "pixel_values"
_LOCAL = ("attention_window", "block_size", "encoder_attention_type")
"""Settings of encoders with attention in blocks or windows, whose output depends on the padded length."""


@dataclass
class EncoderStates(BaseModelOutput):
    """Encoder states [B, T, D] and which of them belong to their rows, [B, T] bool; None for all."""

    attention_mask: Tensor | None = None
    router_logits: Any = None  # read by models with experts, for a loss


def run_encoder(model: Any, source: str, inputs: Mapping[str, Tensor]) -> EncoderStates:
    """Run the encoder of `model` on `inputs`.

    Encoders that mix neighbouring positions (convolutions, attention in blocks, experts with a capacity) get each padded row alone and
    without its padding, which would change their output. All others get the batch as it is: those with positions of their own count from
    the first column, as in transformers, so text must be padded on the right, as their tokenizers do.

    Args:
        model: an encoder-decoder model.
        source: its encoder's main input.
        inputs: what the model's processor returned.

    Returns:
        The encoder states and their mask.
    """
    encoder, given = model.get_encoder(), _arguments(model, source, inputs)
    if source == "input_ids" and _PICTURES in signature(model.forward).parameters.keys() - signature(encoder.forward).parameters.keys():
        source, given = "inputs_embeds", _with_pictures(model, inputs)
    mask = given.get("attention_mask")
    main = given[source]
    whole = mask is None or mask.dim() != 2 or bool(mask.all())
    if _PICTURES in inputs and not whole:  # images of all rows are concatenated, and only their own tower has convolutions
        return EncoderStates(last_hidden_state=_run(model, given)[0], attention_mask=mask.bool())
    if len(main) > 1 and (_capacity(encoder) or (not whole and _mixes(encoder))) and _along(main, mask) == 1:
        return _stacked([_run(model, _row(given, row, mask)) for row in range(len(main))])
    if whole:
        return _run(model, given)
    if _along(main, mask) != 1:  # a window of fixed length, whose padding is silence (Whisper)
        return _run(model, given)
    if _mixes(encoder):
        return _run(model, _row(given, 0, mask))
    return EncoderStates(last_hidden_state=_run(model, given)[0], attention_mask=mask.bool())


def _with_pictures(model: Any, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's arguments where the model inserts images into the embeddings of its prompt (Florence-2)."""
    known = signature(model.forward).parameters
    given = intercept_decoder_inputs(model, {name: value for name, value in inputs.items() if name in known}, "pictures", encoder=True)
    mask = given.get("attention_mask")
    return {"inputs_embeds": given["inputs_embeds"], "attention_mask": _assumed(inputs["input_ids"]) if mask is None else mask}


def _arguments(model: Any, source: str, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's arguments among `inputs`, with the mask that `generate` makes if none is given."""
    takes = signature(model.get_encoder().forward).parameters
    given = {name: value for name, value in inputs.items() if name in takes and not name.startswith("decoder_")}
    given[source] = inputs[source]
    if "attention_mask" in takes and "attention_mask" not in given and "attention_mask" in signature(model.forward).parameters:
        given["attention_mask"] = _assumed(given[source])
    return given


def _assumed(main: Tensor) -> Tensor:
    """The mask `generate` uses for an encoder if none is given: nothing is padding, padding ids included."""
    return torch.ones(main.shape[:2], dtype=torch.long, device=main.device)


def _run(model: Any, given: Mapping[str, Tensor]) -> EncoderStates:
    encoder = model.get_encoder()
    if not hasattr(encoder, "set_attention_type"):
        return EncoderStates(last_hidden_state=encoder(**given, return_dict=True)[0])
    encoder = own_copy(model).get_encoder()
    kind = encoder.attention_type
    try:
        return EncoderStates(last_hidden_state=encoder(**given, return_dict=True)[0])
    finally:
        if encoder.attention_type != kind:  # BigBird's encoder turns to full attention for good where a prompt is short
            encoder.set_attention_type(kind)


def _row(given: Mapping[str, Tensor], row: int, mask: Tensor | None) -> dict[str, Tensor]:
    """One row without its padding."""
    if mask is None:
        return {name: value[row : row + 1] for name, value in given.items()}
    real = mask[row].bool()
    return {
        name: value[row : row + 1, real] if value.dim() > 1 and value.shape[1] == len(real) else value[row : row + 1]
        for name, value in given.items()
    }


def _stacked(rows: list[EncoderStates]) -> EncoderStates:
    """Rows of several lengths, padded on the right."""
    states = [row[0][0] for row in rows]
    lengths = torch.tensor([len(state) for state in states], device=states[0].device)
    padded = nn.utils.rnn.pad_sequence(states, batch_first=True)
    mask = torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
    return EncoderStates(last_hidden_state=padded, attention_mask=None if bool(mask.all()) else mask)


def _along(main: Tensor, mask: Tensor | None) -> int | None:
    """The dimension of an encoder's input that its mask covers."""
    if mask is None:
        return 1
    return next((axis for axis in (1, main.dim() - 1) if main.shape[axis] == mask.shape[-1]), None)


def _mixes(encoder: Any) -> bool:
    """True if padding affects the states of neighbouring positions."""
    config = getattr(encoder, "config", None)
    local = any(getattr(config, name, None) for name in _LOCAL) or getattr(config, "attention_type", "") == "block_sparse"
    return local or any(isinstance(module, (nn.Conv1d, nn.Conv2d)) for module in encoder.modules())


def _capacity(encoder: Any) -> bool:
    """True if experts have a capacity counted over the batch (NLLB-MoE), so that rows affect each other."""
    return any(getattr(module, "moe_eval_capacity_token_fraction", 1.0) != 1.0 for module in encoder.modules())
