"""Text by pieces is the whole text, whatever the runs it came in."""

import random

import pytest

import mmspec
from mmspec.text.pieces import Pieces, TextRounds

TEXTS = ["Once upon a time.", "na\u00efve caf\u00e9, 12 \u20ac, \U0001f600\U0001f9ff!", "\n\nQuestion: \u4f60\u597d\n"]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text(text):
    tokenizer = mmspec.load("text").processor
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    pick = random.Random(0)
    for _ in range(20):
        pieces, found, rest = Pieces(tokenizer.decode), "", list(ids)
        while rest:
            size = pick.randint(1, 4)
            found += pieces.push(rest[:size])
            assert "\ufffd" not in found
            rest = rest[size:]
        assert found + pieces.rest() == text


def test_ids_that_say_nothing_cost_no_space():
    def decode(ids):
        return " ".join("word" for value in ids if value)

    pieces = Pieces(decode)
    assert "".join(map(pieces.push, ([1], [0], [], [0, 0], [1], [1]))) == "word word word"


def test_an_unfinished_character_is_told_at_the_end():
    tokenizer = mmspec.load("text").processor
    ids = tokenizer("\U0001f600", add_special_tokens=False)["input_ids"][:-1]
    pieces = Pieces(tokenizer.decode)
    assert pieces.push(ids) == ""
    assert "\ufffd" in pieces.rest()


def test_rounds_hold_what_was_drafted_and_what_was_not():
    mini = mmspec.load("text")
    rounds = TextRounds(lambda ids: mini.processor.decode(ids, skip_special_tokens=True))
    one = {key: value[:1] for key, value in mini.examples.items()}
    out = mmspec.text.generate(mini.target, one, mini.drafters["model"], max_new_tokens=16, draft_length=3, on_step=rounds)
    assert sum(len(found.pieces) for found in rounds.found) == out.stats.tokens
    assert sum(found.accepted for found in rounds.found) == out.stats.accepted
    text = "".join("".join(found.pieces) for found in rounds.found)
    assert text == mini.processor.decode(out.sequences[0], skip_special_tokens=True)
