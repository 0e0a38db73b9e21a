"""LlamaGen as published: `c2i_B_256.pt` or `t2i_XL_stage1_256.pt`, the picture decoder `vq_ds16_*.pt`, a T5 encoder for captions."""

import re
from pathlib import Path
from typing import Any

import torch

from mmspec.vision.checkpoints.vqgan import VQGANDecoder, checkpoint_tensors
from mmspec.vision.families.base import Size
from mmspec.vision.families.llamagen import LlamaGenPictures, T5Captions
from mmspec.vision.families.llamagen_layers import LlamaGenConfig
from mmspec.vision.families.llamagen_network import LlamaGen

PIXELS = 16
"""A code's side in the picture."""
HEADS = {3200: 32, 4096: 32}
"""Attention heads by width, where a head is not 64 wide."""


def load_llamagen_file(
    path: str | Path, decoder: VQGANDecoder | None = None, captions: str | Path | None = None, size: Size | None = None
) -> LlamaGenPictures:
    """Load a published LlamaGen.

    Args:
        path: the `.pt` file. Sizes are read from its tensors.
        decoder: the picture decoder.
        captions: folder of the T5 encoder and tokenizer (flan-t5-xl), for models of captions.
        size: pixels a side; by default the number that the file's name ends with.

    Returns:
        The adapter. Classes are numbers.

    Raises:
        ValueError: for files that are not a LlamaGen's, and unknown sizes.
    """
    found = checkpoint_tensors(path)
    found.pop("freqs_cis", None)
    config = _config(found, Path(path), size)
    model = LlamaGen(config)
    wanted = model.state_dict()
    for name in {**wanted, **found}:
        shapes = [tuple(state[name].shape) if name in state else "missing" for state in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{path}: tensor {name} is {shapes[0]} in the file and {shapes[1]} in a LlamaGen of these sizes")
    model.load_state_dict(found)
    codebook = None if decoder is None else decoder.codebook
    if codebook is not None and len(codebook) != config.vocab_size:
        raise ValueError(f"the decoder has {len(codebook)} codes and {path} has {config.vocab_size}: give the decoder that belongs to it")
    return LlamaGenPictures(model.eval(), decoder, codebook, None if captions is None else _encoder(captions, config.prefix))


def _config(found: dict[str, Any], path: Path, size: Size | None) -> LlamaGenConfig:
    if "output.weight" not in found or not any(name.startswith("cls_embedding.") for name in found):
        raise ValueError(f"{path} holds no LlamaGen: it has no output.weight and cls_embedding")
    codes, width = found["output.weight"].shape
    heads = HEADS.get(width, width // 64)
    if width % 64 and width not in HEADS:
        raise ValueError(f"{path}: hidden size {width} is none of LlamaGen's, whose heads are 64 wide")
    sizes: dict[str, Any] = {
        "vocab_size": codes,
        "hidden_size": width,
        "num_hidden_layers": 1 + max(int(name.split(".")[1]) for name in found if name.startswith("layers.")),
        "num_attention_heads": heads,
        "num_key_value_heads": (found["layers.0.attention.wqkv.weight"].shape[0] // (width // heads) - heads) // 2,
        "intermediate_size": found["layers.0.feed_forward.w1.weight"].shape[0],
        "grid": _grid(path, size),
    }
    if "cls_embedding.embedding_table.weight" in found:
        return LlamaGenConfig(**sizes, classes=found["cls_embedding.embedding_table.weight"].shape[0] - 1)
    prefix, features = found["cls_embedding.uncond_embedding"].shape
    return LlamaGenConfig(**sizes, condition="caption", prefix=prefix, caption_width=features)


def _grid(path: Path, size: Size | None) -> int:
    digits = re.search(r"(\d+)$", path.stem)
    side = size if size is not None else int(digits[1]) if digits else None
    if not isinstance(side, int) or side % PIXELS or side < PIXELS:
        raise ValueError(
            f"size is {side}: the name of {path.name} does not end with the pixels a side, give them, in multiples of {PIXELS}"
        )
    return side // PIXELS


def _encoder(folder: str | Path, length: int) -> T5Captions:
    from transformers import AutoTokenizer, T5EncoderModel

    from mmspec.models.checkpoint_loading import loaded

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    encoder = loaded(T5EncoderModel, folder, extras=True, dtype=torch.float32)
    return T5Captions(encoder.eval(), tokenizer, length)
