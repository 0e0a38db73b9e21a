"""Models that mmspec refuses by their kind, with prompts of words alone: a refusal depends on no input."""

from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.sweep.case import Inputs, own_generate, padded, text_row
from tests.sweep.shrink import OVERRIDES, small_config, small_model

LLAMA = {"model_type": "llama"}
QWEN2 = {"model_type": "qwen2", "layer_types": ["full_attention"] * 2}

OVERRIDES.update(
    {
        "dia": {"delay_pattern": [0, 1, 2], "decoder_config": {"num_channels": 3}},
        "granite_speech": {"text_config": {"model_type": "granite"}, "projector_config": {"model_type": "blip_2_qformer"}},
        "granite_speech_plus": {"text_config": {"model_type": "granite"}, "projector_config": {"model_type": "blip_2_qformer"}},
        "kyutai_speech_to_text": {"codec_config": {"model_type": "mimi"}},
        "voxtral_realtime": {"text_config": {"model_type": "voxtral_realtime_text"}},
    }
)


class Words:
    """Prompts of words."""

    def alone(self, model: Any, row: int) -> Inputs:
        return text_row(row, 30)

    def batch(self, model: Any, rows: int) -> Inputs:
        return padded([dict(self.alone(model, row)) for row in range(rows)])


WORDS = Words()


def make(model_type: str, architecture: str) -> Any:
    """A small random model."""
    return small_model(getattr(transformers, architecture), small_config(CONFIG_MAPPING[model_type]))


__all__ = ["WORDS", "make", "own_generate"]
