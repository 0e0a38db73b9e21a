"""The tokenizer of the text encoders that image models of captions are trained with."""

from collections.abc import Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


def text_tokenizer(texts: Sequence[str], size: int = 1024) -> PreTrainedTokenizerFast:
    """A byte-pair tokenizer of lower-case words, padded on the left as LlamaGen's captions are."""
    bpe = Tokenizer(models.BPE(unk_token="[UNK]"))
    bpe.normalizer, bpe.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()  # pyright: ignore
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=["[PAD]", "[UNK]"], show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="[PAD]", unk_token="[UNK]", padding_side="left")
