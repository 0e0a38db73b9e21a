"""Every reach into transformers' internals: private methods, frames, replaced classes, and names that are not documented.

Each function says what it relies on and since which release; `tests/core/test_compat.py` holds a canary for each, which fails when a new
release of transformers no longer works as assumed here. No other module of mmspec may reach below transformers' documented interface.
"""

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

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
