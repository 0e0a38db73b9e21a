"""Tiny recommenders on disk and in memory: random weights over a random catalogue, whose items are numbers or words."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from mmspec.recsys import Catalogue

SIZE, LEVELS, OFFSET = 8, 3, 2


def catalogue(items: int = 60, words: bool = False, seed: int = 0, **options) -> Catalogue:
    """Few codes and many items, so that some share a path. Items are 100, 101, ... or "i100", "i101", ..."""
    torch.manual_seed(seed)
    names = [f"thing {number}" for number in range(items)]
    ids = [f"i{100 + number}" if words else 100 + number for number in range(items)]
    told = {"before": (1,), "most": 6, "names": tuple(names)} | options
    return Catalogue.of_codes(ids, torch.randint(0, SIZE, (items, LEVELS)), SIZE, OFFSET, **told)


def llama(hidden: int = 16, layers: int = 1, seed: int = 0, positions: int = 64) -> LlamaForCausalLM:
    """Sharp enough that no two beams tie."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_attention_heads": 2, "num_hidden_layers": layers}
    tokens = {"vocab_size": OFFSET + SIZE * LEVELS, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    return _sharp(LlamaForCausalLM(LlamaConfig(**sizes, **tokens, max_position_embeddings=positions)))


def t5(seed: int = 0) -> T5ForConditionalGeneration:
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    return _sharp(T5ForConditionalGeneration(T5Config(vocab_size=OFFSET + SIZE * LEVELS, **sizes)))


def _sharp(model):
    for parameter in model.parameters():
        parameter.data.mul_(3)
    return model.eval()


def write(folder: Path, words: bool = False, drafter: bool = True, target=None) -> Path:
    """A folder as `recsys/train_target.py` leaves it: target/, drafter/ and catalogue.parquet."""
    (target or llama(layers=2)).save_pretrained(folder / "target")
    if drafter:
        llama(seed=1).save_pretrained(folder / "drafter")
    catalogue(words=words).write(folder / "catalogue.parquet")
    return folder
