"""How the sweep builds small image-text models, and what of a picture each of them reads: tables by model type."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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

EMBEDDER = {"mm_embed_dim": 32, "mm_posemb_size": 16, "output_proj_dims": 32}
OMNI = {"vision_start_token_id": 31, "vision_end_token_id": 32, "audio_start_token_id": 33, "audio_end_token_id": 34}

STRIPS = {**TOWER, "image_size": 16}
MARKED = ("image_start_id", "image_end_id", "slice_start_id", "slice_end_id", "newline_id")
MARKS = {name: 35 + number for number, name in enumerate(MARKED)}

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
    "janus": {
        "vision_config": {**TOWER, "projection_dim": 32, "num_image_tokens": 4, "depth": 2},
        "vq_config": {"base_channels": 32, "latent_channels": 16, "num_patches": 2, "projection_dim": 32, "num_embeddings": 16},
    },
    "emu3": {
        "vq_config": {"codebook_size": 8, "base_channels": 32, "hidden_size": 32, "channel_multiplier": [1, 1], "embed_dim": 4},
        "vocabulary_map": {"<image>": 60, "<|extra_200|>": 59, **{f"<|visual token {i:06d}|>": 40 + i for i in range(8)}},
    },
    "chameleon": {
        "vq_config": {"num_embeddings": 10, "base_channels": 32, "latent_channels": 16, "embed_dim": 16, "channel_multiplier": [1, 1]},
        "vocabulary_map": {"<image>": 60, **{f"IMGIMG{chr(65 + i)}Z": 40 + i for i in range(10)}},
    },
    "florence2": {
        "text_config": {"model_type": "bart"},
        "vision_config": {
            **{"depths": [1, 1], "patch_size": [3, 3], "patch_stride": [2, 2], "patch_padding": [1, 1], "patch_prenorm": [False, True]},
            **{"embed_dim": [8, 16], "num_heads": [2, 2], "num_groups": [2, 2], "window_size": 4, "projection_dim": 32},
        },
    },
    "t5gemma2": {"encoder": {"mm_tokens_per_image": 4, "vision_config": SIGLIP | {"image_size": 16}}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "ernie4_5_vl_moe": {"text_config": {"moe_intermediate_size": [16, 16], "rope_parameters": ROPE | {"mrope_section": [1, 1, 2]}}},
    "cosmos3_edge": {"text_config": {"rope_parameters": ROPE}},
    "granite4_vision": {
        "vision_config": CLIP | {"hidden_size": 64},
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[-1, 0]],
        "image_grid_pinpoints": [[8, 16], [16, 8]],
    },
    "molmo2": {"vision_config": {"image_size": [8, 8]}, "adapter_config": {"vision_feature_layer": [1, 0]}},
    "muse_spark": {"audio_config": {"num_hidden_layers": 4, "hidden_sizes": [16] * 4, "out_hidden_size": 32}},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "aria": {"projector_patch_to_query_dict": {4: 2}},
    "deepseek_vl_hybrid": {
        "high_res_vision_config": {"image_size": 32, "patch_size": 4, "global_attn_indexes": [1], "output_channels": 16},
    },
    "gemma4": {
        "text_config": {"use_bidirectional_attention": "vision", "num_kv_shared_layers": 1},
        "vision_config": {"model_type": "gemma4_vision", "pooling_kernel_size": 2},
    },
    "gemma4_unified": {"vision_config": {"model_type": "gemma4_unified_vision", "pooling_kernel_size": 1, **EMBEDDER}},
    "kimi_k25": {"projection_hidden_size": 32},
    **{key: {"vision_config": STRIPS, "insert_layer_id": 0} for key in ("minicpmv4_6", "minicpm_ocr")},
    "minicpmv4_7": {"vision_config": STRIPS, "insert_layer_id": 0, "text_config": {"rope_parameters": ROPE}, **MARKS},
    "muse_glimmer": {"out_hidden_size": 128},
    "pp_formulanet": {
        "vision_config": {
            **{"decoder_hidden_size": 32, "output_channels": 16, "post_conv_in_channels": 16, "global_attn_indexes": [1]},
            **{"post_conv_mid_channels": 16, "post_conv_out_channels": 32},
        }
    },
    "paddleocr_vl": {"text_config": {"rope_parameters": ROPE}},
    "qwen2_5_omni_thinker": {**OMNI, "text_config": {"rope_parameters": ROPE}},
    "qwen3_omni_moe_thinker": {
        **OMNI,
        "text_config": {"rope_parameters": ROPE, "sliding_window": None},
        "vision_config": {"deepstack_visual_indexes": [0, 1]},
    },
    "cosmos3_omni": {"text_config": {"rope_parameters": ROPE}, "vision_config": {"deepstack_visual_indexes": [0, 1]}},
    "cohere_compass": {"vision_config": {"deepstack_visual_indexes": [0, 1]}},
    "hunyuan_vl": {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 1, 1]}}},
    "video_llama_3": {},
    "qianfan_ocr": {"vision_config": {"image_size": [8, 8], "patch_size": [2, 2]}},
    "llama4": {
        "vision_config": {"intermediate_size": 128, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
    },
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
    takes: int | None = None  # positions, where the model's `get_image_features` does not show them
    strip: bool = False  # pixels of pictures stand one behind the other along the last axis
    opens: bool = False  # the id that starts pictures stands in front of each


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


def conv_patches(generator: torch.Generator) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(32, 3, 4, 4, generator=generator), "image_grid_thw": torch.tensor([[1, 4, 8]])}


def merged_patches(generator: torch.Generator) -> dict[str, Tensor]:
    return {**patches(48).picture(generator), "image_merge_sizes": torch.tensor([2])}


def two_resolutions(generator: torch.Generator) -> dict[str, Tensor]:
    small, large = (torch.randn(1, 3, side, side, generator=generator) for side in (8, 32))
    return {"pixel_values": small, "high_res_pixel_values": large}


def placed_patches(generator: torch.Generator) -> dict[str, Tensor]:
    """Patches with their places; those behind the picture's own are padding."""
    places = torch.full((1, 16, 2), -1)
    places[0, :8] = torch.cartesian_prod(torch.arange(4), torch.arange(2))
    return {"pixel_values": torch.rand(1, 16, 48, generator=generator), "image_position_ids": places}


def strip(generator: torch.Generator) -> dict[str, Tensor]:
    """16 patches of 4 x 4 pixels, 4 a side."""
    return {"pixel_values": torch.randn(1, 3, 4, 64, generator=generator), "target_sizes": torch.tensor([[4, 4]], dtype=torch.int32)}


READS: dict[str, Read] = {
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7", "minicpm_ocr"), Read(strip, strip=True)),
    **dict.fromkeys(("llava", "vipllava", "internvl", "deepseek_vl", "ovis2"), square(8)),
    **dict.fromkeys(("aya_vision", "gemma3", "shieldgemma2", "cohere2_vision"), square(16)),
    **dict.fromkeys(("got_ocr2", "pp_chart2table"), square(64)),
    **dict.fromkeys(("llava_next", "llava_onevision", "llava_next_video"), Read(tiles)),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v"), patches(48)),
    **dict.fromkeys(("glm46v", "glmga", "glm4v_moe", "glm_ocr"), patches(96)),
    **dict.fromkeys(("idefics2", "idefics3", "smolvlm"), Read(masked, by_row=True)),
    **dict.fromkeys(("mistral3", "lighton_ocr"), sized(16)),
    "paligemma": square(8, first=True),
    **dict.fromkeys(("janus", "video_llava", "qianfan_ocr", "aria", "emu3", "chameleon", "step3p7"), square(8)),
    **dict.fromkeys(("exaone4_5", "cosmos3_omni", "cohere_compass"), patches(96)),
    **dict.fromkeys(("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"), replace(patches(96), opens=True)),
    **dict.fromkeys(("hyperclovax_vision_v2", "muse_glimmer", "minimax_m3_vl"), patches(96)),
    **dict.fromkeys(("paddleocr_vl", "kimi_k25"), Read(conv_patches)),
    "hunyuan_vl": patches(48),
    "llama4": square(8, takes=1),
    "florence2": square(16, first=True),
    "t5gemma2": square(16, takes=4),
    "video_llama_3": Read(merged_patches),
    "deepseek_vl_hybrid": Read(two_resolutions),
    "emu3": sized(8),
    "fuyu": Read(lambda generator: {"pixel_values": torch.randn(1, 4, 48, generator=generator)}, takes=4),
    "gemma4_unified": Read(placed_patches),
    "gemma4": Read(placed_patches),
}
"""What the processor of a model type makes of one picture."""

SEEN: dict[str, Callable[[torch.Generator], dict[str, Tensor]]] = {
    "vision-encoder-decoder": square(8).picture,
    "pp_formulanet": square(8).picture,
    "pix2struct": lambda generator: {
        "flattened_patches": torch.cat([torch.full((1, 6, 2), 1.0), torch.randn(1, 6, 768, generator=generator)], -1),
        "attention_mask": torch.ones(1, 6),
    },
    "udop": lambda generator: {
        **square(8).picture(generator),
        **{"input_ids": torch.randint(5, 30, (1, 9), generator=generator), "attention_mask": torch.ones(1, 9, dtype=torch.long)},
        "bbox": torch.rand(1, 9, 4, generator=generator),
    },
}
"""What an encoder of pictures reads, by model type: one picture, and no words of a prompt."""

NAMED = {
    **{"llava": "LLaVA", "llava_next": "LLaVA-NeXT", "llava_onevision": "LLaVA-OneVision", "vipllava": "VipLLaVA", "mllama": "Mllama"},
    **{"qwen2_vl": "Qwen2-VL", "qwen2_5_vl": "Qwen2.5-VL", "qwen3_vl": "Qwen3-VL", "qwen3_vl_moe": "Qwen3-VL-MoE", "glm4v": "GLM-4V"},
    **{"idefics2": "Idefics2", "idefics3": "Idefics3", "smolvlm": "SmolVLM", "internvl": "InternVL", "aya_vision": "Aya Vision"},
    **{"mistral3": "Mistral 3", "gemma3": "Gemma-3 VLM", "shieldgemma2": "Gemma-3 VLM", "paligemma": "PaliGemma"},
    **{"qwen3_5": "Qwen3.5", "qwen3_5_moe": "Qwen3.5-MoE", "lfm2_vl": "LFM2-VL", "lfm3_vl": "LFM3-VL"},
}
"""Model types whose small model stands in `tests.seeing`."""
