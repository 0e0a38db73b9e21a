"""What mini speech learns from: every text in its words, every call the same, splits apart."""

import random

import pytest
import torch

from mmspec.minis import speech_data as spoken
from mmspec.minis.char_tokenizer import FIRST_CODE, LETTERS, TEMPLATE, letter_tokenizer


def clips() -> list[spoken.SpokenClip]:
    """A tone a digit and speaker: what was joined can be told from the sound."""
    return [
        spoken.SpokenClip(digit, speaker, 5, "train", torch.full((100 + digit,), (1 + digit) / 20))
        for digit in range(10)
        for speaker in spoken.SPEAKERS
    ]


def test_numbers_are_their_clips_with_silence_around_each():
    for text, voice, wave in spoken.numbers(clips(), 40, seed=3):
        assert voice in spoken.SPEAKERS
        heard = [round(20 * value.item()) - 1 for value in wave.unique_consecutive() if value]
        assert spoken.words(heard) == text
        assert wave[0] == wave[-1] == 0


def test_the_same_seed_makes_the_same_things():
    one, two = (spoken.numbers(clips(), 12, seed=7) for _ in range(2))
    assert all(a[:2] == b[:2] and torch.equal(a[2], b[2]) for a, b in zip(one, two, strict=True))
    assert spoken.requests(30, 4) == spoken.requests(30, 4) != spoken.requests(30, 5)
    assert spoken.requests(10, 4) == spoken.requests(30, 4)[:10]  # a run that asks for more has asked for these


def test_every_sentence_is_in_the_recognisers_words_and_the_tokenizers_letters():
    words, tokenizer = set(spoken.all_words()), letter_tokenizer()
    for seed in range(2000):
        text = spoken.sentence(random.Random(seed))
        assert set(text.split()) <= words
        assert set(text) <= set(LETTERS)
        assert len(tokenizer(TEMPLATE.format(voice="espeak", text=text))["input_ids"]) == len(text) + 2 <= 96


def test_voices_alternate_between_the_two_kinds():
    asked = spoken.requests(40, 1)
    assert all(voice in spoken.SPEAKERS and spoken.digits(text) for text, voice in asked[::2])
    assert all(voice in spoken.MADE for _, voice in asked[1::2])


def test_digits_are_read_back():
    assert spoken.digits("three five zero") == [3, 5, 0]
    assert spoken.digits("three red birds") is None


def test_what_is_missing_is_said_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"set MMSPEC_DATA to the folder that holds fsdd"):
        spoken.clips(tmp_path)
    monkeypatch.setattr(spoken.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="espeak-ng is not installed"):
        spoken.speak("one", "espeak")


def test_a_corpus_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(spoken, "clips", lambda folder: clips())
    monkeypatch.setattr(spoken, "speak", lambda text, voice, speed, pitch: torch.full((50,), 0.5))
    made = spoken.corpus(tmp_path / "a.pt", 3, 1)
    assert len(made) == 6
    monkeypatch.setattr(spoken, "numbers", None)  # read from the file, not made
    again = spoken.corpus(tmp_path / "a.pt", 3, 1)
    assert all(a[:2] == b[:2] and torch.equal(a[2], b[2]) for a, b in zip(made, again, strict=True))
    assert not list(tmp_path.glob("*.tmp"))


def test_letters_are_ids_below_the_codes():
    tokenizer = letter_tokenizer()
    found = tokenizer("<jackson>Three  five<speak>")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(found) == ["<jackson>", *"three five", "<speak>"]
    assert len(tokenizer) <= FIRST_CODE
    assert tokenizer.unk_token_id in tokenizer("7")["input_ids"]
