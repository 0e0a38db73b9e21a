"""Every reach into transformers' internals: private methods, frames, replaced classes, and names that are not documented.

Each function says what it relies on and since which release; `tests/core/test_compat.py` holds a canary for each, which fails when a new
release of transformers no longer works as assumed here. No other module of mmspec may reach below transformers' documented interface.
"""

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
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


def frame_of(function: Callable[..., Any]) -> FrameType | None:
    """The innermost frame on this thread's stack that runs `function`; None if there is none."""
    code, frame = inspect.unwrap(function).__code__, inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


@dataclass(frozen=True)
class GenerateCall:
    """What the caller gave `generate` that it does not pass on to a custom decoding function."""

    streamer: Any = None
    assistant_model: Any = None
    assistant_tokenizer: Any = None
    synced_gpus: bool | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)  # every other keyword, model inputs in the form the caller gave them


def generate_call() -> GenerateCall | None:
    """The call of `generate` under way on this thread; None if there is none.

    Relies on the local variables `streamer`, `assistant_model`, `synced_gpus` and `kwargs` of `GenerationMixin.generate` (5.17 to 5.23):
    transformers drops the first three on the way to a custom decoding function and encodes pictures before it.
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
    """Give `generate` back the tokenizer it has taken out of its keywords, if this is called while it looks for them.

    `GenerationMixin._extract_generation_mode_kwargs` (5.17 to 5.23) takes `tokenizer` and `assistant_tokenizer` out of `kwargs`, drops
    both for a custom decoding function, and then asks for keywords that the function names itself. Stop strings and token healing need
    the tokenizer. Relies on the local variables `kwargs` and `generation_mode_kwargs` of that method.
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
    """transformers' own decoding loop, `GenerationMixin._sample` (private, 5.17 to 5.23): one forward and one call of each processor
    a step, over the whole padded batch. Takes what `generate` hands a custom decoding function, and a streamer."""
    return type(model)._sample(model, input_ids, **arguments)


def prefix_function(processor: Any) -> tuple[Callable[[int, Tensor], Sequence[int]], int]:
    """The function of a `PrefixConstrainedLogitsProcessor` and its number of beams (private attributes, 5.17 to 5.23)."""
    return processor._prefix_allowed_tokens_fn, processor._num_beams


def generation_defaults() -> dict[str, Any]:
    """What `generate` fills into settings that are None: `GenerationConfig._get_default_generation_params` (private, 5.17 to 5.23)."""
    return dict(getattr(GenerationConfig, "_get_default_generation_params", dict)())


def encoder_source(rows: int) -> dict[str, Tensor]:
    """What the innermost `generate` that called this thread's custom decoding function gave its encoder, by name, for `rows` rows.

    `generate` hands a custom decoding function the encoder's states only; a drafter with an encoder of its own needs what that reads.
    Relies on the local variables `inputs_tensor` and `model_input_name` of `GenerationMixin.generate` (5.17 to 5.23). Empty if there is
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
    """Has someone replaced how `model` prepares its inputs? PEFT's prompt and prefix tuning set `prepare_inputs_for_generation` on the
    instance (peft 0.10 to 0.21) and slip in virtual tokens there, which no other decoding loop would see."""
    return "prepare_inputs_for_generation" in vars(model)


@contextmanager
def rope_deltas_kept(model: Any) -> Iterator[None]:
    """Puts back `rope_deltas`, which models with several position axes (Qwen2-VL and kin, since 4.45) note on their base module.

    Inside, `model` may run on the prompt of one request; the offset it notes belongs to that request alone.
    """
    base = getattr(model, "model", model)
    before = getattr(base, "rope_deltas", None)
    try:
        yield
    finally:
        if hasattr(base, "rope_deltas"):
            base.rope_deltas = before


def mask_makers(model: Any) -> frozenset[str]:
    """Names of the `create_..._mask` functions that the decoder's modelling module uses: which kinds of mask its layers can have.

    Relies on modelling modules importing them from `transformers.masking_utils` by name (since 4.53).
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    homes = {kind.__module__ for module in (decoder, model) for kind in type(module).__mro__ if "modeling_" in kind.__module__}
    names = {name for home in homes - {"transformers.modeling_utils"} for name in vars(sys.modules[home])}
    return frozenset(name for name in names if name.startswith("create_") and "mask" in name)


def takes_argument(model: Any, name: str) -> bool:
    """Whether the forward of `model`, or of its decoder, which is handed what the model's own does not name, has a parameter `name`."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    return any(name in inspect.signature(module.forward).parameters for module in (model, decoder))


def recomputes_at_rope_switch(model: Any) -> bool:
    """Whether `generate` runs a sequence anew with the long factors when it grows past `original_max_position_embeddings`.

    Relies on Phi-3's `prepare_inputs_for_generation` (and copies of it) naming that setting of the config.
    """
    source = inspect.getsource(type(model).prepare_inputs_for_generation)
    return "original_max_position_embeddings" in source and hasattr(model.config, "original_max_position_embeddings")


def ropes_by_length(model: Any) -> list[Any]:
    """The rotary embedding modules of the decoder whose frequencies depend on the longest position of a forward (dynamic NTK, longrope).

    Relies on their attribute `rope_type`, a name or one for each kind of layer (since 4.43).
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    return [module for module in decoder.modules() if any(_by_length(kind) for kind in rope_types(module))]


def rope_types(module: Any) -> tuple[str, ...]:
    """The names of the kinds of rope a rotary module computes; none where it is no rotary module."""
    found = getattr(module, "rope_type", None)
    return tuple(found.values()) if isinstance(found, dict) else (found,) if isinstance(found, str) else ()


def _by_length(kind: str) -> bool:
    return kind == "longrope" or "dynamic" in kind


def rope_at_length(rotary: Any, x: Tensor, positions: Tensor, length: int, **more: Any) -> tuple[Tensor, ...]:
    """What `rotary` gives for `positions` [B, M] in a forward whose longest position is `length` - 1. `rotary` is not changed.

    Positions from `length` on are clamped. Relies on the frequencies being kept in buffers `inv_freq` and `original_inv_freq` (one of each
    for every kind of layer), on `max_seq_len_cached` saying for which length, and on outputs [B, M, ...] (since 4.48).
    """
    fresh = rotary.__class__.__new__(rotary.__class__)
    vars(fresh).update({name: value for name, value in vars(rotary).items() if name != "forward"})
    buffers = dict(rotary._buffers)
    for name in [name for name in buffers if name.endswith("original_inv_freq")]:
        buffers[name.replace("original_", "")] = buffers[name].clone()
    vars(fresh)["_buffers"] = buffers
    for name in [name for name in vars(fresh) if name.endswith("max_seq_len_cached")]:
        setattr(fresh, name, fresh.original_max_seq_len)
    last = positions.new_full((len(positions), 1), length - 1)
    out = type(rotary).forward(fresh, x, torch.cat([positions.clamp(max=length - 1), last], 1), **more)
    return tuple(part[:, :-1] for part in out)


# --- attention --------------------------------------------------------------------------------------------------------


def eager_configs(configs: Sequence[Any]) -> dict[int, Any]:
    """For each config its id, and a copy of it that asks for attention computed step by step. Configs within configs are copied too.

    Relies on `PreTrainedConfig._attn_implementation` being read in every forward (since 4.48) and setting those of the configs within.
    """
    found: dict[int, Any] = {}
    for config in configs:
        if id(config) not in found:
            found[id(config)] = copy.deepcopy(config)
            found[id(config)]._attn_implementation = "eager"
    return found


def attention_of(config: Any) -> str:
    """The attention that modules with this config run: "sdpa", "eager", ...

    Relies on `PreTrainedConfig._attn_implementation` (since 4.48): the public argument `attn_implementation` can only be set.
    """
    return config._attn_implementation


def ask_attention(config: Any, name: str) -> None:
    """Modules made from `config` run attention `name`. For layers made by hand, which `from_pretrained` has not dispatched.

    Relies on `PreTrainedConfig._attn_implementation` (since 4.48).
    """
    config._attn_implementation = name


# --- what models say of themselves ------------------------------------------------------------------------------------


def is_stateful(model: Any) -> bool:
    """Whether `model` keeps a recurrent state besides keys and values. Relies on `PreTrainedModel._is_stateful` (since 4.45)."""
    return bool(getattr(model, "_is_stateful", False))


def name_of(config: Any) -> str:
    """Where a model was loaded from. Relies on `PreTrainedConfig._name_or_path` (since 3.5; empty for models made by hand)."""
    return getattr(config, "_name_or_path", "")


def per_layer_inputs(model: Any, ids: Tensor, placeholders: Sequence[int], fill: int) -> Tensor:
    """What each layer of Gemma-4 adds for `ids` [B, M], beside their embeddings: [B, M, layers, D]. Placeholders read as id `fill`.

    Relies on `Gemma4TextModel.get_per_layer_inputs(input_ids, inputs_embeds)` (since 5.17), which would look for ids by their embeddings
    where only those are given.
    """
    marked = torch.isin(ids, torch.tensor(placeholders, device=ids.device))
    return model.get_decoder().get_per_layer_inputs(ids.masked_fill(marked, fill), None)


# --- models of speech -------------------------------------------------------------------------------------------------


def csm_embeddings(model: Any, ids: Tensor, values: Tensor | None, cutoffs: Tensor | None) -> Tensor:
    """Embeddings [B, P, D] of a CSM prompt, its sound put in.

    Relies on `CsmForConditionalGeneration._merge_input_ids_with_input_values(ids, values, cutoffs)` (since 4.53).
    """
    return model._merge_input_ids_with_input_values(ids, values, cutoffs)["inputs_embeds"]


def pocket_placeholders(model: Any) -> Any:
    """The ids that stand for sound in Pocket TTS prompts. Relies on its `_placeholder_token_ids()`."""
    return model._placeholder_token_ids()


def vibevoice_scheduler(model: Any, generation: Any) -> Any:
    """The noise scheduler that VibeVoice makes where none is given. Relies on its `_build_default_noise_scheduler` (since 5.17)."""
    return model._build_default_noise_scheduler(generation)


def is_vibevoice(model: Any) -> bool:
    """Whether `model` draws sound as VibeVoice does. Relies on its method `_sample_audio_latent` (since 5.17)."""
    return hasattr(model, "_sample_audio_latent")


def encodec_frame(codec: Any, codes: Tensor) -> Tensor:
    """The sound of one chunk of EnCodec codes, which the class would join to others.

    Relies on `EncodecModel._decode_frame(codes)` (since 4.31).
    """
    return codec._decode_frame(codes)


# --- torch's compiler -------------------------------------------------------------------------------------------------


def many_shapes(count: int) -> AbstractContextManager[Any]:
    """Inside, torch may compile one function for `count` shapes: transformers wraps the forwards of all models in the same function.

    Relies on `torch._dynamo.config.patch` and the two limits (torch 2.11).
    """
    now = torch._dynamo.config
    limits = {"recompile_limit": count, "accumulated_recompile_limit": 4 * count}
    return now.patch({name: max(limit, getattr(now, name)) for name, limit in limits.items()})
