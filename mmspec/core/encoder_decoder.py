"""Encoder-decoder families: the encoder runs once a request, only decoder self-attention lives in slots."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from mmspec.core.cache import SlotCache, with_cross_attention
from mmspec.core.family import attention_mask, refuse_unsupported, side_by_side
from mmspec.core.layout import Layout


@dataclass(frozen=True)
class Encoded:
    """What a session keeps of its encoder."""

    cache: Any  # the model's own pair of caches around the session's slots
    outputs: BaseModelOutput
    mask: Tensor | None  # [B, 1, 1, T] as the model's attention takes it


@dataclass(frozen=True)
class EncoderDecoder:
    """Models whose decoder takes explicit positions (Whisper)."""

    layers: int
    source: str  # the encoder's main input: input_ids or input_features

    @classmethod
    def of(cls, model: Any) -> "EncoderDecoder":
        refuse_unsupported(model)
        config = model.config
        layers = getattr(config, "decoder_layers", None) or getattr(config, "num_decoder_layers", None) or config.num_hidden_layers
        return cls(layers, model.main_input_name)

    def prompt(self, model: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        if self.source not in inputs and "encoder_outputs" not in inputs:
            raise ValueError(f"inputs has no {self.source} (it has {', '.join(inputs) or 'nothing'}): pass what the processor returned")
        given = inputs.get("decoder_input_ids")
        if given is None:
            source = inputs[self.source] if self.source in inputs else inputs["encoder_outputs"][0]
            start = torch.tensor(start_ids(model), device=source.device)
            given = start.expand(source.shape[0], -1)
        mask = inputs.get("decoder_attention_mask")
        return given, torch.ones_like(given, dtype=torch.bool) if mask is None else mask.bool()

    @torch.no_grad()
    def begin(self, model: Any, inputs: Mapping[str, Tensor], capacity: int) -> tuple[SlotCache, Encoded]:
        mask, outputs = inputs.get("attention_mask"), inputs.get("encoder_outputs")
        if outputs is None:
            outputs = model.get_encoder()(inputs[self.source], attention_mask=mask, return_dict=True)
        _check_width(model, outputs[0])
        cross = None
        if mask is not None and self.source == "input_ids":
            cross = attention_mask(mask.bool()[:, None], model)
        cache = SlotCache(self.layers, capacity)
        return cache, Encoded(with_cross_attention(cache), BaseModelOutput(last_hidden_state=outputs[0]), cross)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Encoded, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        return self.run(model, layout, state, keep, states, decoder_position_ids=layout.positions)

    def run(
        self, model: Any, layout: Layout, state: Encoded, keep: int, states: Sequence[int], **extra: Any
    ) -> tuple[Tensor, Tensor | None]:
        out = model(
            decoder_input_ids=layout.ids,
            decoder_attention_mask=attention_mask(layout.visible, model),
            encoder_outputs=state.outputs,
            attention_mask=state.mask,
            past_key_values=state.cache,
            use_cache=True,
            output_hidden_states=bool(states),
            **extra,
        )
        return out.logits[:, -keep:], side_by_side(out.decoder_hidden_states, states)


@dataclass(frozen=True)
class DecoderAlone(EncoderDecoder):
    """A Whisper decoder without an encoder (WhisperForCausalLM): it reads what the model it drafts for has encoded."""

    def prompt(self, model: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        if "encoder_outputs" not in inputs:
            name = type(model).__name__
            raise ValueError(f"{name} has no encoder of its own: let it draft for a Whisper model, or load WhisperForConditionalGeneration")
        return super().prompt(model, inputs)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Encoded, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        out = model(
            input_ids=layout.ids,
            attention_mask=attention_mask(layout.visible, model),
            encoder_outputs=state.outputs,
            position_ids=layout.positions,
            past_key_values=state.cache,
            use_cache=True,
            output_hidden_states=bool(states),
        )
        return out.logits[:, -keep:], side_by_side(out.hidden_states, states)


@dataclass(frozen=True)
class Bart(EncoderDecoder):
    """BART and its kin derive positions from a shared length; a hook puts each column's own position embedding in place."""

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Encoded, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        table = model.get_decoder().embed_positions

        def own(module: Any, args: tuple, output: Tensor) -> Tensor:
            return nn.functional.embedding(layout.positions + module.offset, module.weight)

        with _hooked(table.register_forward_hook, own):
            return self.run(model, layout, state, keep, states)


@dataclass(frozen=True)
class T5(EncoderDecoder):
    """T5 adds a bias by relative position, computed for a shared length; a hook hands the first block the bias of each column's own."""

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Encoded, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        first = model.get_decoder().block[0]
        bias = self.bias(first.layer[0].SelfAttention, layout)

        def own(module: nn.Module, args: tuple) -> tuple:
            return (*args[:2], bias, *args[3:])

        with _hooked(first.register_forward_pre_hook, own):
            return self.run(model, layout, state, keep, states)

    @staticmethod
    def bias(attention: Any, layout: Layout) -> Tensor:
        """[B, heads, M, S]."""
        distance = layout.slot_positions[:, None, :] - layout.positions[:, :, None]
        buckets = attention._relative_position_bucket(
            distance,
            bidirectional=False,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        return attention.relative_attention_bias(buckets).permute(0, 3, 1, 2)


def _check_width(model: Any, states: Tensor) -> None:
    """ValueError if `states` [B, T, D] come from an encoder of another width than the one the model's decoder reads."""
    width = getattr(model.config, "d_model", None)
    if width is not None and states.shape[-1] != width:
        raise ValueError(
            f"encoder_outputs has width {states.shape[-1]}, but {type(model).__name__} reads {width}: they come from another encoder; "
            "pass the encoder's own input as well, so that this model's encoder can run"
        )


@contextmanager
def _hooked(register: Callable, hook: Callable) -> Iterator[None]:
    """A hook for the length of one forward: models are never left changed."""
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()


def start_ids(model: Any) -> list[int]:
    """The decoder's opening: the start token."""
    config = model.generation_config
    start = config.decoder_start_token_id if config.decoder_start_token_id is not None else model.config.decoder_start_token_id
    if start is None:
        start = config.bos_token_id if config.bos_token_id is not None else model.config.bos_token_id
    if start is None:
        raise ValueError(
            f"{type(model).__name__} has no decoder_start_token_id: set it on the generation config, or pass decoder_input_ids"
        )
    return [start]
