"""Pictures as codes, and the LlamaGen that is trained on them: new, or begun by the same recipe."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, T5Config, T5EncoderModel

from mmspec.minis.captions import text_tokenizer
from mmspec.minis.picture_sets.sets import LabelledPictures, code_table
from mmspec.utils.weights import own_memory
from mmspec.vision.families.llamagen_layers import LlamaGenConfig
from mmspec.vision.families.llamagen_network import LlamaGen, TrainedTogether


@dataclass(frozen=True)
class CodedPictures:
    """Codes, and what each picture is written from: a class number, or texts of which one is drawn.

    Args:
        codes: int16 [N, versions, T] of the pictures to train on.
        held_codes: int16 [M, T] of those kept from training.
        conditions: of each of the N.
        held_conditions: of each of the M.
        labels: names of the classes; empty unless pictures are written from classes.
        attributes: int64 [N, A], the value of each attribute that a judge checks.
        values: how many values each attribute has.
    """

    codes: Tensor
    held_codes: Tensor
    conditions: list
    held_conditions: list
    labels: list
    attributes: Tensor
    values: list


def code_pictures(data: LabelledPictures, vq: nn.Module, mirrored: bool) -> CodedPictures:
    """Return the pictures by the tokenizer `vq`: as they are and, if `mirrored`, those that may be mirrored, too."""
    held = code_table(vq, data.held, title="held-out pictures")[:, 0]
    attributes, values = torch.tensor(data.train.attributes), [len(some) for some in data.values.values()]
    codes = code_table(vq, data.train, mirrored=mirrored)
    return CodedPictures(codes, held, data.train.conditions, data.held.conditions, list(data.labels), attributes, values)


def new_target(
    found: CodedPictures,
    vocabulary: int,
    *,
    width: int = 160,
    layers: int = 6,
    dropout: float = 0.1,
    words: int = 16,
    prefix_attention: str = "content",
) -> TrainedTogether:
    """Return an untrained target and, for captions, an untrained text encoder.

    Args:
        found: the pictures it is for.
        vocabulary: number of codes.
        width: hidden size, a multiple of 32.
        layers: number of layers.
        dropout: of targets that read captions.
        words: most tokens of a caption that are read.
        prefix_attention: see `LlamaGenConfig`.
    """
    sizes: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 32}
    sizes |= {"intermediate_size": width * 14 // 5, "vocab_size": vocabulary, "grid": round(found.codes.shape[-1] ** 0.5)}
    sizes |= {"prefix_attention": prefix_attention}
    if found.labels:
        return TrainedTogether(LlamaGen(LlamaGenConfig(classes=len(found.labels), id2label=dict(enumerate(found.labels)), **sizes)))
    texts = [text for some in found.conditions for text in some]
    tokenizer = text_tokenizer(texts)
    longest = max(len(ids) for ids in tokenizer(sorted(set(texts)))["input_ids"])
    t5 = T5Config(vocab_size=len(tokenizer), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, is_encoder_decoder=False)
    config = LlamaGenConfig(condition="caption", caption_width=64, prefix=min(longest, words), dropout=dropout, **sizes)
    return TrainedTogether(LlamaGen(config), T5EncoderModel(t5), tokenizer)


def begun_target(folder: Path, classes: bool) -> TrainedTogether:
    """Return a trained target and, unless it draws from `classes`, its text encoder, in float32.

    Args:
        folder: with target/ and captions/.
        classes: whether pictures are written from classes.
    """
    target = own_memory(LlamaGen.from_pretrained(folder / "target")).float()
    if classes:
        return TrainedTogether(target)
    encoder = own_memory(T5EncoderModel.from_pretrained(folder / "captions")).float()
    return TrainedTogether(target, encoder, AutoTokenizer.from_pretrained(folder / "captions"))
