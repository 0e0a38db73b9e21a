"""Models that mmspec refuses by their kind: built without weights, at full size, since nothing of them is ever run."""

from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.sweep.case import Inputs, padded, text_row


class Words:
    """Prompts of words: a refusal depends on no input."""

    def alone(self, model: Any, row: int) -> Inputs:
        return text_row(row, 30)

    def batch(self, model: Any, rows: int) -> Inputs:
        return padded([dict(self.alone(model, row)) for row in range(rows)])


WORDS = Words()


def make(model_type: str, architecture: str) -> Any:
    """The model of its default config, its tensors without data."""
    model_class, config = getattr(transformers, architecture), CONFIG_MAPPING[model_type]()
    with torch.device("meta"):
        return model_class._from_config(config).eval()


def none(model: Any, inputs: Inputs, tokens: int) -> list[int]:
    """No reference: there are no weights."""
    raise NotImplementedError("built without weights, to be refused")
