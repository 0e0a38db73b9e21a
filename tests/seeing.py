"""Small random models that see, and prompts with pictures as each family's processor would make them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from torch.nn.functional import pad

from tests.sizes import GEMMA_LAYERS, LLAMA, STATES, VOCAB, Case

PLACE, START, END, CLIP = VOCAB - 1, VOCAB - 2, VOCAB - 3, VOCAB - 4  # the placeholder, what encloses it, and videos' placeholder
WORDS = CLIP
TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
Looks = tuple[list[int], dict[str, Tensor]]
"""How many positions each picture takes, one after the other, and what the model takes of all of them."""


@dataclass(frozen=True)
class VisionView:
    """A family, what its processor makes of `pictures` a row, and where its pictures are looked at."""

    case: Case
    look: Callable[[Sequence[int]], Looks]
    tower: str
    needs: tuple[str, ...] = ()  # without which a prompt with pictures must be refused
    place: int = PLACE
    brackets: bool = True
    types: Callable[[Tensor], dict[str, Tensor]] = field(default=lambda ids: {})  # token types from ids
    first: bool = False  # its processor puts all pictures in front


def nested(config: type, text: Any, vision: Any, **more: Any) -> Any:
    return config(text_config=text.to_dict(), vision_config=vision.to_dict(), **more)


# --- what processors return -------------------------------------------------------------------------------------------


def squares(side: int, takes: int) -> Callable[[Sequence[int]], Looks]:
    """Pictures of one size."""
    return lambda pictures: ([takes] * sum(pictures), {"pixel_values": torch.randn(sum(pictures), 3, side, side)})


def tiled(pictures: Sequence[int]) -> Looks:
    """Pictures cut in up to four 8 x 8 tiles beside an overview; each tile gives 2 x 2 features, each line of them a newline."""
    kinds = (((8, 16), 3, 4 + 2 * 5), ((16, 8), 3, 4 + 4 * 3), ((16, 16), 5, 4 + 4 * 5))
    chosen = [kinds[i % 3] for i in range(sum(pictures))]
    pixels = torch.zeros(len(chosen), 5, 3, 8, 8)
    for picture, (_, tiles, _) in zip(pixels, chosen, strict=True):
        picture[:tiles] = torch.randn(tiles, 3, 8, 8)
    return [takes for *_, takes in chosen], {"pixel_values": pixels, "image_sizes": torch.tensor([size for size, *_ in chosen])}


def gridded(width: int, name: str = "image_grid_thw", pixels: str = "pixel_values", frames: int = 1) -> Callable[[Sequence[int]], Looks]:
    """Patches of all pictures one behind the other, `width` numbers each, four of them to a position."""

    def look(pictures: Sequence[int]) -> Looks:
        grids = [((frames, 4, 4), (frames, 4, 8), (frames, 6, 4))[i % 3] for i in range(sum(pictures))]
        sizes = [t * h * w for t, h, w in grids]
        return [size // 4 for size in sizes], {pixels: torch.randn(sum(sizes), width), name: torch.tensor(grids)}

    return look


def padded(pictures: Sequence[int]) -> Looks:
    """Pictures by row, rows with fewer filled up with black ones; odd ones are narrower and padded, too."""
    pixels = torch.zeros(len(pictures), max(pictures), 3, 8, 8)
    mask = torch.zeros(len(pictures), max(pictures), 8, 8, dtype=torch.long)
    for row, count in enumerate(pictures):
        for picture in range(count):
            width = 8 if picture % 2 == 0 else 6
            pixels[row, picture, :, :, :width] = torch.randn(3, 8, width)
            mask[row, picture, :, :width] = 1
    return [4] * sum(pictures), {"pixel_values": pixels, "pixel_attention_mask": mask}


def crossing(pictures: Sequence[int]) -> Looks:
    """Pictures by row, in one or two tiles; what looks at them is in `crossed`."""
    pixels = torch.zeros(len(pictures), max(pictures), 2, 3, 8, 8)
    ratios, tiles = torch.zeros(len(pictures), max(pictures), dtype=torch.long), torch.zeros(len(pictures), max(pictures), 2)
    tiles[..., 0] = 1  # as the processor has it for pictures that are not there
    for row, count in enumerate(pictures):
        for picture in range(count):
            many = 1 + (row + picture) % 2
            pixels[row, picture, :many] = torch.randn(many, 3, 8, 8)
            ratios[row, picture], tiles[row, picture, :many] = many, 1
    return [1] * sum(pictures), {"pixel_values": pixels, "aspect_ratio_ids": ratios, "aspect_ratio_mask": tiles.long()}


def crossed(ids: Tensor, tiles: Tensor) -> Tensor:
    """[B, P, pictures, tiles]: a picture is looked at from its placeholder to the next one; those side by side, together."""
    found = torch.zeros(*ids.shape, *tiles.shape[1:], dtype=torch.long)
    for row, line in enumerate(ids.tolist()):
        places, end = [i for i, token in enumerate(line) if token == VOCAB], len(line)
        for picture in reversed(range(len(places))):
            following = places[picture + 1] if picture + 1 < len(places) else len(line)
            end = end if following == places[picture] + 1 else following
            found[row, places[picture] : end, picture] = tiles[row, picture]
    return found


def seen(name: str, pictures: Sequence[int] = (1, 2, 1), side: str = "left", seed: int = 1) -> dict[str, Tensor]:
    """Ragged prompts with so many pictures each, between words, padded on the given side."""
    torch.manual_seed(seed)
    vision = SIGHTS[name]
    takes, looks = vision.look(pictures) if sum(pictures) else ([], {})
    left, prompts = iter(takes), []
    for row, count in enumerate(pictures):
        parts = [] if vision.first else [words((2, 5, 3)[row % 3])]
        for _ in range(count):
            place = torch.full((next(left),), vision.place)
            parts += [torch.tensor([START]), place, torch.tensor([END])] if vision.brackets else [place]
            parts += [] if vision.first else [words(2)]
        prompts.append(torch.cat([*parts, words(3 + row)]))
    longest = max(map(len, prompts))
    fill = [longest - len(prompt) for prompt in prompts]
    ids = torch.stack([pad(prompt, (n, 0) if side == "left" else (0, n)) for prompt, n in zip(prompts, fill, strict=True)])
    found = {"input_ids": ids, "attention_mask": (ids != 0).long(), **looks, **vision.types(ids)}
    if "aspect_ratio_mask" in looks:
        found["cross_attention_mask"] = crossed(ids, looks["aspect_ratio_mask"] * (looks["aspect_ratio_ids"] > 0)[..., None])
    return found


def filmed(name: str, seed: int = 1) -> dict[str, Tensor]:
    """Prompts with a video of two frames each between words, and a picture behind the first one's."""
    torch.manual_seed(seed)
    if name == "LLaVA-OneVision":
        takes, looks = [3, 3], {"pixel_values_videos": torch.randn(2, 2, 3, 8, 8)}
        image, more = 14, {"pixel_values": torch.randn(1, 3, 3, 8, 8), "image_sizes": torch.tensor([[8, 16]])}
    else:
        takes, looks = gridded(48, "video_grid_thw", "pixel_values_videos", 2)((1, 1))
        (image,), more = gridded(48)((1,))
    rows = [torch.cat([words(2 + row), torch.full((n,), CLIP), words(3)]) for row, n in enumerate(takes)]
    rows[0] = torch.cat([rows[0], torch.full((image,), PLACE), words(2)])
    longest = max(map(len, rows))
    ids = torch.stack([pad(row, (longest - len(row), 0)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), **looks, **more, **SIGHTS[name].types(ids)}


def words(count: int) -> Tensor:
    return torch.randint(3, WORDS, (count,))


def modalities(ids: Tensor) -> dict[str, Tensor]:
    return {"mm_token_type_ids": (ids == PLACE).int() + 2 * (ids == CLIP).int()}


# --- the models -------------------------------------------------------------------------------------------------------


def clip() -> Any:
    return hf.CLIPVisionConfig(**TOWER, image_size=8, patch_size=4, projection_dim=16)


def siglip(side: int = 8) -> Any:
    return hf.SiglipVisionConfig(**TOWER, image_size=side, patch_size=4, vision_use_head=False)


def llava() -> Any:
    return hf.LlavaForConditionalGeneration(nested(hf.LlavaConfig, hf.LlamaConfig(**LLAMA), clip(), image_token_index=PLACE))


def vip_llava() -> Any:
    more = {"image_token_index": PLACE, "vision_feature_layers": [-1, -2], "vision_feature_layer": [-1, -2]}
    return hf.VipLlavaForConditionalGeneration(nested(hf.VipLlavaConfig, hf.LlamaConfig(**LLAMA), clip(), **more))


def llava_next() -> Any:
    more = {"image_token_index": PLACE, "image_grid_pinpoints": [[8, 16], [16, 8], [16, 16]]}
    return hf.LlavaNextForConditionalGeneration(nested(hf.LlavaNextConfig, hf.LlamaConfig(**LLAMA), clip(), **more))


def llava_onevision() -> Any:
    more = {"image_token_index": PLACE, "video_token_index": CLIP, "image_grid_pinpoints": [[8, 16], [16, 8], [16, 16]]}
    return hf.LlavaOnevisionForConditionalGeneration(nested(hf.LlavaOnevisionConfig, hf.Qwen2Config(**LLAMA), siglip(), **more))


QWEN_IDS = {"image_token_id": PLACE, "video_token_id": CLIP, "vision_start_token_id": START, "vision_end_token_id": END}
QWEN_TEXT = {**LLAMA, "rope_parameters": ROPE}
QWEN_TOWER = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 1, "in_channels": 3}


def qwen2_vl() -> Any:
    vision = hf.models.qwen2_vl.configuration_qwen2_vl.Qwen2VLVisionConfig(**QWEN_TOWER, embed_dim=16, hidden_size=32)
    text = hf.Qwen2VLTextConfig(**QWEN_TEXT)
    return hf.Qwen2VLForConditionalGeneration(nested(hf.Qwen2VLConfig, text, vision, **QWEN_IDS))


def qwen2_5_vl() -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]}
    vision = hf.models.qwen2_5_vl.configuration_qwen2_5_vl.Qwen2_5_VLVisionConfig(**QWEN_TOWER, **sizes)
    text = hf.Qwen2_5_VLTextConfig(**QWEN_TEXT)
    return hf.Qwen2_5_VLForConditionalGeneration(nested(hf.Qwen2_5_VLConfig, text, vision, **QWEN_IDS))


DEEP = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "out_hidden_size": 32,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
}


def qwen3_vl() -> Any:
    vision = hf.models.qwen3_vl.configuration_qwen3_vl.Qwen3VLVisionConfig(**QWEN_TOWER, **DEEP)
    text = hf.Qwen3VLTextConfig(**QWEN_TEXT | {"num_hidden_layers": 3}, head_dim=8)
    return hf.Qwen3VLForConditionalGeneration(nested(hf.Qwen3VLConfig, text, vision, **QWEN_IDS))


def qwen3_vl_moe() -> Any:
    vision = hf.models.qwen3_vl_moe.configuration_qwen3_vl_moe.Qwen3VLMoeVisionConfig(**QWEN_TOWER, **DEEP)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
    text = hf.models.qwen3_vl_moe.configuration_qwen3_vl_moe.Qwen3VLMoeTextConfig(**QWEN_TEXT, **experts)
    return hf.Qwen3VLMoeForConditionalGeneration(nested(hf.Qwen3VLMoeConfig, text, vision, **QWEN_IDS))


def glm4v() -> Any:
    tower = {**QWEN_TOWER, "hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 32, "image_size": 32}
    vision = hf.models.glm4v.configuration_glm4v.Glm4vVisionConfig(**tower)
    rope = ROPE | {"partial_rotary_factor": 0.5}
    text = hf.models.glm4v.configuration_glm4v.Glm4vTextConfig(**LLAMA | {"num_attention_heads": 2}, rope_parameters=rope)
    ids = {"image_token_id": PLACE, "video_token_id": CLIP, "image_start_token_id": START, "image_end_token_id": END}
    ids |= {"video_start_token_id": VOCAB - 5, "video_end_token_id": VOCAB - 6}
    return hf.Glm4vForConditionalGeneration(nested(hf.Glm4vConfig, text, vision, **ids))


def idefics3() -> Any:
    vision = hf.models.idefics3.configuration_idefics3.Idefics3VisionConfig(**TOWER, image_size=8, patch_size=2)
    more = {"image_token_id": PLACE, "scale_factor": 2, "pad_token_id": 0}
    return hf.Idefics3ForConditionalGeneration(nested(hf.Idefics3Config, hf.LlamaConfig(**LLAMA), vision, **more))


def smolvlm() -> Any:
    vision = hf.models.smolvlm.configuration_smolvlm.SmolVLMVisionConfig(**TOWER, image_size=8, patch_size=2)
    more = {"image_token_id": PLACE, "scale_factor": 2, "pad_token_id": 0}
    return hf.SmolVLMForConditionalGeneration(nested(hf.SmolVLMConfig, hf.LlamaConfig(**LLAMA), vision, **more))


def idefics2() -> Any:
    vision = hf.models.idefics2.configuration_idefics2.Idefics2VisionConfig(**TOWER, image_size=8, patch_size=2)
    sizes = {"resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 8, "num_key_value_heads": 1}
    resampler = hf.models.idefics2.configuration_idefics2.Idefics2PerceiverConfig(**sizes, hidden_size=32)
    more = {"image_token_id": PLACE, "perceiver_config": resampler.to_dict()}
    return hf.Idefics2ForConditionalGeneration(nested(hf.Idefics2Config, hf.MistralConfig(**LLAMA), vision, **more))


def internvl() -> Any:
    vision = hf.InternVLVisionConfig(**TOWER, image_size=[8, 8], patch_size=[2, 2])
    more = {"image_token_id": PLACE, "image_seq_length": 4, "downsample_ratio": 0.5, "vision_feature_layer": -1}
    return hf.InternVLForConditionalGeneration(nested(hf.InternVLConfig, hf.Qwen2Config(**LLAMA), vision, **more))


def aya_vision() -> Any:
    more = {"image_token_index": PLACE, "downsample_factor": 2, "vision_feature_layer": -1}
    text = hf.Cohere2Config(**LLAMA | {"num_hidden_layers": 4}, sliding_window=8, layer_types=GEMMA_LAYERS)
    return hf.AyaVisionForConditionalGeneration(nested(hf.AyaVisionConfig, text, siglip(16), **more))


def mistral3() -> Any:
    vision = hf.PixtralVisionConfig(**TOWER, image_size=16, patch_size=4)
    more = {"image_token_index": PLACE, "spatial_merge_size": 2, "vision_feature_layer": -1}
    return hf.Mistral3ForConditionalGeneration(nested(hf.Mistral3Config, hf.MistralConfig(**LLAMA), vision, **more))


def gemma3() -> Any:
    sizes = {**LLAMA, "num_hidden_layers": 4, "head_dim": 8, "sliding_window": 8, "layer_types": GEMMA_LAYERS}
    ids = {"image_token_index": PLACE, "boi_token_index": START, "eoi_token_index": END}
    config = nested(hf.Gemma3Config, hf.Gemma3TextConfig(**sizes), siglip(16), mm_tokens_per_image=4, **ids)
    return hf.Gemma3ForConditionalGeneration(config)


def paligemma() -> Any:
    text = hf.GemmaConfig(**LLAMA, head_dim=8)
    more = {"image_token_index": PLACE, "projection_dim": 32, "hidden_size": 32}
    return hf.PaliGemmaForConditionalGeneration(nested(hf.PaliGemmaConfig, text, siglip(), **more))


def paligemma2() -> Any:
    sizes = {**LLAMA, "num_hidden_layers": 4, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8}
    text = hf.Gemma2Config(**sizes, layer_types=GEMMA_LAYERS)
    more = {"image_token_index": PLACE, "projection_dim": 32, "hidden_size": 32}
    return hf.PaliGemmaForConditionalGeneration(nested(hf.PaliGemmaConfig, text, siglip(), **more))


def mllama() -> Any:
    ratios = {"max_num_tiles": 2, "supported_aspect_ratios": [[1, 1], [1, 2]], "intermediate_layers_indices": [0]}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 2}
    vision = hf.models.mllama.configuration_mllama.MllamaVisionConfig(**sizes, **ratios, vision_output_dim=32, image_size=8, patch_size=4)
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    text = hf.models.mllama.configuration_mllama.MllamaTextConfig(
        **LLAMA | {"num_hidden_layers": 4}, cross_attention_layers=[1, 3], rope_parameters=rope
    )
    model = hf.MllamaForConditionalGeneration(nested(hf.MllamaConfig, text, vision, image_token_index=VOCAB))
    for name, gate in model.named_parameters():
        if "attn_gate" in name or "mlp_gate" in name:
            torch.nn.init.constant_(gate, 2.0)  # they open in training: at 0 nothing is seen
    return model


QWEN_LINEAR = {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "head_dim": 8}
LINEAR_FIRST = {"layer_types": ["linear_attention", "full_attention"]}


def qwen3_5() -> Any:
    from transformers.models.qwen3_5 import configuration_qwen3_5 as own

    text = own.Qwen3_5TextConfig(**QWEN_TEXT, **QWEN_LINEAR, **LINEAR_FIRST)
    vision = own.Qwen3_5VisionConfig(**QWEN_TOWER, **DEEP)
    return hf.Qwen3_5ForConditionalGeneration(nested(own.Qwen3_5Config, text, vision, **QWEN_IDS))


def qwen3_5_moe() -> Any:
    from transformers.models.qwen3_5_moe import configuration_qwen3_5_moe as own

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    text = own.Qwen3_5MoeTextConfig(**QWEN_TEXT, **QWEN_LINEAR, **LINEAR_FIRST, **experts)
    vision = own.Qwen3_5MoeVisionConfig(**QWEN_TOWER, **DEEP)
    return hf.Qwen3_5MoeForConditionalGeneration(nested(own.Qwen3_5MoeConfig, text, vision, **QWEN_IDS))


def lfm2_vl() -> Any:
    vision = hf.Siglip2VisionConfig(**TOWER, patch_size=4, num_patches=16)
    text = hf.Lfm2Config(**LLAMA, layer_types=["conv", "full_attention"], conv_L_cache=3)
    model = hf.Lfm2VlForConditionalGeneration(nested(hf.Lfm2VlConfig, text, vision, image_token_id=PLACE, projector_hidden_size=16))
    torch.nn.init.normal_(model.model.multi_modal_projector.linear_2.weight, std=2.0)  # so that pictures matter
    return model


def lfm3_vl() -> Any:
    kinds = ["conv", "sliding_attention", "full_attention", "conv"]
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    vision = hf.Lfm3VlVisionConfig(**tower, patch_size=4, temporal_patch_size=1, layer_types=["conv", "full_attention"])
    text = hf.Lfm3Config(**LLAMA | {"num_hidden_layers": 4}, head_dim=8, layer_types=kinds, conv_L_cache=3, sliding_window=8)
    return hf.Lfm3VlForConditionalGeneration(nested(hf.Lfm3VlConfig, text, vision, **QWEN_IDS, projector_hidden_size=16))


def packed(pictures: Sequence[int]) -> Looks:
    """Patches of 4 x 4 in rows padded to the longest picture's, four of them to a position."""
    shapes = torch.tensor([((4, 4), (2, 6), (4, 2))[i % 3] for i in range(sum(pictures))])
    sizes = shapes.prod(1)
    real = torch.arange(16) < sizes[:, None]
    pixels = torch.randn(len(shapes), 16, 48) * real[..., None]
    return (sizes // 4).tolist(), {"pixel_values": pixels, "spatial_shapes": shapes, "pixel_attention_mask": real.long()}


def sized(pictures: Sequence[int]) -> Looks:
    """Pictures of several sizes, padded to the largest, two patches of four a side and position."""
    sizes = [((8, 16), (16, 8), (16, 16))[i % 3] for i in range(sum(pictures))]
    pixels = torch.zeros(len(sizes), 3, 16, 16)
    for picture, (height, width) in zip(pixels, sizes, strict=True):
        picture[:, :height, :width] = torch.randn(3, height, width)
    return [h * w // 64 for h, w in sizes], {"pixel_values": pixels, "image_sizes": torch.tensor(sizes)}


def images(note: str = "") -> str:
    return "; ".join(filter(None, ("several pictures a prompt, encoded once", note)))


KIND = "decoder, images in"
GRIDS = ("image_grid_thw", "mm_token_type_ids")
VISION = "model.vision_tower"
SIGHTS = {
    "LLaVA": VisionView(Case(llava, KIND, images()), squares(8, 4), VISION, brackets=False),
    "LLaVA-NeXT": VisionView(Case(llava_next, KIND, images("tiles")), tiled, VISION, ("image_sizes",), brackets=False),
    "LLaVA-OneVision": VisionView(Case(llava_onevision, KIND, images("tiles")), tiled, VISION, ("image_sizes",), brackets=False),
    "VipLLaVA": VisionView(Case(vip_llava, KIND, images()), squares(8, 4), VISION, brackets=False),
    "Qwen2-VL": VisionView(Case(qwen2_vl, KIND, images("M-RoPE")), gridded(48), "model.visual", GRIDS, types=modalities),
    "Qwen2.5-VL": VisionView(Case(qwen2_5_vl, KIND, images("M-RoPE")), gridded(48), "model.visual", GRIDS, types=modalities),
    "Qwen3-VL": VisionView(Case(qwen3_vl, KIND, images("M-RoPE, DeepStack")), gridded(48), "model.visual", GRIDS, types=modalities),
    "Qwen3-VL-MoE": VisionView(Case(qwen3_vl_moe, KIND, images("M-RoPE, DeepStack")), gridded(48), "model.visual", GRIDS, types=modalities),
    "GLM-4V": VisionView(Case(glm4v, KIND, images("M-RoPE")), gridded(48), "model.visual", GRIDS, types=modalities),
    "Idefics2": VisionView(Case(idefics2, KIND, images()), padded, "model.vision_model"),
    "Idefics3": VisionView(Case(idefics3, KIND, images()), padded, "model.vision_model"),
    "SmolVLM": VisionView(Case(smolvlm, KIND, images()), padded, "model.vision_model"),
    "InternVL": VisionView(Case(internvl, KIND, images()), squares(8, 4), VISION),
    "Aya Vision": VisionView(Case(aya_vision, KIND, images("full and sliding layers mixed")), squares(16, 4), VISION),
    "Mistral 3": VisionView(Case(mistral3, KIND, images("pictures of several sizes")), sized, VISION, ("image_sizes",)),
    "Gemma-3 VLM": VisionView(
        Case(gemma3, KIND, images("pictures see both ways, past the sliding window")),
        squares(16, 4),
        VISION,
        ("token_type_ids",),
        types=lambda ids: {"token_type_ids": (ids == PLACE).long()},
    ),
    "PaliGemma": VisionView(
        Case(paligemma, KIND, images("prompts see both ways, positions from 1")),
        squares(8, 4),
        VISION,
        ("token_type_ids",),
        brackets=False,
        types=lambda ids: {"token_type_ids": torch.zeros_like(ids)},
        first=True,
    ),
    "PaliGemma 2": VisionView(
        Case(paligemma2, KIND, images("prompts see both ways, full and sliding layers mixed")),
        squares(8, 4),
        VISION,
        ("token_type_ids",),
        brackets=False,
        types=lambda ids: {"token_type_ids": torch.zeros_like(ids)},
        first=True,
    ),
    "Qwen3.5": VisionView(Case(qwen3_5, KIND, images("M-RoPE, states")), gridded(48), "model.visual", GRIDS, types=modalities),
    "Qwen3.5-MoE": VisionView(Case(qwen3_5_moe, KIND, images("M-RoPE, states")), gridded(48), "model.visual", GRIDS, types=modalities),
    "LFM2-VL": VisionView(
        Case(lfm2_vl, KIND, images("states")), packed, "model.vision_tower", ("spatial_shapes", "pixel_attention_mask"), brackets=False
    ),
    "LFM3-VL": VisionView(Case(lfm3_vl, KIND, images("states, sliding layers")), gridded(48), "model.vision_tower", GRIDS[:1]),
    "Mllama": VisionView(
        Case(mllama, "decoder, images in", "cross-attention to several pictures, encoded once"),
        crossing,
        "model.vision_model",
        ("aspect_ratio_ids", "aspect_ratio_mask", "cross_attention_mask"),
        place=VOCAB,
        brackets=False,
    ),
}
if not STATES:
    SIGHTS = {name: view for name, view in SIGHTS.items() if "states" not in view.case.note}
