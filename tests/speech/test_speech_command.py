"""`mmspec speech`: the sound of `mmspec.speech.synthesize`, one line for every mistake, whole files or none."""

import errno
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
import torch

import mmspec
from mmspec.loading.speech import load_speaker
from tests.commands import refused, runner
from tests.speech import small_models

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return small_models.folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(home):
    return load_speaker(str(home)).model


@pytest.fixture
def speech(capsys, tmp_path, home):
    """The command into a file of its own: (exit code, stdout, stderr, path)."""
    return runner(capsys, tmp_path, "speech", home, "out.wav")


def sound(path: Path) -> torch.Tensor:
    return torch.from_numpy(soundfile.read(path, dtype="float32")[0])


def test_the_sound_is_that_of_the_public_call(speech, model):
    code, out, _, path = speech("one two three", "--voice", "jackson", "--seed", 3, "--temperature", 1.3, "--json")
    found = json.loads(out)
    plain = mmspec.speech.synthesize(model, ["one two three"], seed=3, voice="jackson", temperature=1.3)
    assert code == 0
    assert torch.equal(sound(path), plain.waveforms[0])
    (row,) = found["utterances"]
    assert (row["text"], row["voice"], row["seed"], row["out"]) == ("one two three", "jackson", 3, str(path))
    assert row["tokens"] == plain.tokens[0].tolist()
    assert row["seconds"] == len(plain.waveforms[0]) / 8000
    assert 0 < row["first_sound"] <= found["seconds"]
    assert found["real_time_factor"] == pytest.approx(found["seconds"] / row["seconds"])
    assert (found["drafter"], found["sample_rate"], found["stats"]["exactness"]) == ("model", 8000, "token-exact")
    assert found["stats"]["tokens_per_call"] > 1


@pytest.mark.parametrize("extra", [("--drafter", "none"), ("--drafter", "lookup"), ("--drafter", "vadusa", "--tree", "3,2"), ("--stream",)])
def test_the_sound_does_not_depend_on_how_it_is_made(speech, extra):
    first = speech("the red bird", "--seed", 5, "--draft-length", 3)[-1].read_bytes()
    assert speech("the red bird", "--seed", 5, *extra)[-1].read_bytes() == first
    assert speech("the red bird", "--seed", 6, *extra)[-1].read_bytes() != first


def test_several_texts_voices_and_counts(speech, model, monkeypatch):
    monkeypatch.setattr("mmspec.commands.speech.BATCH", 3)
    args = ("one", "two", "--count", 2, "--voice", "theo", "--voice", "espeak", "--seed", 9)
    code, out, _, path = speech(*args, "--json")
    found = json.loads(out)["utterances"]
    assert code == 0
    assert [(row["text"], row["voice"], row["seed"]) for row in found] == [
        ("one", "theo", 9),
        ("one", "theo", 10),
        ("two", "espeak", 11),
        ("two", "espeak", 12),
    ]
    assert [row["out"] for row in found] == [str(path.with_stem(f"out-{row}")) for row in range(4)]
    for row in found:
        alone = mmspec.speech.synthesize(model, [row["text"]], voice=row["voice"], seed=row["seed"])
        assert torch.equal(sound(row["out"]), alone.waveforms[0])
    before = {row["out"]: Path(row["out"]).read_bytes() for row in found}
    speech(*args, "--stream")
    assert before == {name: Path(name).read_bytes() for name in before}


@pytest.mark.parametrize("form", ["wav", "flac", "ogg"])
def test_formats_and_rates(speech, form):
    _, out, _, path = speech("one two three", "--sample-rate", 16000, "--json", out=f"out.{form}")
    assert soundfile.info(path).samplerate == json.loads(out)["sample_rate"] == 16000
    assert soundfile.info(path).format == form.upper()
    assert soundfile.info(path).duration == pytest.approx(json.loads(out)["utterances"][0]["seconds"])


def test_the_table_tells_what_matters(speech):
    code, out, _, path = speech("one two three", "--voice", "jackson")
    assert code == 0
    for words in ("jackson", "first sound", "worst gap", "tokens per call", "real-time factor", "token-exact"):
        assert words in out
    assert path.exists()


def test_a_streamed_file_grows_while_it_is_spoken(speech, monkeypatch):
    from mmspec.speech.sound.files import GrowingWav

    add, seen = GrowingWav.add, {}

    def watched(self, piece):
        add(self, piece)
        seen.setdefault(self.file.name, []).append(len(soundfile.read(self.file.name)[0]))

    monkeypatch.setattr(GrowingWav, "add", watched)
    args = ("one two three", "--stream", "--temperature", 1.3, "--top-p", 1, "--count", 6)
    _, _, err, path = speech(*args)
    assert ".out-5.wav." in err
    assert max(map(len, seen.values())) > 1
    for name, lengths in seen.items():
        assert lengths == sorted(set(lengths))
        assert len(sound(path.parent / f"{Path(name).name[1:].split('.wav')[0]}.wav")) == lengths[-1]
    assert len(list(path.parent.iterdir())) == 6


def test_standard_input(speech, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one two\n"))
    assert json.loads(speech("-", "--json")[1])["utterances"][0]["text"] == "one two"


MISTAKES = {
    "no text": ((), ("no text", "--file")),
    "an empty text": (("  ",), ("is empty",)),
    "characters it lacks": (("one 2",), ("'2'", "tokenizer lacks")),
    "a second text it cannot say": (("one", "naïve"), ("'ï'",)),
    "a long text": (("one " * 30,), ("too long", "cut it into sentences")),
    "an unknown voice": (("one", "--voice", "bob"), ("'bob'", "george, jackson")),
    "too many voices": (("one", "--voice", "theo", "--voice", "lucas"), ("2 voices for 1 texts",)),
    "no utterance": (("one", "--count", 0), ("--count is 0",)),
    "an unknown drafter": (("one", "--drafter", "oracle"), ("'oracle'", "model, vadusa, lookup")),
    "an unknown rule": (("one", "--accept", "maybe"), ("'maybe'", "coupled")),
    "a tree of words": (("one", "--tree", "oak"), ("'oak'", "4,2,1")),
    "a draft length of words": (("one", "--draft-length", "long"), ("'long'",)),
    "a tree for a chain rule": (("one", "--tree", "4,2", "--accept", "block"), ("chains only",)),
    "a negative temperature": (("one", "--temperature", -1), ("temperature is -1",)),
    "no time": (("one", "--max-seconds", 0), ("max_seconds is 0",)),
    "too much time": (("one", "--max-seconds", 60), ("room for 1.2",)),
    "a rate of nothing": (("one", "--sample-rate", 0), ("sample rate is 0",)),
    "a stream that is resampled": (("one", "--stream", "--sample-rate", 16000), ("--stream writes a wav",)),
    "an unknown dtype": (("one", "--dtype", "float7"), ("'float7'", "bfloat16")),
    "a format for one text": (("one", "--format", "flac"), ("--format belongs to --file",)),
    "a file and a text": (("one", "--file", "x.txt"), ("both given",)),
    "a file that is not there": (("--file", "nowhere.txt"), ("nowhere.txt does not exist",)),
    "an unknown engine": (("--file", "texts.jsonl", "--engine", "steam"), ("'steam'", "local, ray")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line(speech, mistake):
    args, words = MISTAKES[mistake]
    refused(speech(*args), *words)


def test_models_that_are_not_there(speech, tmp_path_factory, monkeypatch):
    refused(speech("one", model="./nowhere"), "./nowhere does not exist")
    bare = tmp_path_factory.mktemp("bare")
    refused(speech("one", model=bare), "cannot be loaded", "Unrecognized model")
    (bare / "target").mkdir()
    (bare / "codec").mkdir()
    refused(speech("one", model=bare), str(bare))


def test_the_mini_is_what_is_loaded_by_default(speech, home, monkeypatch):
    from mmspec.minis import load_speech

    monkeypatch.setattr(mmspec, "load", lambda name: load_speech(home) if name == "speech" else None)
    code, out, _, _ = speech("one", "--json", model="mini")
    assert code == 0
    assert json.loads(out)["model"] == "mini"


@pytest.mark.parametrize(
    ("out", "words"), [("no/out.wav", ("cannot write", "out.wav")), ("out.mp3", (".mp3", ".flac")), ("out", ("ends in",))]
)
def test_a_place_that_cannot_be_written_to(speech, out, words):
    refused(speech("one", out=out), *words)


@pytest.mark.parametrize("extra", [(), ("--stream",)])
def test_a_full_disk_is_one_line_and_leaves_earlier_sounds(speech, monkeypatch, extra):
    args = ("one", "two three", *extra)
    speech(*args)
    folder = speech(*args)[-1].parent
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(before) == ["out-0.wav", "out-1.wav"]
    left = [1]

    def full(*args):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mmspec.utils.files.os.fsync", full)  # of the second file, when the first is written
    code, out, err, _ = speech(*args, "--seed", 9)
    assert (code, out) == (1, "")
    assert "disk is full" in err
    assert len([line for line in err.splitlines() if not line.startswith("growing")]) == 1
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_file_of_lines_is_a_job(speech, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("one two\n42\nthe red bird\n")
    code, out, _, folder = speech("--file", lines, "--voice", "theo", "--format", "flac", "--json", out="sounds")
    found = json.loads(out)
    assert code == 0
    assert (found["records"], found["outputs"], found["rejects"], found["resumed"]) == (3, 2, 1, 0)
    assert found["tokens_per_call"] > 1
    assert sorted(path.name for path in (folder / "sounds").iterdir()) == ["000000.flac", "000002.flac"]
    again = json.loads(speech("--file", lines, "--voice", "theo", "--format", "flac", "--json", out="sounds")[1])
    assert again["resumed"] == again["shards"] == 1
    refusing = speech("--file", lines, "--voice", "lucas", "--format", "flac", out="sounds")
    assert (refusing[0], refusing[1]) == (2, "")
    assert "holds another job" in refusing[2]
    lines.write_text("42\n")
    code, out, err, _ = speech("--file", lines, out="none")
    assert (code, out) == (2, "")
    assert "all 1 texts were rejected" in err


def test_stdout_holds_one_json_object_and_nothing_else(home, tmp_path):
    command = [sys.executable, "-m", "mmspec.cli", "speech", "one", "--model", home, "--out", tmp_path / "a.wav", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240, check=True)
    wanted = {"model", "drafter", "settings", "sample_rate", "real_time_factor", "seconds", "stats", "utterances"}
    assert set(json.loads(done.stdout)) == wanted
    assert not done.stderr
