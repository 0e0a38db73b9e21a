"""The sweep's causal language models: every architecture of transformers' MODEL_FOR_CAUSAL_LM_MAPPING."""

import copy
import dataclasses
from functools import partial
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.sweep.case import Case, Inputs, own_generate, padded, text_row
from tests.sweep.shrink import small_config, small_model

FIRST, LAST = 5, 30  # prompts hold no special token and no placeholder
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 18,
    "rope_theta": 100.0,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # settings that change how positions or masks work
    "bert (is_decoder=False)": ("BertLMHeadModel", {"is_decoder": False}),
    "falcon (alibi)": ("FalconForCausalLM", {"alibi": True}),
    "gemma3_text (use_bidirectional_attention)": ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}),
    "llama (dynamic rope)": ("LlamaForCausalLM", {"rope_parameters": DYNAMIC, "max_position_embeddings": 12}),
    "llama (longrope)": ("LlamaForCausalLM", {"rope_parameters": LONGROPE}),
    "minicpm3 (longrope)": ("MiniCPM3ForCausalLM", {"rope_parameters": LONGROPE}),
    "phi3 (longrope)": ("Phi3ForCausalLM", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 18}),
    "phimoe (longrope)": ("PhimoeForCausalLM", {"rope_parameters": LONGROPE | {"short_mscale": 1.1, "long_mscale": 1.3}}),
    "qwen2 (dynamic rope, windows)": (
        "Qwen2ForCausalLM",
        {"rope_parameters": DYNAMIC, "max_position_embeddings": 12, "use_sliding_window": True, "sliding_window": 8},
    ),
}


def make(architecture: str, **given: Any) -> Any:
    """A small random model; encoders that can run as decoders do. `given` fields of the config win."""
    model_class = getattr(transformers, architecture)
    decoder = {"is_decoder": True} if "is_decoder" in {field.name for field in dataclasses.fields(model_class.config_class)} else {}
    return small_model(model_class, small_config(model_class.config_class, **decoder | given))


def alone(model: Any, row: int) -> Inputs:
    return text_row(row, LAST, first=FIRST)


def batch(model: Any, rows: int) -> Inputs:
    return padded([dict(alone(model, row)) for row in range(rows)])


def fresh_generate(model: Any, inputs: Inputs, tokens: int) -> list[int]:
    """As `own_generate`, by a copy: transformers keeps the rope of the longest sequence a model has run."""
    return own_generate(copy.deepcopy(model), inputs, tokens)


def cases() -> list[Case]:
    """One case for every model type that has a causal language model; those that read pictures or sound are of other kinds."""
    found = [
        Case(name, "causal", architecture, partial(make, architecture), alone, batch)
        for name, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
        if not architecture.endswith("ForConditionalGeneration")
    ]
    return found + [
        Case(name, "causal", architecture, partial(make, architecture, **given), alone, batch, fresh_generate)
        for name, (architecture, given) in VARIANTS.items()
    ]
