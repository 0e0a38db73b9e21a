"""`mmspec bench --suite whisper`: recordings, contenders, word errors worked out by hand, faster-whisper by a stand-in, refusals."""

import json
import shutil
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from transformers import WhisperForConditionalGeneration

import mmspec
from mmspec.bench.suites import faster_whisper, recordings, whisper
from mmspec.bench.suites.contenders import PLAIN
from mmspec.bench.suites.faster_whisper import ClipInputs, faster_whisper_run
from mmspec.bench.suites.recordings import compared_words, recorded_kinds, recordings_of
from mmspec.bench.suites.whisper import measure, render
from mmspec.cli import app
from mmspec.minis.speech_data import DIGITS, SPEAKERS, SpokenClip
from mmspec.run.config import Config, RunSection
from tests import tiny
from tests.companions import perturbed

TEXTS = {"A-1": "In being, comparatively modern.", "A-2": "has never"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Recordings of half a second, and two recognisers that hear one second at a time."""
    root = tmp_path_factory.mktemp("whisper")
    clips = root / "data" / "ljspeech-8"
    clips.mkdir(parents=True)
    for name in TEXTS:
        soundfile.write(clips / f"{name}.flac", np.random.default_rng(3).uniform(-0.5, 0.5, 11_025).astype("float32"), 22_050)
    (clips / "metadata.csv").write_text("".join(f"{name}|{text} 12|{text}\n" for name, text in TEXTS.items()))
    tiny.save_whisper(root / "target", mmspec.load("text").processor)
    tiny.save_whisper(root / "drafter", mmspec.load("text").processor)
    perturbed(WhisperForConditionalGeneration.from_pretrained(root / "drafter")).save_pretrained(root / "drafter")
    return root


@pytest.fixture(autouse=True)
def own_data(home, monkeypatch, tmp_path):
    monkeypatch.setenv("MMSPEC_DATA", str(home / "data"))
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))


def small(home, **more):
    asked = {"model": str(home / "target"), "drafter": str(home / "drafter"), "device": "cpu", "kinds": "ljspeech", "max_new_tokens": 6}
    return measure(**(asked | more), note=lambda line: None)


# --- recordings -------------------------------------------------------------------------------------------------------


def test_words_are_compared_without_case_and_punctuation_and_digits_one_by_one():
    assert compared_words('The "Forty-two line"  Bible, isn\'t it?') == "the forty two line bible isn't it"
    assert compared_words("7, 12 and 3.") == "seven one two and three"


def test_sentences_have_their_words_and_the_rate_asked_for():
    found = recordings_of("ljspeech", 16_000)
    assert [(each.name, each.text) for each in found] == [(f"ljspeech/{name}", text) for name, text in TEXTS.items()]
    assert {len(each.wave) for each in found} == {8000}


def test_joined_sentences_fill_a_window_and_follow_each_other(monkeypatch):
    sentences = recordings_of("ljspeech", 16_000)
    found = recordings_of("joined", 16_000)
    assert [(each.kind, each.name) for each in found] == [("joined", f"joined/{name}") for name in TEXTS]
    assert [each.text for each in found] == [" ".join(TEXTS.values()), " ".join(reversed(TEXTS.values()))]
    assert torch.equal(found[1].wave, torch.cat([sentences[1].wave, sentences[0].wave]))
    for window, words in ((0.75, list(TEXTS.values())), (0.25, [])):  # a sentence takes half a second
        monkeypatch.setattr(recordings, "_WINDOW", window)
        assert [each.text for each in recordings_of("joined", 16_000)] == words


def test_rows_of_digits_are_of_one_speaker_and_of_the_test_split(monkeypatch, tmp_path):
    def tone(digit, number):
        return torch.full((100,), (1 + digit) / 40 + number / 1000)

    made = [SpokenClip(d, s, 0, "test", tone(d, n)) for n, s in enumerate(SPEAKERS) for d in range(10)]
    made += [SpokenClip(0, SPEAKERS[0], 9, "train", torch.full((100,), 0.9))]
    monkeypatch.setattr(recordings, "clips", lambda folder: made)
    found = recordings_of("digits", 8000, tmp_path)
    assert len(found) == 2 * len(SPEAKERS)
    for each in found:
        number = SPEAKERS.index(each.name.removeprefix("digits/").rpartition("-")[0])
        levels = [round(40 * (value.item() - number / 1000)) - 1 for value in each.wave.unique_consecutive() if value]
        assert [DIGITS[level] for level in levels] == each.text.split()
        assert len(levels) == 10
    assert [each.text for each in found] == [each.text for each in recordings_of("digits", 8000, tmp_path)]


def test_kinds_and_missing_data(monkeypatch, tmp_path):
    assert recorded_kinds(None) == ("ljspeech", "joined", "digits")
    assert recorded_kinds("digits, digits") == ("digits",)
    with pytest.raises(ValueError, match="unknown kind of recordings 'digit'"):
        recorded_kinds("digit")
    for kind in recorded_kinds(None):
        with pytest.raises(ValueError, match="set MMSPEC_DATA"):
            recordings_of(kind, 16_000, tmp_path)


# --- runs -------------------------------------------------------------------------------------------------------------


def test_every_contender_hears_the_same_and_writes_the_same(home):
    found = small(home)
    rows = {row["contender"]: row for row in found["rows"]}
    lighter = ["cropped", "cropped + part", "cropped + int8", "cropped + part + int8"]
    drafters = ["mmspec drafter", *(f"mmspec drafter + {words}" for words in lighter)]
    assert list(rows) == [PLAIN, "faster-whisper", "mmspec plain", "transformers assisted by drafter", *drafters]
    assert rows.pop("faster-whisper")["refused"]  # its model is not kept here
    for row in rows.values():
        assert row["refused"] is None, row
        assert row["same_text"] == {"same": 2, "of": 2}
        assert row["tokens"] == rows[PLAIN]["tokens"]
        assert row["words"] == 6
        assert row["to_lookup"] is None
        assert row["to_assisted"]["count"] == 2
    assert rows[PLAIN]["tokens_per_call"] == 1
    assert rows[PLAIN]["word_errors"] == rows["mmspec drafter"]["word_errors"] > 0
    text = render(json.loads(json.dumps(found)))
    for words in ("### Recordings: ljspeech, batch 1", "| mmspec drafter |", "2 recordings", "- faster-whisper refused"):
        assert words in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_a_drafter_that_shares_the_encoder_is_not_cropped(home, tmp_path):
    model = WhisperForConditionalGeneration.from_pretrained(home / "target")
    perturbed(model.model.decoder)
    model.save_pretrained(tmp_path / "drafter")
    mmspec.load("text").processor.save_pretrained(tmp_path / "drafter")
    shutil.copy(home / "target" / "processor_config.json", tmp_path / "drafter")
    named = "mmspec drafter,mmspec drafter + cropped"
    rows = {row["contender"]: row for row in small(home, drafter=str(tmp_path / "drafter"), limit=1, contenders=named)["rows"]}
    assert rows["mmspec drafter"]["same_text"] == {"same": 1, "of": 1}
    assert "with an encoder of their own" in rows["mmspec drafter + cropped"]["refused"]


def test_batches_and_a_run_that_was_stopped(home, tmp_path):
    whole = small(home, batch_size=2, output=str(tmp_path / "a.json"))
    assert {row["batch_size"] for row in whole["rows"]} == {2}
    assert small(home, batch_size=2, output=str(tmp_path / "a.json"))["turns"] == whole["turns"]
    with pytest.raises(ValueError, match="max_new_tokens"):
        small(home, max_new_tokens=5, output=str(tmp_path / "a.json"))


def test_word_errors_worked_out_by_hand():
    pair = SimpleNamespace(decode=lambda ids: {1: "in being compared to 7", 2: "Has never."}[ids[0]])
    outcomes = {PLAIN: {"tokens": [[1], [2]], "seconds": 2.0, "refused": None}}
    outcomes["transformers assisted by x"] = {"tokens": [[1], [2]], "seconds": 1.0, "refused": None}
    turn = {"turn": {"kind": "ljspeech", "prompts": ["a", "b"]}, "outcomes": outcomes}
    row = whisper._with_words(
        {"contender": PLAIN, "kind": "ljspeech", "refused": None}, [turn], pair, {"a": TEXTS["A-1"], "b": "has never"}
    )
    assert (row["word_errors"], row["words"]) == (3, 6)  # comparatively modern: compared to seven
    assert row["to_assisted"]["median"] == 0.5


def test_a_multilingual_target_is_told_its_language(home, monkeypatch):
    config = SimpleNamespace(is_multilingual=True)
    pair = SimpleNamespace(hears=True, target=SimpleNamespace(generation_config=config))
    monkeypatch.setattr(whisper, "load_pair", lambda config: pair)
    assert whisper._recogniser("x", "cpu", "float32") is pair
    assert (config.language, config.task) == ("en", "transcribe")


# --- faster-whisper ---------------------------------------------------------------------------------------------------


def test_faster_whisper_is_asked_for_the_same(monkeypatch, tmp_path):
    asked = []

    class WhisperModel:
        def __init__(self, folder, **options):
            asked.append((folder, options))

        def transcribe(self, wave, **options):
            asked.append((wave.shape, options))
            return iter([SimpleNamespace(tokens=[5, 6]), SimpleNamespace(tokens=[7] * int(wave[0]))]), None

    module = types.ModuleType("faster_whisper")
    module.WhisperModel = WhisperModel
    monkeypatch.setitem(sys.modules, "faster_whisper", module)
    monkeypatch.setattr(faster_whisper, "find_spec", lambda name: True)
    nothing = faster_whisper_run(tmp_path)(None, {}, 0)
    assert "speech/fetch_whisper.py --unconverted" in nothing.refused
    (tmp_path / "model.bin").write_bytes(b"")
    config = SimpleNamespace(suppress_tokens=[3], eos_token_id=9)
    pair = SimpleNamespace(target=SimpleNamespace(generation_config=config), config=Config(run=RunSection(max_new_tokens=4)))
    run, clips = faster_whisper_run(tmp_path), ClipInputs({}, [torch.tensor([1.0, 0.0]), torch.tensor([2.0])])
    out = run(pair, clips, 0)
    assert out.tokens == [[5, 6, 7], [5, 6, 7, 7]]
    assert whisper._ended(run)(pair, clips, 0).tokens == [[5, 6, 7, 9], [5, 6, 7, 7]]  # the second one came to its limit
    assert asked[0] == (str(tmp_path), {"device": "cpu", "compute_type": "float32", "cpu_threads": torch.get_num_threads()})
    assert [shape for shape, _ in asked[1:3]] == [(2,), (1,)]
    options = asked[1][1]
    assert (options["beam_size"], options["temperature"], options["language"], options["suppress_tokens"]) == (1, 0.0, "en", [3])


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_runs_and_refuses(home, capsys, tmp_path, monkeypatch):
    def bench(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            app(["bench", "--suite", "whisper", *map(str, args)])
        return stopped.value.code, *capsys.readouterr()

    model = ("--model", home / "target", "--drafter", home / "drafter", "--device", "cpu")
    code, out, _ = bench(*model, "--kinds", "ljspeech", "--limit", 1, "--max-new-tokens", 4, "--output", tmp_path / "a.json")
    assert code == 0
    assert "### Recordings: ljspeech, batch 1" in out
    assert json.loads((tmp_path / "a.json").read_text())["suite"] == "whisper"
    for words, args in {
        "--temperature is not read by --suite whisper": (*model, "--temperature", 1),
        "fetch it with mmspec recipe speech/fetch_whisper.py -- --size base": (),
        "--size tiny.en": ("--model", home / "target"),
        "unknown kind of recordings 'lj'": (*model, "--kinds", "lj"),
        "reads text, and this suite is of recordings": ("--model", "mini", "--device", "cpu"),
        "set MMSPEC_DATA": (*model, "--kinds", "digits"),
    }.items():
        code, out, err = bench(*args)
        assert (code, out) == (2, ""), (words, err)
        assert len(err.splitlines()) == 1
        assert words in err
