"""The sweep's text-to-text encoder-decoder models: every such architecture of transformers' MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING.

Those of the mapping that read sound in a prompt stand in `tests.sweep.audio`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

from tests.sweep.case import Case, Inputs, text_row
from tests.sweep.shrink import OVERRIDES, small_config, small_model

FIRST, LAST = 5, 30
LENGTHS = (9, 22, 13)  # beyond the windows and blocks of local encoders
IN_PROMPT = (
    *("audioflamingo3", "glmasr", "granite_speech", "granite_speech_plus", "moss_transcribe_diarize", "musicflamingo", "nemo_speechlm"),
    *("qwen2_audio", "qwen3_asr", "vibevoice_asr", "voxtral", "voxtral_realtime"),
)
"""Types of the mapping that are decoder-only models with sound in their prompts."""

OVERRIDES.update(
    {
        "bigbird_pegasus": {"block_size": 2, "num_random_blocks": 1},
        "pegasus_x": {"num_global_tokens": 2, "block_size": 4},
        "led": {"attention_window": [4, 4]},
        "longt5": {"local_radius": 3, "global_block_size": 4, "encoder_attention_type": "transient-global"},
        "fsmt": {"langs": ["en", "de"]},
        "switch_transformers": {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        "nllb-moe": {"encoder_sparse_step": 1, "decoder_sparse_step": 1},
    }
)


def make(model_type: str, architecture: str) -> Any:
    """A small random model that has no forced ids of its own."""
    config_class = CONFIG_MAPPING[model_type]
    if model_type == "encoder-decoder":
        model = small_model(transformers.EncoderDecoderModel, _bert_to_bert())
    else:
        model = small_model(getattr(transformers, architecture), small_config(config_class))
    livelier(model).generation_config.num_beams = 1
    model.generation_config.decoder_start_token_id = 1
    model.generation_config.forced_eos_token_id = model.generation_config.forced_bos_token_id = None
    return model


def livelier(model: Any) -> Any:
    """Weights of the decoder's layers times three: with tied embeddings a random model writes what it has just read."""
    for name, parameter in model.get_decoder().named_parameters():
        if parameter.dim() == 2 and "embed" not in name and "shared" not in name:
            parameter.data.mul_(3)
    return model


def _bert_to_bert() -> Any:
    bert = small_config(transformers.BertConfig)
    decoder = small_config(transformers.BertConfig, is_decoder=True, add_cross_attention=True)
    return transformers.EncoderDecoderConfig.from_encoder_decoder_configs(bert, decoder)


def alone(model: Any, row: int) -> Inputs:
    return text_row(row, LAST, LENGTHS, first=FIRST)


def batch(model: Any, rows: int) -> Inputs:
    """Rows padded on the right, as the tokenizers of these models do."""
    return padded_right([alone(model, row) for row in range(rows)])


def padded_right(rows: list[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Rows in one batch; every input whose second dimension differs between rows is padded with zeros."""
    found = {}
    for name in rows[0]:
        longest = max(row[name].shape[1] for row in rows)
        found[name] = torch.cat([_longer(row[name], longest) for row in rows])
    return found


def _longer(tensor: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.pad(tensor, (*(0, 0) * (tensor.dim() - 2), 0, size - tensor.shape[1]))


def cases() -> list[Case]:
    """One case for every model type that has an encoder for text."""
    return [
        Case(name, "seq2seq", architecture, partial(make, name, architecture), alone, batch)
        for name, architecture in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.items()
        if name not in IN_PROMPT
    ]
