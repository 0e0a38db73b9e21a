"""Tiny checkpoints on disk for the tests that load by path: random weights, the mini's tokenizer, saved once a session."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    RwkvConfig,
    RwkvForCausalLM,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)

import mmspec

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
IDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}


def llama(vocabulary: int = 2048, **changes) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(SIZES | {"vocab_size": vocabulary, "max_position_embeddings": 64} | IDS | changes))).eval()


def save_all(root: Path) -> None:
    """`llama` (64 positions), `nan`, `rwkv`, `foreign` (another vocabulary), `bare` (no tokenizer), `whisper`."""
    tokenizer = mmspec.load("text").processor
    broken = llama()
    broken.model.norm.weight.data.fill_(float("nan"))
    rwkv = RwkvForCausalLM(RwkvConfig(vocab_size=2048, hidden_size=32, num_hidden_layers=2))
    words = {word: number for number, word in enumerate(["<unk>", "<e>", "zq", "qz", "zz"])}
    foreign = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")), eos_token="<e>")
    kept = {"llama": (llama(), tokenizer), "nan": (broken, tokenizer), "rwkv": (rwkv, tokenizer), "foreign": (llama(8), foreign)}
    for name, (model, own) in kept.items():
        model.save_pretrained(root / name)
        own.save_pretrained(root / name)
    llama().save_pretrained(root / "bare")
    save_whisper(root / "whisper", tokenizer)


def save_whisper(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """A speech recogniser that hears one second at a time."""
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    feet = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_source_positions": 50, "max_target_positions": 64, "num_mel_bins": 16}
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=2048, decoder_start_token_id=0, suppress_tokens=None, begin_suppress_tokens=None, **sizes, **feet, **IDS
    )
    WhisperForConditionalGeneration(config).save_pretrained(folder)
    WhisperProcessor(WhisperFeatureExtractor(feature_size=16, chunk_length=1), tokenizer).save_pretrained(folder)
