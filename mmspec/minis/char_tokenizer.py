"""The tokenizer of mini speech: voices, letters, and after them the codes of the sound, in one vocabulary."""

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mmspec.minis.speech_data import VOICES

LETTERS = " 'abcdefghijklmnopqrstuvwxyz"
TEMPLATE = "<{voice}>{text}<speak>"
FIRST_CODE = 64
"""Id of code 0."""


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of small letters; anything else is <unk>. The ids end before `FIRST_CODE`."""
    special = ["<pad>", "<end>", "<speak>", "<unk>", *(f"<{voice}>" for voice in VOICES)]
    vocabulary = {token: index for index, token in enumerate([*special, *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
