"""Stand-ins for the vision minis: small random LlamaGens, as folders the loader takes."""

import shutil
from pathlib import Path

import torch
from transformers import T5Config, T5EncoderModel

from mmspec.minis import HOME
from mmspec.minis.captions import text_tokenizer
from mmspec.minis.drawn.captioned import captioned_scene
from mmspec.utils.files import write_json
from mmspec.vision import LlamaGen, LlamaGenConfig
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.families.llamagen import WORDS, caption_words
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


def scenes(folder: Path, grid: int = 16) -> Path:
    """Captions of at most two objects, `grid` x `grid` codes out of 512; a random tokenizer."""
    torch.manual_seed(0)
    config = LlamaGenConfig(vocab_size=512, grid=grid, condition="caption", caption_width=16, prefix=13, **_SIZES)
    spread(LlamaGen(config)).half().save_pretrained(folder / "target")
    captions = [captioned_scene(0, number).caption for number in range(200)]
    words = text_tokenizer(captions)
    words.save_pretrained(folder / "captions")
    write_json(folder / "captions" / WORDS, sorted({word for caption in captions for word in caption_words(caption)}))
    write_json(folder / "examples.json", captions[:8])
    encoder = T5Config(vocab_size=len(words), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, pad_token_id=0)
    T5EncoderModel(encoder).half().save_pretrained(folder / "captions")
    tokens.save_tokenizer(tokens.make_tokenizer(**tokens.sizes_for(4 * grid, grid, codes=512, width=8)), folder / "tokenizer")
    return folder
