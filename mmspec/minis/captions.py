"""Captions of the emoji of mini vision, and the tokenizer of their text encoder."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


def captions_of(row: Mapping[str, Any]) -> list[str]:
    """Return the captions of an emoji: its name (most often), its name and a keyword, a few keywords, a keyword and its subgroup."""
    name, kind = row["name"].lower(), row["subgroup"] or row["group"].lower()  # one or two emoji have no subgroup, some no keywords
    words = [str(word).lower() for word in row["keywords"]] or [kind]
    return [name] * 4 + [f"a {name}", f"{name}, {words[0]}", ", ".join(words[:3]), f"{words[-1]}, {kind}"]


def text_tokenizer(texts: Sequence[str], size: int = 1024) -> PreTrainedTokenizerFast:
    """A byte-pair tokenizer of lower-case words, padded on the left as LlamaGen's captions are."""
    bpe = Tokenizer(models.BPE(unk_token="[UNK]"))
    bpe.normalizer, bpe.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()  # pyright: ignore
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=["[PAD]", "[UNK]"], show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="[PAD]", unk_token="[UNK]", padding_side="left")
