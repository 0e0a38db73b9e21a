"""Small speech language models: decoder-only models whose prompts hold sound where placeholders stand.

Every prompt has one clip between words. Features are padded to one size, as feature extractors do; masks say what was heard.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mmspec.models.families.multimodal import never_generated_ids_of
from tests import families
from tests.sweep.case import Inputs, own_generate, padded
from tests.sweep.seq2seq import padded_right
from tests.sweep.shrink import OVERRIDES, sharpen, small_config, small_model

FIRST, LAST = 5, 30
QWEN2 = {"model_type": "qwen2", "layer_types": ["full_attention"] * 2}
QWEN3 = {"model_type": "qwen3", "layer_types": ["full_attention"] * 2}
FLAMINGO = {"model_type": "audioflamingo3_encoder", "max_source_positions": 20}

OVERRIDES.update(
    {
        "granite_speech": {
            "encoder_config": {"hidden_dim": 16, "input_dim": 8, "num_heads": 2, "dim_head": 8, "context_size": 10, "max_pos_emb": 16},
            "projector_config": {"model_type": "blip_2_qformer", "hidden_size": 16, "encoder_hidden_size": 16},
            "has_lora_adapter": False,
            "downsample_rate": 5,
            "window_size": 15,
        },
        "musicflamingo": {"audio_config": FLAMINGO, "text_config": QWEN2},
        "moss_transcribe_diarize": {"audio_config": {"max_source_positions": 20}, "text_config": QWEN3},
        "fun_asr_nano": {
            "audio_config": {"model_type": "fun_asr_nano_encoder", "num_stacked_frames": 2, "num_timestamp_prediction_layers": 1},
            "adaptor_config": {"intermediate_size": 8},
            "text_config": QWEN3,
        },
    }
)


@dataclass(frozen=True)
class Prompts:
    """`clips` maps the frames of each row's clip to the positions it takes in the prompt; all are padded to `size` frames."""

    size: int
    mask: str | None
    clips: dict[int, int]
    step: tuple[int, ...] = (8,)
    last: bool = True  # time is the last dimension of the features
    masks_positions: bool = False  # the mask is of positions, not of frames

    def alone(self, model: Any, row: int) -> Inputs:
        generator = torch.Generator().manual_seed(100 + row)
        frames = (list(self.clips) * 3)[row]
        before, after = (torch.randint(FIRST, LAST, (1, n), generator=generator) for n in ((2, 6, 3)[row], 4))
        ids = torch.cat([before, torch.full((1, self.clips[frames]), audio_id(model)), after], 1)
        sound = torch.randn(1, self.size, *self.step, generator=generator)
        features = sound.transpose(1, 2) if self.last else sound
        found = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "input_features": features}
        if self.mask is not None:
            heard = (torch.arange(self.size) < frames).long()[None]
            found[self.mask] = torch.ones(1, self.clips[frames], dtype=torch.bool) if self.masks_positions else heard
        return found

    def batch(self, model: Any, rows: int) -> Inputs:
        """Words padded on the left, as the tokenizers of these models do."""
        each = [dict(self.alone(model, row)) for row in range(rows)]
        sound = padded_right([{name: value for name, value in row.items() if name not in ("input_ids", "attention_mask")} for row in each])
        return padded(each) | sound


def audio_id(model: Any) -> int:
    """The placeholder for sound."""
    config = model.config
    return config.audio_token_id if getattr(config, "audio_token_id", None) is not None else config.audio_token_index


PROMPTS: dict[str, Prompts] = {
    "audioflamingo3": Prompts(40, "input_features_mask", {20: 5, 40: 10, 28: 7}),
    "fun_asr_nano": Prompts(12, "input_features_mask", {6: 6, 12: 12, 9: 9}, (16,), last=False),
    "glmasr": Prompts(40, "input_features_mask", {20: 2, 40: 5, 28: 3}),
    "granite_speech": Prompts(30, "input_features_mask", {30: 6}, last=False, masks_positions=True),
    "moss_transcribe_diarize": Prompts(40, "input_features_mask", {20: 3, 40: 5, 28: 4}),
    "musicflamingo": Prompts(40, "input_features_mask", {20: 5, 40: 10, 28: 7}),
    "qwen2_audio": Prompts(40, "feature_attention_mask", {20: 5, 40: 10, 28: 7}),
    "qwen3_asr": Prompts(100, "input_features_mask", {20: 3, 40: 5, 28: 4}),
    "voxtral": Prompts(40, None, {40: 5}),
}
_NAMED: dict[str, Callable[[], Any]] = {
    "audioflamingo3": families.audio_flamingo3,
    "glmasr": families.glm_asr,
    "qwen2_audio": families.qwen2_audio,
    "qwen3_asr": families.qwen3_asr,
    "voxtral": families.voxtral,
}


def make(model_type: str, architecture: str) -> Any:
    """A small random model."""
    if model_type in _NAMED:
        torch.manual_seed(0)
        return sharpen(_NAMED[model_type]())
    return small_model(getattr(transformers, architecture), small_config(CONFIG_MAPPING[model_type]))


def without_placeholders(model: Any, inputs: Inputs, tokens: int) -> list[int]:
    """New tokens of one row by the class's own greedy `generate`, kept from writing what stands for sound."""
    before = model.generation_config.suppress_tokens
    model.generation_config.suppress_tokens = list(never_generated_ids_of(model))
    try:
        return own_generate(model, inputs, tokens)
    finally:
        model.generation_config.suppress_tokens = before
