"""Two vocabularies are compared by the text of their tokens: byte-level ones, SentencePiece's, and plain words."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mmspec.drafters.model.vocabulary import Overlap, token_texts

SPACED = [" the", " sun", " \u00e9t\u00e9", " x"]


def byte_level(*more: str) -> PreTrainedTokenizerFast:
    """GPT-2's way: every byte is a letter, a space is \u0120."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    written = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0] for text in more]
    own = Tokenizer(models.BPE({token: i for i, token in enumerate(dict.fromkeys(["<end>", *letters, *written]))}, []))
    return PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<end>")


def pieces(*more: str) -> PreTrainedTokenizerFast:
    """SentencePiece's way: bytes without a token are written out, a space is \u2581."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *(text.replace(" ", "\u2581") for text in more), "a"]
    own = Tokenizer(models.BPE({token: i for i, token in enumerate(dict.fromkeys(tokens))}, [], unk_token="<unk>", byte_fallback=True))
    return PreTrainedTokenizerFast(tokenizer_object=own, unk_token="<unk>")


@pytest.mark.parametrize(("target", "drafter"), [(byte_level, pieces), (pieces, byte_level), (byte_level, byte_level), (pieces, pieces)])
def test_tokens_of_the_same_text_are_the_same(target, drafter):
    ours, theirs = target(*SPACED, " only ours"), drafter(*SPACED, " only theirs")
    overlap = Overlap.of_tokenizers(ours, theirs, len(ours.get_vocab()))
    mine, other = token_texts(ours), token_texts(theirs)
    found = {(mine[i], other[j]) for i, j in zip(overlap.to_target.tolist(), overlap.shared.tolist(), strict=True)}
    assert all(one == two for one, two in found)
    assert {(text.encode(), text.encode()) for text in (*SPACED, " ", "a")} <= found
    assert b" only ours" in mine.values()
    assert b" only ours" not in dict(found)


def test_a_token_goes_before_the_byte_of_the_same_text():
    ours, theirs = byte_level(), pieces()
    overlap = Overlap.of_tokenizers(ours, theirs, len(ours.get_vocab()))
    assert theirs.convert_ids_to_tokens(int(overlap.to_drafter[ours.get_vocab()["a"]])) == "a"


def test_a_small_vocabulary_of_the_words_that_are_written_is_enough():
    """Of 5,000 tokens the drafter knows 260, and all that a text of these words needs."""
    ours, theirs = byte_level(*SPACED, *(f" rare{number}" for number in range(5000))), byte_level(*SPACED)
    known = set(Overlap.of_tokenizers(ours, theirs, len(ours.get_vocab())).to_target.tolist())
    assert len(known) < 0.1 * len(ours.get_vocab())
    assert {i for i, text in token_texts(ours).items() if text in [each.encode() for each in SPACED]} <= known


def test_vocabularies_without_a_word_in_common_are_refused_in_one_line():
    words = [Tokenizer(models.WordLevel({"<e>": 0, "?": 1, word: 2}, unk_token="?")) for word in ("one", "two")]
    ours, theirs = (PreTrainedTokenizerFast(tokenizer_object=each, eos_token="<e>", unk_token="?") for each in words)
    with pytest.raises(ValueError, match="knows 2 of the target's 3 tokens, and none of text") as caught:
        Overlap.of_tokenizers(ours, theirs, 3)
    assert "\n" not in str(caught.value)
