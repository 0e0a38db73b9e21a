"""Encoder-decoder families: the encoder runs once a request; only decoder self-attention uses slots."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin

from mmspec.models.compat import attention_of, decodes_pooled_states
from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.families.base import attention_mask, refuse_unsupported, side_by_side
from mmspec.models.families.decoder_positions import (
    Change,
    DecoderPositionTable,
    PositionIds,
    Positions,
    learned,
    positions_in,
    with_attributes,
)
from mmspec.models.families.encoder import EncoderStates, run_encoder
from mmspec.models.layout import Layout
from mmspec.models.module_copy import own_copy, uncompiled
from mmspec.models.slot_cache import SlotCache, with_cross_attention

_TEXT_BY_OWN_GENERATE = (
    *("SeamlessM4TForTextToText", "SeamlessM4TForSpeechToText", "SeamlessM4Tv2ForTextToText", "SeamlessM4Tv2ForSpeechToText"),
)
"""Classes with a `generate` of their own that only sets the decoder's opening."""
_OWN_OPENING = ("whisper", "donut")
"""Types whose decoder prompts need not begin with the start token; transformers prepends it to all others."""
_PICTURES_IN_PROMPTS = ("florence2", "t5gemma2")
"""Types whose encoder reads images at placeholders in its prompt."""
_NO_LIMIT = 1 << 30


@dataclass(frozen=True)
class Encoded:
    """What a session keeps of its encoder."""

    cache: Any  # the model's own pair of caches around the session's slots
    outputs: EncoderStates
    mask: Tensor | None  # [B, T] bool: which states belong to their rows; None for all


@dataclass(frozen=True)
class EncoderDecoder:
    """An encoder-decoder model: `layers` of its decoder, its encoder's main input, and how the decoder gets positions.

    `window` is the sliding window of some of its decoder's layers, if any.
    """

    layers: int
    source: str  # the encoder's main input: input_ids or input_features
    positions: Positions = field(default_factory=PositionIds)
    window: int | None = None
    beside: tuple[str, ...] = ()  # what the encoder reads besides its main input
    cached_reference: bool = False  # its experts drop tokens of a long forward, never of one token

    @classmethod
    def of(cls, model: Any) -> "EncoderDecoder":
        """The family of `model`. ValueError for models it cannot drive."""
        refuse_unsupported(model)
        if decodes_pooled_states(model):
            raise ValueError(
                f"{type(model).__name__}'s decoder reads what its encoder pools, which is not kept here: use plain transformers generation "
                "for this model"
            )
        decoder = decoder_of(model)
        config = getattr(decoder, "config", model.config)
        _refuse_own_generate(model)
        _refuse_decoder(model, config)
        positions = positions_in(decoder, type(model).__name__)
        beside = ("pixel_values",) if model.config.model_type in _PICTURES_IN_PROMPTS else ()
        return cls(_layers(decoder, config), _source(model), positions, _window(config), beside, bool(_uncapped(decoder)))

    def positions_table(self, model: Any) -> int | None:
        """Positions that the decoder looks up; see `models.family.PositionsTable`. Sinusoids are made for as many as are needed."""
        if isinstance(self.positions, DecoderPositionTable) and self.positions.lookup is not learned:
            return None
        config = getattr(decoder_of(model), "config", model.config)
        return None if getattr(config, "rope_parameters", None) else positions_limit(model)

    def prompt(self, model: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        if self.source not in inputs and "encoder_outputs" not in inputs:
            raise ValueError(f"inputs has no {self.source} (it has {', '.join(inputs) or 'nothing'}): pass what the processor returned")
        given = inputs.get("decoder_input_ids")
        if given is None and self.source != "input_ids":
            given = inputs.get("input_ids")
        source = inputs[self.source] if self.source in inputs else inputs["encoder_outputs"][0]
        mask = inputs.get("decoder_attention_mask")
        if given is None:
            start = torch.tensor(start_ids(model), device=source.device)
            given = start.expand(source.shape[0], -1)
        elif not _opens_itself(model) and bool((given[:, 0] != (start := start_ids(model)[0])).all()):
            given = nn.functional.pad(given, (1, 0), value=start)
            mask = None if mask is None else nn.functional.pad(mask, (1, 0), value=1)
        return given, torch.ones_like(given, dtype=torch.bool) if mask is None else mask.bool()

    @torch.no_grad()
    def begin(self, model: Any, inputs: Mapping[str, Tensor], capacity: int) -> tuple[SlotCache, Encoded]:
        outputs, mask = inputs.get("encoder_outputs"), inputs.get("attention_mask")
        if outputs is None:
            outputs = run_encoder(model, self.source, inputs)
        elif not isinstance(outputs, EncoderStates):
            seen = mask.bool() if mask is not None and self.source == "input_ids" else None
            outputs = EncoderStates(last_hidden_state=outputs[0], attention_mask=seen)
        _check_width(model, outputs[0])
        cache = SlotCache(self.layers, capacity)
        return cache, Encoded(with_cross_attention(cache), outputs, outputs.attention_mask)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Encoded, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        own = model if uncompiled(model) is not model else own_copy(model)  # a compiled model is not shared
        decoder = decoder_of(own)
        with (
            with_attributes([*self.positions.changes(decoder, layout), *_uncapped(decoder)]),
            self._decoder_inputs(own, decoder, layout, state) as extra,
        ):
            out = own(
                decoder_input_ids=layout.ids,
                encoder_outputs=state.outputs,
                **cache_keyword(own, state.cache),
                use_cache=True,
                output_hidden_states=bool(states),
                **extra,
            )
        return out.logits[:, -keep:], side_by_side(out.decoder_hidden_states, states)

    @contextmanager
    def _decoder_inputs(self, model: Any, decoder: Any, layout: Layout, state: Encoded) -> Iterator[dict[str, Any]]:
        """Masks and positions: what the model's forward takes is yielded, the rest is passed to its decoder by a hook."""
        takes, whole = signature(decoder.forward).parameters, signature(model.forward).parameters
        attends = decoder if hasattr(decoder, "config") else model
        masks = self._masks(attends, layout)
        given: dict[str, Any] = {"decoder_attention_mask": masks}
        more = self.positions.arguments(layout)
        given |= {f"decoder_{name}": more.pop(name) for name in list(more) if f"decoder_{name}" in whole}
        if "decoder_causal_mask" in takes:  # FSMT makes no mask of its own with a cache
            more["decoder_causal_mask"] = masks
        if state.mask is not None and "encoder_padding_mask" in takes:
            given["attention_mask"] = state.mask
        elif state.mask is not None:
            cross = attention_mask(state.mask[:, None].expand(-1, layout.ids.shape[1], -1), attends)
            (given if self.source == "input_ids" else more)["attention_mask" if self.source == "input_ids" else _CROSS] = cross
        handles = [decoder.register_forward_pre_hook(_adding(more), with_kwargs=True)] if more else []
        if model.config.model_type in _MASK_OF_SEVERAL:
            handles += [layer.register_forward_pre_hook(_masking(masks), with_kwargs=True) for layer in decoder.layers]
        try:
            yield given
        finally:
            for handle in handles:
                handle.remove()

    def _masks(self, attends: Any, layout: Layout) -> Any:
        """One mask as `attends`, the decoder or its model, takes it; or one a kind of attention if layers differ in kind."""
        full = attention_mask(layout.visible, attends)
        if self.window is None:
            return full
        return {"full_attention": full, "sliding_attention": attention_mask(layout.near(self.window), attends)}


_CROSS = "encoder_attention_mask"
_MASK_OF_SEVERAL = ("led",)
"""Types whose decoder drops its mask where there is one column; stale slots would then be visible."""


def decoder_of(model: Any) -> Any:
    """The decoder of an encoder-decoder model. Florence-2's `get_decoder` returns its whole language model, encoder included."""
    found = model.get_decoder()
    return found.decoder if hasattr(found, "encoder") and hasattr(found, "decoder") else found


def _adding(more: Mapping[str, Any]) -> Any:
    return lambda module, args, kwargs: (args, kwargs | more)


def _masking(mask: Tensor) -> Any:
    """Give `mask` to a layer that takes (hidden states, mask, ...)."""
    return lambda module, args, kwargs: ((args[0], mask, *args[2:]), kwargs)


def _uncapped(decoder: nn.Module) -> list[Change]:
    """Remove the capacity of experts: decoding one token at a time never exceeds it, so a draft must not either."""
    found: list[Change] = []
    for module in decoder.modules():
        if hasattr(module, "moe_eval_capacity_token_fraction"):
            found += [(module, "moe_eval_capacity_token_fraction", 1.0), (module, "route_tokens", _unmasked(module))]
        elif hasattr(module, "expert_capacity"):
            found.append((module, "expert_capacity", _NO_LIMIT))
    return found


def _unmasked(router: Any) -> Any:
    """`route_tokens` of a router without its padding mask, which it would read from the last column."""
    return lambda logits, dtype, padding_mask=None: type(router).route_tokens(router, logits, dtype)


def _source(model: Any) -> str:
    """The encoder's main input; models combined from two others leave its name to their encoder."""
    name = model.main_input_name
    return model.get_encoder().main_input_name if name == "inputs" else name


def _layers(decoder: Any, config: Any) -> int:
    lists = [child for child in decoder.children() if isinstance(child, nn.ModuleList)]
    if len(lists) == 1:
        return len(lists[0])
    return getattr(config, "decoder_layers", None) or getattr(config, "num_decoder_layers", None) or config.num_hidden_layers


def _window(config: Any) -> int | None:
    """The sliding window of a decoder with layers of several kinds."""
    kinds = getattr(config, "layer_types", None) or ()
    return config.sliding_window if "sliding_attention" in kinds else None


def _opens_itself(model: Any) -> bool:
    inner = getattr(model.config, "encoder", None)
    return any(kind in (model.config.model_type, getattr(inner, "model_type", "")[:5]) for kind in _OWN_OPENING)


def _refuse_own_generate(model: Any) -> None:
    """ValueError for classes whose `generate` does more than decode tokens: audio output, computed inputs, retrieval."""
    kind = type(model)
    if kind.generate is vars(GenerationMixin)["generate"] or model.config.model_type == "whisper" or kind.__name__ in _TEXT_BY_OWN_GENERATE:
        return
    raise ValueError(
        f"{kind.__name__} has a generate of its own, which mmspec does not know: use plain transformers generation for this model"
    )


def _refuse_decoder(model: Any, config: Any) -> None:
    """ValueError for decoders whose next token depends on more than its history."""
    name = type(model).__name__
    if any(getattr(module, "second_expert_policy", "all") != "all" for module in model.modules()):
        raise ValueError(f"{name} draws its second experts at random: set second_expert_policy='all' in its config")
    kind = attention_of(config)
    if kind not in ("sdpa", "eager"):
        raise ValueError(f"{name} runs {kind} attention in its decoder, which takes no 4-D mask: load it with attn_implementation='sdpa'")


def positions_limit(model: Any) -> int | None:
    """The positions the decoder of an encoder-decoder model has room for; None for no limit."""
    decoder = decoder_of(model)
    return positions_in(decoder, type(model).__name__).limit(decoder, getattr(decoder, "config", model.config))


@dataclass(frozen=True)
class DecoderAlone(EncoderDecoder):
    """A Whisper decoder without an encoder (WhisperForCausalLM): it reads the encoder states of the model it drafts for."""

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
            **cache_keyword(model, state.cache),
            use_cache=True,
            output_hidden_states=bool(states),
        )
        return out.logits[:, -keep:], side_by_side(out.hidden_states, states)


def _check_width(model: Any, states: Tensor) -> None:
    """ValueError if `states` [B, T, D] come from an encoder of another width than the one the model's decoder reads."""
    width = getattr(model.config, "d_model", None)
    if width is not None and states.shape[-1] != width:
        raise ValueError(
            f"encoder_outputs has width {states.shape[-1]}, but {type(model).__name__} reads {width}: they come from another encoder; "
            "pass the encoder's own input as well, so that this model's encoder can run"
        )


def start_ids(model: Any) -> list[int]:
    """The decoder's start token, as a list. ValueError if the model has none."""
    config = model.generation_config
    own = [getattr(each, name, None) for name in ("decoder_start_token_id", "bos_token_id") for each in (config, model.config)]
    start = next((token for token in own if token is not None), None)
    if start is None:
        raise ValueError(
            f"{type(model).__name__} has no decoder_start_token_id: set it on the generation config, or pass decoder_input_ids"
        )
    return [start]
