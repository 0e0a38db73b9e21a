"""What the proof of an architecture depends on: class and attention settings, which of them the test suite covers, a fingerprint."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers

from mmspec.models.compat import attention_of, execution_device
from mmspec.models.proof.twin import EXPERTS, WINDOWS

_FLAGS = ("alibi", "use_alibi", "position_embedding_type", "use_bidirectional_attention", "is_causal", "use_sliding_window")
_IGNORED = (
    "_name_or_path",
    "transformers_version",
    "architectures",
    "dtype",
    "torch_dtype",
    "id2label",
    "label2id",
    "task_specific_params",
)

_ROPE = "rope=default"
_LAYERS, _UNUSED = "layers=full_attention rope=default", "use_sliding_window=False"
_FULL = f"{_LAYERS} {_UNUSED}"
_WINDOW = "rope=default window=sliding_window"
_MIXED = "layers=full_attention,sliding_attention rope=default"
_GEMMA = f"{_MIXED} use_bidirectional_attention=False window=sliding_window"
_STATES = "layers=full_attention,linear_attention rope=default"
_ALL_STATES, _CONVOLUTIONS = "layers=linear_attention", "layers=conv,full_attention rope=default"
_LFM3 = "layers=conv,full_attention,sliding_attention rope=default,proportional"
_BOTH_WAYS = "use_bidirectional_attention=True"
TESTED: Mapping[str, tuple[str, ...]] = {
    "LlamaForCausalLM": (_ROPE,),
    "Qwen2ForCausalLM": (_FULL,),
    "Qwen3ForCausalLM": (_FULL,),
    "MistralForCausalLM": (_WINDOW,),
    "Gemma3ForCausalLM": (_GEMMA,),
    "Phi3ForCausalLM": (_ROPE,),
    "GPT2LMHeadModel": ("",),
    "GPTNeoXForCausalLM": (_ROPE,),
    "OPTForCausalLM": ("",),
    "T5ForConditionalGeneration": ("text=t5",),
    "BartForConditionalGeneration": ("text=bart",),
    "WhisperForConditionalGeneration": ("text=whisper",),
    "Qwen2AudioForConditionalGeneration": (f"{_LAYERS} text=qwen2 {_UNUSED}",),
    "VoxtralForConditionalGeneration": (f"{_ROPE} text=llama",),
    "AudioFlamingo3ForConditionalGeneration": (f"{_LAYERS} text=qwen2 {_UNUSED}",),
    "GlmAsrForConditionalGeneration": (f"{_ROPE} text=llama",),
    "Qwen3ASRForConditionalGeneration": (f"{_LAYERS} text=qwen3 {_UNUSED}",),
    "LlavaForConditionalGeneration": (f"{_ROPE} text=llama",),
    "LlavaNextForConditionalGeneration": (f"{_ROPE} text=llama",),
    "LlavaOnevisionForConditionalGeneration": (f"{_LAYERS} text=qwen2 {_UNUSED}",),
    "VipLlavaForConditionalGeneration": (f"{_ROPE} text=llama",),
    "Qwen2VLForConditionalGeneration": (f"{_LAYERS} text=qwen2_vl_text {_UNUSED}",),
    "Qwen2_5_VLForConditionalGeneration": (f"{_LAYERS} text=qwen2_5_vl_text {_UNUSED}",),
    "Qwen3VLForConditionalGeneration": (f"{_ROPE} text=qwen3_vl_text",),
    "Qwen3VLMoeForConditionalGeneration": (f"{_ROPE} text=qwen3_vl_moe_text",),
    "Glm4vForConditionalGeneration": (f"{_ROPE} text=glm4v_text",),
    "Idefics2ForConditionalGeneration": (f"{_ROPE} text=mistral window=sliding_window",),
    "Idefics3ForConditionalGeneration": (f"{_ROPE} text=llama",),
    "SmolVLMForConditionalGeneration": (f"{_ROPE} text=llama",),
    "InternVLForConditionalGeneration": (f"{_LAYERS} text=qwen2 {_UNUSED}",),
    "AyaVisionForConditionalGeneration": (f"{_MIXED} text=cohere2 window=sliding_window",),
    "Mistral3ForConditionalGeneration": (f"{_ROPE} text=mistral window=sliding_window",),
    "Gemma3ForConditionalGeneration": (f"{_MIXED} text=gemma3_text use_bidirectional_attention=False window=sliding_window",),
    "PaliGemmaForConditionalGeneration": (
        f"{_ROPE} text=gemma {_BOTH_WAYS}",
        f"{_MIXED} text=gemma2 {_BOTH_WAYS} window=sliding_window",
    ),
    "MllamaForConditionalGeneration": (f"{_ROPE} text=mllama_text_model",),
    "Qwen3NextForCausalLM": (_STATES,),
    "Qwen3_5ForCausalLM": (_STATES,),
    "Qwen3_5MoeForCausalLM": (_STATES,),
    "Qwen3_5ForConditionalGeneration": (f"{_STATES} text=qwen3_5_text",),
    "Qwen3_5MoeForConditionalGeneration": (f"{_STATES} text=qwen3_5_moe_text",),
    "Mamba2ForCausalLM": (_ALL_STATES,),
    "FalconH1ForCausalLM": ("layers=hybrid rope=default",),
    "BambaForCausalLM": (_STATES,),
    "GraniteMoeHybridForCausalLM": (_STATES,),
    "Lfm2ForCausalLM": (_CONVOLUTIONS,),
    "Lfm2MoeForCausalLM": (_CONVOLUTIONS,),
    "Lfm2VlForConditionalGeneration": (f"{_CONVOLUTIONS} text=lfm2",),
    "Lfm3ForCausalLM": (f"{_LFM3} window=sliding_window",),
    "Lfm3VlForConditionalGeneration": (f"{_LFM3} text=lfm3 window=sliding_window",),
    "JambaForCausalLM": ("layers=full_attention,linear_attention",),
    "MambaForCausalLM": (_ALL_STATES,),
    "FalconMambaForCausalLM": (_ALL_STATES,),
    "ZambaForCausalLM": ("layers=hybrid,linear_attention",),
    "BailingHybridForCausalLM": (_STATES,),
    "KimiLinearForCausalLM": ("layers=full_attention,linear_attention",),
    "MiniMaxForCausalLM": (_STATES,),
    "OlmoHybridForCausalLM": (_STATES,),
    "RecurrentGemmaForCausalLM": ("layers=linear_attention,sliding_attention rope=default window=sliding_window,attention_window_size",),
}
"""Attention settings, as `facts` writes them, of every class the test suite compares with transformers' own `generate`."""


def facts(model: Any) -> str:
    """The attention settings of `model` that decide which positions see which, in one line."""
    config = model.config.get_text_config(decoder=True)
    found = {
        "layers": ",".join(sorted(set(getattr(config, "layer_types", None) or getattr(config, "attention_layers", None) or ()))),
        "rope": ",".join(sorted(rope_kinds(config))),
        "window": ",".join(name for name in WINDOWS if isinstance(getattr(config, name, None), int) and getattr(config, name)),
    }
    found |= {name: str(getattr(config, name)) for name in _FLAGS if getattr(config, name, None) is not None}
    found |= {} if config is model.config else {"text": config.model_type}
    return " ".join(f"{name}={value}" for name, value in sorted(found.items()) if value)


def rope_kinds(config: Any) -> set[str]:
    """The kinds of rotary embedding of a config, by `rope_type`."""
    found: set[str] = set()
    waiting = [getattr(config, "rope_parameters", None)]
    for rope in waiting:
        if isinstance(rope, Mapping):
            waiting += rope.values()
            found |= {str(rope["rope_type"])} if "rope_type" in rope else set()
    return found


def edges(model: Any) -> dict[str, int]:
    """Positions at which a model's computation changes, by name: attention windows and chunks, and the switch of rope factors."""
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or getattr(config, "attention_layers", None) or ())
    found = {}
    for name in WINDOWS:
        size = getattr(config, name, None)
        if isinstance(size, int) and not isinstance(size, bool) and size > 0 and kinds != {"full_attention"}:
            found[name.replace("_", " ").removesuffix(" size")] = size
    if rope_kinds(config) & {"longrope", "dynamic"}:
        rope = getattr(config, "rope_parameters", None) or {}
        switch = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
        found["rope switch"] = int(switch or getattr(config, "max_position_embeddings", 0) or 1)
    return found


def tested(model: Any) -> bool:
    """True if the test suite covers this class of transformers with these settings. Of an altered model this says nothing."""
    kind = type(model)
    return kind.__module__.startswith("transformers.") and facts(model) in TESTED.get(kind.__name__, ())


def proof_fingerprint(model: Any, family: Any) -> str:
    """A digest of all that a proof of `model` depends on except its weights: class, settings, sources, versions, dtype and device."""
    kind = type(model)
    about = {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "family": f"{type(family).__module__}.{type(family).__qualname__} {family!r}",
        "config": _plain(model.config.to_dict()),
        "attention": str(attention_of(model.config)),
        "dtype": str(model.dtype),
        "device": execution_device(model).type,
        "versions": [torch.__version__, transformers.__version__],
        "sources": [_digest_of_class(kind), _digest_of_core()],
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()


def _plain(fields: Any) -> Any:
    if isinstance(fields, Mapping):
        return {str(name): _plain(value) for name, value in fields.items() if name not in _IGNORED}
    return fields


@lru_cache(maxsize=64)
def _digest_of_class(kind: type) -> str:
    try:
        return hashlib.sha256(Path(inspect.getsourcefile(kind) or "").read_bytes()).hexdigest()
    except (OSError, TypeError):  # a class made in an interactive session
        return repr(id(kind))


@lru_cache(maxsize=1)
def _digest_of_core() -> str:
    files = sorted(Path(__file__).parents[1].rglob("*.py")) + sorted((Path(__file__).parents[2] / "core").rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def has_plain_reference(model: Any, family: Any) -> bool:
    """True if plain forwards without a cache give what `generate` does: not where prompts are read in both directions, or keys stay as they
    were cached.
    """
    text = model.config.get_text_config(decoder=True)
    return not (getattr(family, "cached_reference", False) or getattr(text, "use_bidirectional_attention", False))


def has_experts(model: Any) -> bool:
    """True if some layers of a model send each column to some of several experts."""
    config = model.config.get_text_config(decoder=True)
    return any(getattr(config, name, None) for name in EXPERTS)
