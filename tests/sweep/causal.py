"""The sweep's causal language models: every architecture of transformers' MODEL_FOR_CAUSAL_LM_MAPPING."""

import dataclasses
from functools import partial
from typing import Any

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.sweep.case import Case, Inputs, padded, text_row
from tests.sweep.shrink import small_config, small_model

FIRST, LAST = 5, 30  # prompts hold no special token and no placeholder


def make(architecture: str) -> Any:
    """A small random model; encoders that can run as decoders do."""
    model_class = getattr(transformers, architecture)
    decoder = {"is_decoder": True} if "is_decoder" in {field.name for field in dataclasses.fields(model_class.config_class)} else {}
    return small_model(model_class, small_config(model_class.config_class, **decoder))


def alone(model: Any, row: int) -> Inputs:
    return text_row(row, LAST, first=FIRST)


def batch(model: Any, rows: int) -> Inputs:
    return padded([dict(alone(model, row)) for row in range(rows)])


def cases() -> list[Case]:
    """One case for every model type that has a causal language model."""
    return [
        Case(name, "causal", architecture, partial(make, architecture), alone, batch)
        for name, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    ]
