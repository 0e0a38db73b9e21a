"""Speech in bulk: the same bytes whatever the batches and processes, killed and resumed, lines that cannot be said told with reasons."""

import errno
import json
import os
import random
import signal
from functools import partial
from pathlib import Path

import pytest
import soundfile
import torch

from mmspec.jobs import Processes, Stopped, run
from mmspec.jobs.speech import Say
from mmspec.jobs.speech_job import SpeechJobSpec, make_speech_job
from mmspec.loading.speech import load_speaker
from mmspec.speech import synthesize
from mmspec.speech.sound.audio import at_rate
from mmspec.speech.sound.files import SUBTYPES, sound_bytes
from tests.jobs.folders import tree
from tests.jobs.one_thread import one_thread  # noqa: F401
from tests.jobs.worker import die_at, killed
from tests.speech import small_models

LINES = [
    {"text": "one two", "id": 7},
    {"text": "three", "voice": "theo"},
    {"text": "42"},
    {"text": "the red bird", "seed": 41},
    {"text": " "},
    {"text": "five", "voice": "bob"},
    {"text": "six", "seed": "x"},
    {"text": "one " * 30},
    {"id": 3},
    {"text": "eight"},
    {"text": "nine zero", "voice": "espeak"},
]
GOOD = [0, 1, 3, 9, 10]


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """Nothing here outlives the machine's power."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return small_models.folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def speakers(home):
    return {name: load_speaker(str(home), name) for name in ("model", "vadusa", "none")}


@pytest.fixture
def asked(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(json.dumps(line) for line in LINES), encoding="utf-8")

    def make(name: str, **changes) -> SpeechJobSpec:
        sizes = {"batch_size": 2, "shard_size": 3, "voice": "jackson", "seed": 3}
        return SpeechJobSpec(**({"texts": source, "out": tmp_path / name} | sizes | changes))

    return make


def rows(folder: Path) -> dict[int, dict]:
    found = [json.loads(line) for path in sorted(folder.glob("part-*.jsonl")) for line in path.read_text().splitlines()]
    return {row["index"]: row for row in found}


def test_sounds_do_not_depend_on_batches_drafters_or_processes(asked, speakers, tmp_path):
    for size in (1, 2, 8):
        run(make_speech_job(asked(str(size), batch_size=size), speakers["model"]))
    run(make_speech_job(asked("plain"), speakers["none"]))
    run(make_speech_job(asked("tree", tree=(2, 2), batch_size=8), speakers["vadusa"]))
    for rank in (1, 2, 0):
        run(make_speech_job(asked("three"), speakers["vadusa"]), processes=Processes(rank, 3))
    right = tree(tmp_path / "1")
    for name in ("2", "8", "plain", "tree", "three"):
        assert tree(tmp_path / name) == right, name
    assert len({content for name, content in right.items() if name.endswith(".wav")}) == len(GOOD)


def test_a_sound_is_that_of_the_public_call(asked, speakers, tmp_path):
    report = run(make_speech_job(asked("out"), speakers["model"]))
    found = rows(tmp_path / "out")
    assert (report.outputs, report.rejects, sorted(found)) == (len(GOOD), 6, GOOD)
    assert {key: found[0][key] for key in ("text", "id", "voice", "seed", "file")} == {
        "text": "one two",
        "id": 7,
        "voice": "jackson",
        "seed": 3,
        "file": "sounds/000000.wav",
    }
    assert [(found[index]["voice"], found[index]["seed"]) for index in GOOD[1:]] == [
        ("theo", 4),
        ("jackson", 41),
        ("jackson", 12),
        ("espeak", 13),
    ]
    for row in found.values():
        alone = synthesize(speakers["none"].model, [row["text"]], seed=row["seed"], voice=row["voice"])
        wave, rate = soundfile.read(tmp_path / "out" / row["file"], dtype="float32")
        assert torch.equal(torch.from_numpy(wave), alone.waveforms[0])
        assert (rate, len(wave) / rate) == (8000, row["seconds"])
    assert report.measures["sound"] == pytest.approx(sum(row["seconds"] for row in found.values()))
    assert report.measures["tokens"] > report.measures["row_calls"]


def test_rejects_say_why(asked, speakers, tmp_path):
    run(make_speech_job(asked("out"), speakers["none"]))
    reasons = {row["line"]: row["reason"] for row in map(json.loads, (tmp_path / "out" / "rejects.jsonl").read_text().splitlines())}
    words = {3: "'4', which the tokenizer lacks", 5: 'no "text"', 6: "unknown voice 'bob'", 7: "seed is 'x'", 8: "too long", 9: 'no "text"'}
    assert sorted(reasons) == sorted(words)
    for line, word in words.items():
        assert word in reasons[line]


@pytest.mark.parametrize("form", SUBTYPES)
def test_every_format_and_rate(asked, speakers, tmp_path, form):
    run(make_speech_job(asked("out", form=form, sample_rate=16000), speakers["none"]))
    row = rows(tmp_path / "out")[0]
    alone = synthesize(speakers["none"].model, [row["text"]], seed=row["seed"], voice=row["voice"]).waveforms[0]
    assert (tmp_path / "out" / row["file"]).read_bytes() == sound_bytes(at_rate(alone, 8000, 16000), 16000, form)


def test_lines_of_text(asked, speakers, tmp_path):
    (tmp_path / "in.txt").write_text("one two\n\nfive\n")
    report = run(make_speech_job(asked("out", texts=tmp_path / "in.txt"), speakers["none"]))
    assert (report.outputs, report.rejects) == (2, 1)
    assert [row["text"] for row in rows(tmp_path / "out").values()] == ["one two", "five"]


# --- stopped and resumed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["wav", "ogg"])
def test_killed_at_random_moments_and_resumed(asked, speakers, tmp_path, form):
    run(make_speech_job(asked("right", form=form), speakers["model"]))
    right, pick, kills = tree(tmp_path / "right"), random.Random(len(form)), 0
    for turn in range(2):
        job = make_speech_job(asked(f"out{turn}", form=form, batch_size=turn + 1), speakers["model"])
        while killed(partial(die_at, pick.randrange(1, 14)), job):
            kills += 1
            seen = {name: content for name, content in tree(tmp_path / f"out{turn}").items() if not name.startswith(".")}
            seen.pop("manifest.json", None)
            assert seen.items() <= right.items()  # what is there is whole
        assert tree(tmp_path / f"out{turn}") == right
    assert kills >= 4


def die_in(batch: int) -> None:
    """Kill this process when it begins to say its batch of that number."""
    said, left = Say.__call__, [batch]

    def dying(self, records):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return said(self, records)

    Say.__call__ = dying


def test_killed_while_it_speaks(asked, speakers, tmp_path):
    run(make_speech_job(asked("right"), speakers["none"]))
    job = make_speech_job(asked("out"), speakers["none"])
    for batch in (1, 3):
        assert killed(partial(die_in, batch), job)
    report = run(job)
    assert report.resumed >= 1
    assert tree(tmp_path / "out") == tree(tmp_path / "right")


def test_a_full_disk_stops_in_one_line_and_goes_on(asked, speakers, tmp_path, monkeypatch):
    run(make_speech_job(asked("whole"), speakers["none"]))
    say, calls = Say.__call__, []

    def full(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return say(self, batch)

    with monkeypatch.context() as planted:
        planted.setattr(Say, "__call__", full)
        with pytest.raises(Stopped, match=r"(?i)space") as told:
            run(make_speech_job(asked("again"), speakers["none"]))
    assert "\n" not in str(told.value)
    assert not list((tmp_path / "again").glob(".unfinished*"))
    before = {path: path.read_bytes() for path in (tmp_path / "again").glob("sounds/*")}
    assert before
    assert run(make_speech_job(asked("again", batch_size=1), speakers["model"])).resumed >= 1
    assert tree(tmp_path / "again") == tree(tmp_path / "whole")
    assert all(path.read_bytes() == content for path, content in before.items())


CHANGES = [{"seed": 4}, {"temperature": 0.5}, {"voice": "theo"}, {"form": "flac"}, {"sample_rate": 16000}, {"max_seconds": 0.2}]


@pytest.mark.parametrize("change", CHANGES)
def test_another_job_is_refused_in_one_line(asked, speakers, change):
    run(make_speech_job(asked("out"), speakers["none"]))
    with pytest.raises(ValueError, match="holds another job") as told:
        run(make_speech_job(asked("out", **change), speakers["none"]))
    assert "\n" not in str(told.value)


def test_what_does_not_go_together_is_told_before_anything_is_written(asked, speakers, tmp_path):
    cases = {
        "does not exist": {"texts": tmp_path / "nowhere.txt"},
        "unknown format 'mp3'": {"form": "mp3"},
        "sample rate is 7": {"sample_rate": 7},
        "unknown voice 'bob'": {"voice": "bob"},
        "has room for 1.2": {"max_seconds": 60},
        "'maybe'": {"accept": "maybe"},
        "give draft length a number": {"accept": "block"},
    }
    for words, changes in cases.items():
        with pytest.raises(ValueError, match=words) as told:
            run(make_speech_job(asked("out", **changes), speakers["model"]))
        assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()
    assert run(make_speech_job(asked("out", accept="block", draft_length=3), speakers["model"])).outputs == len(GOOD)


@pytest.mark.parametrize("name", ["none", "model", "vadusa"])
def test_texts_that_join_write_the_bytes_of_static_batches(asked, speakers, tmp_path, name):
    """In fewer forwards, as the lengths of the sounds differ."""
    calls = {}
    for way in ("continuous", "static"):
        job = make_speech_job(asked(way, batch_size=2, shard_size=len(LINES), batching=way, draft_length=2), speakers[name])
        run(job)
        calls[way] = job.work.stats.target_calls
    assert tree(tmp_path / "continuous") == tree(tmp_path / "static")
    assert calls["continuous"] < calls["static"]


def test_an_unknown_way_to_batch_is_refused(asked, speakers):
    with pytest.raises(ValueError, match="unknown batching 'rows'; valid: continuous, static"):
        make_speech_job(asked("out", batching="rows"), speakers["none"])
