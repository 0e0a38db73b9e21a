"""Small random models that read video, on disk with real processors, and clips written by PyAV."""

from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
import transformers as hf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tests.small_seers import WORDS

PAD, UNKNOWN, END = "<pad>", "<unk>", "<end>"
QWEN = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
LLAVA = ("<image>", "<video>")
GLM = ("<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>")
INTERN = ("<IMG_CONTEXT>", "<video>", "<img>", "</img>")
SIZE = {"shortest_edge": 16 * 16, "longest_edge": 16 * 32}
TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}{% else %}<|vision_start|>"
    "<|{{ c['type'] }}_pad|><|vision_end|>{% endif %}{% endfor %}{% endfor %} ?"
)


def tokenizer(special: tuple[str, ...], *attributes: str) -> Any:
    """A word is a token. `attributes` are the names under which the special tokens are known."""
    words = dict.fromkeys([PAD, UNKNOWN, END, *special, "\n", "happens", "video", *WORDS])
    found = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN))
    found.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|\n|[^\w\s]"), behavior="removed", invert=True)
    names = {"eos_token": END, "pad_token": PAD, "unk_token": UNKNOWN, "extra_special_tokens": dict(zip(attributes, special, strict=False))}
    names = names if attributes else names | {"extra_special_tokens": list(special)}
    return hf.PreTrainedTokenizerFast(tokenizer_object=found, padding_side="left", **names)


def qwen(version: str) -> tuple[Any, Any]:
    """(model, processor) of Qwen2-VL or, for `version` 2.5, of Qwen2.5-VL; two frames a second are sampled."""
    own, patches = tokenizer(QWEN), {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "size": SIZE}
    video = hf.Qwen2VLVideoProcessor(**patches, do_sample_frames=True, fps=2, min_frames=2, cap_pixels_per_frame=False)
    kind = hf.Qwen2VLProcessor if version == "2" else hf.Qwen2_5_VLProcessor
    processor = kind(hf.Qwen2VLImageProcessor(**patches), own, video, chat_template=TEMPLATE)
    image, clip, start, end = own.convert_tokens_to_ids(list(QWEN))
    ids = {"image_token_id": image, "video_token_id": clip, "vision_start_token_id": start, "vision_end_token_id": end}
    tower = {"depth": 1, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
    text = {**TEXT, "vocab_size": len(own), "max_position_embeddings": 2048, "rope_parameters": ROPE, **IDS}
    if version == "2":
        config = hf.Qwen2VLConfig(text_config=text, vision_config={**tower, "embed_dim": 16, "hidden_size": 32}, **ids)
        return hf.Qwen2VLForConditionalGeneration(config), processor
    sizes = {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [0]}
    config = hf.Qwen2_5_VLConfig(text_config=text, vision_config={**tower, **sizes, "tokens_per_second": 4}, **ids)
    return hf.Qwen2_5_VLForConditionalGeneration(config), processor


def qwen3() -> tuple[Any, Any]:
    """(model, processor) of Qwen3-VL, which writes the time before every pair of frames."""
    own, patches = tokenizer(QWEN), {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
    clips = {"shortest_edge": 16 * 16 * 8, "longest_edge": 16 * 32 * 8}  # pixels of a whole clip
    video = hf.Qwen3VLVideoProcessor(**patches, size=clips, min_frames=2, cap_pixels_per_frame=False)
    processor = hf.Qwen3VLProcessor(hf.Qwen2VLImageProcessor(**patches, size=SIZE), own, video, chat_template=TEMPLATE)
    image, clip, start, end = own.convert_tokens_to_ids(list(QWEN))
    ids = {"image_token_id": image, "video_token_id": clip, "vision_start_token_id": start, "vision_end_token_id": end}
    tower = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 32, "num_position_embeddings": 64}
    text = {**TEXT, "vocab_size": len(own), "max_position_embeddings": 2048, "rope_parameters": ROPE, "head_dim": 8, **IDS}
    config = hf.Qwen3VLConfig(text_config=text, vision_config={**tower, **sizes, "deepstack_visual_indexes": [0, 1]}, **ids)
    return hf.Qwen3VLForConditionalGeneration(config), processor


def glm() -> tuple[Any, Any]:
    """(model, processor) of GLM-4V, whose frames are pictures between marks of a clip."""
    own, patches = tokenizer(GLM), {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
    clips = {"shortest_edge": 16 * 16 * 8, "longest_edge": 16 * 32 * 8}
    parts = (hf.Glm4vImageProcessor(**patches, size=clips), own, hf.Glm4vVideoProcessor(**patches, size=clips))
    names = ("image_token_id", "video_token_id", "image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id")
    ids = dict(zip(names, own.convert_tokens_to_ids(list(GLM)), strict=True))
    tower = {"depth": 1, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 32, "image_size": 32}
    rope = ROPE | {"partial_rotary_factor": 0.5}
    text = {**TEXT, "num_attention_heads": 2, "vocab_size": len(own), "max_position_embeddings": 2048, "rope_parameters": rope, **IDS}
    config = hf.Glm4vConfig(text_config=text, vision_config={**tower, **sizes}, **ids)
    return hf.Glm4vForConditionalGeneration(config), hf.Glm4vProcessor(*parts)


def intern() -> tuple[Any, Any]:
    """(model, processor) of InternVL, which reads eight frames as pictures."""
    own, size = tokenizer(INTERN, "context_image_token", "video_token", "start_image_token", "end_image_token"), {"height": 16, "width": 16}
    video = hf.InternVLVideoProcessor(size=size, do_sample_frames=True, num_frames=8, initial_shift=True)
    processor = hf.InternVLProcessor(hf.GotOcr2ImageProcessor(size=size), own, video, image_seq_length=4)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"image_token_id": own.context_image_token_id, "image_seq_length": 4, "downsample_ratio": 0.5, "vision_feature_layer": -1}
    text = {**TEXT, "model_type": "qwen2", "vocab_size": len(own), "max_position_embeddings": 2048, **IDS}
    config = hf.InternVLConfig(text_config=text, vision_config={**tower, "image_size": [16, 16], "patch_size": [4, 4]}, **more)
    return hf.InternVLForConditionalGeneration(config), processor


def llava() -> tuple[Any, Any]:
    """(model, processor) of LLaVA-OneVision, whose clips all have one size; all frames are taken."""
    own, size = tokenizer(LLAVA), {"height": 16, "width": 16}
    shape = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    grid = {"size": size, "image_grid_pinpoints": [[16, 32], [32, 16], [32, 32]]}
    parts = (hf.LlavaOnevisionImageProcessor(**grid), own, hf.LlavaOnevisionVideoProcessor(size=size))
    processor = hf.LlavaOnevisionProcessor(*parts, **shape)
    image, clip = own.convert_tokens_to_ids(list(LLAVA))
    tower = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
    }
    text = {**TEXT, "model_type": "qwen2", "vocab_size": len(own), "max_position_embeddings": 2048, **IDS}
    config = hf.LlavaOnevisionConfig(
        text_config=text,
        vision_config={**tower, "model_type": "siglip_vision_model", "vision_use_head": False},
        image_token_index=image,
        video_token_index=clip,
        image_grid_pinpoints=grid["image_grid_pinpoints"],
        vision_feature_select_strategy="full",
    )
    return hf.LlavaOnevisionForConditionalGeneration(config), processor


MAKERS = {"qwen2": lambda: qwen("2"), "qwen2.5": lambda: qwen("2.5"), "llava": llava, "qwen3": qwen3, "glm": glm, "intern": intern}


def save(name: str, folder: Path) -> Path:
    """The model called `name` and its processor, weights spread so that greedy decoding does not repeat one token."""
    torch.manual_seed(0)
    model, processor = MAKERS[name]()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.25)
    model.save_pretrained(folder / name)
    processor.save_pretrained(folder / name)
    return folder / name


def film(path: Path, frames: int = 24, rate: int = 8, size: tuple[int, int] = (48, 32), codec: str = "mpeg4", seed: int = 0) -> Path:
    """A clip of `size` (width, height): a bright square that crosses a changing background."""
    pick, (width, height) = np.random.default_rng(seed), size
    start, colours = pick.integers(0, 200, 3), pick.integers(0, 256, 3)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = width, height, "yuv420p", 2_000_000
        for number in range(frames):
            picture = np.empty((height, width, 3), np.uint8)
            picture[:] = (start + number * 9) % 256
            place = number * 5 % (width - 12)
            picture[8:20, place : place + 12] = colours
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path
