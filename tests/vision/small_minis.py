"""Stand-ins for the vision minis: small random LlamaGens with the tokenizers that ship, as folders the loader takes."""

import shutil
from pathlib import Path

import torch
from transformers import T5Config, T5EncoderModel

from mmspec.minis import HOME
from mmspec.minis.captions import text_tokenizer
from mmspec.vision import LlamaGen, LlamaGenConfig
from tests.vision.small_models import spread

NAMES = ("T-shirt", "trouser", "bag")
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def fashion(folder: Path) -> Path:
    """Three classes, 14 x 14 codes out of 256."""
    torch.manual_seed(0)
    config = LlamaGenConfig(vocab_size=256, grid=14, classes=3, id2label=dict(enumerate(NAMES)), **_SIZES)
    spread(LlamaGen(config)).half().save_pretrained(folder / "target")
    shutil.copytree(HOME / "vision" / "fashion" / "tokenizer", folder / "tokenizer")
    return folder


def emoji(folder: Path, grid: int = 16) -> Path:
    """Captions of at most 6 tokens, `grid` x `grid` codes out of 512."""
    torch.manual_seed(0)
    config = LlamaGenConfig(vocab_size=512, grid=grid, condition="caption", caption_width=16, prefix=6, **_SIZES)
    spread(LlamaGen(config)).half().save_pretrained(folder / "target")
    words = text_tokenizer(["a red apple", "green heart", "grinning face"], 64)
    words.save_pretrained(folder / "captions")
    encoder = T5Config(vocab_size=len(words), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, pad_token_id=0)
    T5EncoderModel(encoder).half().save_pretrained(folder / "captions")
    shutil.copytree(HOME / "vision" / "emoji" / "tokenizer", folder / "tokenizer")
    return folder
