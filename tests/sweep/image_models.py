"""How the sweep builds small image-text models, and what of a picture each of them reads: tables by model type."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TEXT = {"model_type": "llama"}
TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
CLIP = {"model_type": "clip_vision_model", **TOWER, "projection_dim": 16}
SIGLIP = {"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False}
PIXTRAL = {"model_type": "pixtral", **TOWER}
GLM_TOWER = {"model_type": "glm4v_vision"}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}

CONFIGS: dict[str, dict[str, Any]] = {
    "cohere2_vision": {"text_config": {"model_type": "cohere2"}, "vision_config": SIGLIP | {"image_size": 16}, "downsample_factor": 2},
    "deepseek_vl": {"text_config": TEXT, "vision_config": SIGLIP},
    "got_ocr2": {"text_config": {"model_type": "qwen2"}, "vision_config": {"image_size": 64}},
    "pp_chart2table": {"text_config": {"model_type": "qwen2"}, "vision_config": {"image_size": 64}},
    "lighton_ocr": {"text_config": {"model_type": "qwen3"}, "vision_config": PIXTRAL | {"image_size": 16}, "spatial_merge_size": 2},
    "llava_next_video": {
        "text_config": TEXT,
        "vision_config": CLIP,
        "vision_feature_layer": -1,
        "image_grid_pinpoints": [[8, 16], [16, 8], [16, 16]],
    },
    "perception_lm": {"text_config": TEXT},
    "ovis2": {"text_config": {"model_type": "qwen2"}},
    "video_llava": {"text_config": TEXT, "vision_config": CLIP, "vision_feature_layer": -1},
    "janus": {"text_config": TEXT},
    **{
        key: {"text_config": {"model_type": "glm4v_text", "rope_parameters": ROPE}, "vision_config": GLM_TOWER}
        for key in ("glm46v", "glmga")
    },
    "glm4v_moe": {"text_config": {"rope_parameters": ROPE}},
    "glm_ocr": {"text_config": {"rope_parameters": ROPE}},
}
"""Sub-configs whose class the config leaves open, by model type."""


@dataclass(frozen=True)
class Read:
    """One picture as the processor returns it: tensors that are put one behind the other along the first axis."""

    picture: Callable[[torch.Generator], dict[str, Tensor]]
    by_row: bool = False  # pictures stand in a row's own axis, filled up to the most of the batch
    first: bool = False  # all pictures stand in front of the words


def square(side: int, **more: Any) -> Read:
    return Read(lambda generator: {"pixel_values": torch.randn(1, 3, side, side, generator=generator)}, **more)


def sized(side: int) -> Read:
    return Read(
        lambda generator: {
            "pixel_values": torch.randn(1, 3, side, side, generator=generator),
            "image_sizes": torch.tensor([[side, side]]),
        }
    )


def patches(width: int, height: int = 4, across: int = 8) -> Read:
    return Read(
        lambda generator: {
            "pixel_values": torch.randn(height * across, width, generator=generator),
            "image_grid_thw": torch.tensor([[1, height, across]]),
        }
    )


def tiles(generator: torch.Generator) -> dict[str, Tensor]:
    pixels = torch.zeros(1, 5, 3, 8, 8)
    pixels[0, :3] = torch.randn(3, 3, 8, 8, generator=generator)
    return {"pixel_values": pixels, "image_sizes": torch.tensor([[8, 16]])}


def masked(generator: torch.Generator) -> dict[str, Tensor]:
    return {
        "pixel_values": torch.randn(1, 3, 8, 8, generator=generator),
        "pixel_attention_mask": torch.ones(1, 8, 8, dtype=torch.long),
    }


READS: dict[str, Read] = {
    **dict.fromkeys(("llava", "vipllava", "internvl", "deepseek_vl", "ovis2"), square(8)),
    **dict.fromkeys(("aya_vision", "gemma3", "shieldgemma2", "cohere2_vision"), square(16)),
    **dict.fromkeys(("got_ocr2", "pp_chart2table"), square(64)),
    **dict.fromkeys(("llava_next", "llava_onevision", "llava_next_video"), Read(tiles)),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v"), patches(48)),
    **dict.fromkeys(("glm46v", "glmga", "glm4v_moe", "glm_ocr"), patches(96)),
    **dict.fromkeys(("idefics2", "idefics3", "smolvlm"), Read(masked, by_row=True)),
    **dict.fromkeys(("mistral3", "lighton_ocr"), sized(16)),
    "paligemma": square(8, first=True),
}
"""What the processor of a model type makes of one picture."""

NAMED = {
    **{"llava": "LLaVA", "llava_next": "LLaVA-NeXT", "llava_onevision": "LLaVA-OneVision", "vipllava": "VipLLaVA", "mllama": "Mllama"},
    **{"qwen2_vl": "Qwen2-VL", "qwen2_5_vl": "Qwen2.5-VL", "qwen3_vl": "Qwen3-VL", "qwen3_vl_moe": "Qwen3-VL-MoE", "glm4v": "GLM-4V"},
    **{"idefics2": "Idefics2", "idefics3": "Idefics3", "smolvlm": "SmolVLM", "internvl": "InternVL", "aya_vision": "Aya Vision"},
    **{"mistral3": "Mistral 3", "gemma3": "Gemma-3 VLM", "shieldgemma2": "Gemma-3 VLM", "paligemma": "PaliGemma"},
}
"""Model types whose small model stands in `tests.seeing`."""
