"""The sweep's causal language models: every architecture of transformers' MODEL_FOR_CAUSAL_LM_MAPPING."""

from functools import partial
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.sweep.case import Case, Inputs, padded, text_row
from tests.sweep.shrink import small_config, small_model

FIRST, LAST = 5, 30  # prompts hold no special token and no placeholder


def make(model_type: str, architecture: str) -> Any:
    """A small random model."""
    return small_model(getattr(transformers, architecture), small_config(CONFIG_MAPPING[model_type]))


def alone(model: Any, row: int) -> Inputs:
    return text_row(row, LAST, first=FIRST)


def batch(model: Any, rows: int) -> Inputs:
    return padded([dict(alone(model, row)) for row in range(rows)])


def cases() -> list[Case]:
    """One case for every model type that has a causal language model."""
    return [
        Case(name, "causal", architecture, partial(make, name, architecture), alone, batch)
        for name, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    ]
