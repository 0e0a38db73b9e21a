"""`mmspec transcribe`: files and folders in, texts, subtitles and JSON out; a second run goes on where the first one stopped."""

import json
import shutil
import sys
from pathlib import Path

import av
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file

import mmspec
from mmspec.commands import transcribe as command
from mmspec.loading.hearing import load_transcriber
from mmspec.speech.sound.audio import save
from tests.companions import counted, perturbed
from tests.speech.small_recognisers import RECOGNISERS
from tests.speech.small_whisper import RATE, processor, sounds, whisper


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model's folder, a drafter's, and a folder of three recordings."""
    root = tmp_path_factory.mktemp("transcribe")
    for name, model in (("model", whisper()), ("small", whisper(1, width=16))):
        model.save_pretrained(root / name)
        processor().save_pretrained(root / name)
    (root / "talks" / "more").mkdir(parents=True)
    for name, wave in zip(("a.wav", "b.flac", "more/c.wav"), sounds(0.8, 1.7, 0.5), strict=True):
        save(root / "talks" / name, wave, RATE)
    return root


def run(capsys, *words):
    from mmspec.cli import app

    with pytest.raises(SystemExit) as end:
        app(["transcribe", *map(str, words)])
    said = capsys.readouterr()
    return end.value.code, said.out, said.err


def test_texts_on_standard_output_are_those_of_the_call(world, capsys):
    code, out, err = run(capsys, world / "talks", "--model", world / "model", "--drafter", world / "small", "--draft-length", 3, "--json")
    assert code == 0, err
    told = json.loads(out)
    waves = [world / "talks" / name for name in ("a.wav", "b.flac", "more/c.wav")]
    found = mmspec.speech.transcribe(whisper(), processor(), waves)
    assert [tuple(each["tokens"]) for each in told["recordings"]] == [each.tokens for each in found.transcripts]
    assert [each["file"] for each in told["recordings"]] == [str(path) for path in waves]
    assert told["stats"]["drafted"] > 0


def test_a_second_run_writes_what_is_missing_only(world, tmp_path, capsys):
    words = [world / "talks", "--model", world / "model", "--format", "srt", "--out", tmp_path / "out"]
    code, _, err = run(capsys, *words)
    assert code == 0, err
    names = ["a.srt", "b.srt", "c.srt"]
    before = {name: (tmp_path / "out" / name).read_text() for name in names}
    assert all("-->" in text for text in before.values())
    (tmp_path / "out" / "b.srt").unlink()
    (tmp_path / "out" / "a.srt").write_text("mine")
    code, _, err = run(capsys, *words)
    assert (code, "2 of 3 recordings were there already" in err) == (0, True)
    assert (tmp_path / "out" / "a.srt").read_text() == "mine"
    assert (tmp_path / "out" / "b.srt").read_text() == before["b.srt"]
    code, _, err = run(capsys, *words, "--task", "translate")
    assert (code, "made with task 'transcribe'" in err) == (2, True)


def folder_of_all(place):
    """A folder with a recording in every format, others that are broken, and what is no sound."""
    place.mkdir()
    wave = sounds(0.6)[0]
    for name, form in (("a.wav", "WAV"), ("b.flac", "FLAC"), ("c.ogg", "OGG"), ("d.opus", "OGG"), ("e.mp3", "MP3"), ("f.aiff", "AIFF")):
        soundfile.write(place / name, wave.numpy(), RATE, format=form, subtype="OPUS" if name == "d.opus" else None)
    with av.open(str(place / "g.m4a"), "w") as file:
        stream = file.add_stream("aac", rate=RATE)
        frame = av.AudioFrame.from_ndarray(wave.numpy()[None], format="fltp", layout="mono")
        frame.sample_rate = RATE
        file.mux([*stream.encode(frame), *stream.encode(None)])
    for name in ("x.mp3", "y.m4a", "z.wav"):
        (place / name).write_bytes(b"no sound")
    (place / "notes.txt").write_text("what was said")
    (place / "cover.png").write_bytes(b"a picture")
    return place


def test_every_file_of_a_folder_is_done_rejected_or_named(world, tmp_path, capsys):
    folder = folder_of_all(tmp_path / "all")
    good, bad, others = ("a.wav", "b.flac", "c.ogg", "d.opus", "e.mp3", "f.aiff", "g.m4a"), {"x.mp3", "y.m4a", "z.wav"}, 2
    code, out, err = run(capsys, folder, "--model", world / "model", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert [Path(each["file"]).name for each in told["recordings"]] == list(good)
    assert {Path(each["file"]).name for each in told["rejects"]} == bad
    assert {Path(each).name for each in told["skipped"]} == {"notes.txt", "cover.png"}
    assert len(told["recordings"]) + len(told["rejects"]) + len(told["skipped"]) == len(list(folder.iterdir()))
    assert "not sound by its ending: 2 (cover.png, notes.txt)" in err
    words = (folder, "--model", world / "model", "--out", tmp_path / "out")
    code, out, err = run(capsys, *words)
    assert (code, out) == (0, "")
    assert f"{len(good)} recordings done, 3 rejected, {others} other files skipped" in " ".join(err.split())
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert {Path(each["file"]).name for each in rejects} == bad
    assert all("cannot be read" in each["reason"] for each in rejects)
    assert {path.stem for path in (tmp_path / "out").glob("*.txt")} == set("abcdefg")


def test_a_container_without_its_reader_is_rejected_with_the_remedy(world, tmp_path, capsys, monkeypatch):
    folder = folder_of_all(tmp_path / "all")
    monkeypatch.setitem(sys.modules, "av", None)
    code, out, _ = run(capsys, folder / "a.wav", folder / "g.m4a", "--model", world / "model", "--json")
    assert code == 0
    assert "needs PyAV: pip install 'mmspec[video]'" in json.loads(out)["rejects"][0]["reason"]


@pytest.mark.parametrize("what", ["recording", "weights"])
def test_texts_of_another_recording_or_model_are_no_result(world, tmp_path, capsys, what):
    shutil.copytree(world / "model", tmp_path / "model")
    wave = sounds(0.6)[0]
    save(tmp_path / "a.wav", wave, RATE)
    words = (tmp_path / "a.wav", "--model", tmp_path / "model", "--out", tmp_path / "out")
    assert run(capsys, *words)[0] == 0
    before = (tmp_path / "out" / "a.txt").read_bytes()
    if what == "recording":
        save(tmp_path / "a.wav", wave * 0.5, RATE)
    else:
        perturbed(whisper(), by=0.1).save_pretrained(tmp_path / "model")
    code, out, err = run(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert ("has changed since" if what == "recording" else "made with weights") in err
    assert (tmp_path / "out" / "a.txt").read_bytes() == before


@pytest.mark.parametrize("name", RECOGNISERS)
def test_other_recognisers_load_from_a_folder(name, tmp_path, capsys):
    model, kit = RECOGNISERS[name]()
    model.save_pretrained(tmp_path / "model")
    kit.save_pretrained(tmp_path / "model")
    waves = sounds(0.8, 0.5)
    for number, wave in enumerate(waves):
        save(tmp_path / f"{number}.wav", wave, RATE)
    words = [tmp_path / "0.wav", tmp_path / "1.wav", "--model", tmp_path / "model", "--drafter", "lookup", "--json"]
    code, out, err = run(capsys, *words)
    assert code == 0, err
    found = mmspec.speech.transcribe(model, kit, [tmp_path / "0.wav", tmp_path / "1.wav"])
    assert [tuple(each["tokens"]) for each in json.loads(out)["recordings"]] == [each.tokens for each in found.transcripts]
    if name == min(RECOGNISERS):  # of all: `tests.speech.test_transcribe_prompted`
        code, _, err = run(capsys, *words, "--timestamps", "word")
        assert (code, "timestamps is 'word'" in err) == (2, True)


def test_distil_whisper_reads_what_the_target_has_encoded(world, tmp_path):
    """A published Distil-Whisper is a whole model around a copy of the target's encoder."""
    distilled = perturbed(whisper(), by=0.05)
    distilled.model.encoder.load_state_dict(whisper().model.encoder.state_dict())
    distilled.save_pretrained(tmp_path / "distil")
    processor().save_pretrained(tmp_path / "distil")
    pair, waves = load_transcriber(str(world / "model"), str(tmp_path / "distil")), sounds(0.8, 0.5)
    with counted(pair.target.model.encoder, pair.model.model.encoder) as runs:
        out = mmspec.speech.transcribe(pair.target, pair.processor, waves, pair.drafter, draft_length=3, language="en")
    assert runs == [1, 0]
    assert out.stats.accepted > 0
    plain = mmspec.speech.transcribe(pair.target, pair.processor, waves, language="en")
    assert [each.tokens for each in out.transcripts] == [each.tokens for each in plain.transcripts]


@pytest.mark.parametrize("kind", ["Qwen2.5-Omni", "Qwen3-Omni"])
def test_a_whole_omni_checkpoint_loads_as_its_thinker(kind, tmp_path):
    """Published checkpoints hold the talker, too, and the thinker under a prefix."""
    model, kit = RECOGNISERS[kind]()
    model.save_pretrained(tmp_path)
    kit.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    talker = {"talker.codec_head.weight": torch.zeros(2, 2)}
    save_file({f"thinker.{name}": value for name, value in weights.items()} | talker, tmp_path / "model.safetensors", {"format": "pt"})
    thinker = json.loads((tmp_path / "config.json").read_text())
    whole = {"model_type": thinker["model_type"].removesuffix("_thinker"), "thinker_config": thinker}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    found = load_transcriber(str(tmp_path))
    assert type(found.target) is type(model)
    for name, value in model.state_dict().items():
        assert torch.equal(found.target.state_dict()[name], value)


def test_a_model_that_cannot_be_loaded_leaves_no_settings(world, tmp_path, capsys):
    code, _, err = run(capsys, world / "talks", "--model", tmp_path / "no", "--out", tmp_path / "out")
    assert code == 2
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


REFUSED = {
    "no recording": ([], "no recording"),
    "no model": (["a.wav"], "no model"),
    "no such file": (["no.wav", "--model", "M"], "no.wav does not exist"),
    "a folder without sound": (["empty", "--model", "M"], "holds no sound"),
    "no sound": (["text.wav", "--model", "M"], "text.wav cannot be read"),
    "two of one name": (["a.wav", "again/a.wav", "--model", "M", "--out", "out"], "would both be written to a"),
    "an unknown format": (["a.wav", "--model", "M", "--format", "doc"], "unknown format 'doc'"),
    "unknown times": (["a.wav", "--model", "M", "--timestamps", "all"], "unknown timestamps 'all'"),
    "subtitles without times": (["a.wav", "--model", "M", "--format", "srt", "--timestamps", "none"], "has the times of segments"),
    "words in subtitles": (["a.wav", "--model", "M", "--format", "vtt", "--timestamps", "word"], "has the times of segments"),
    "times in text": (["a.wav", "--model", "M", "--timestamps", "word"], "has no times"),
    "two outputs": (["a.wav", "--model", "M", "--format", "srt", "--json"], "--json and --format"),
    "no rows": (["a.wav", "--model", "M", "--batch-size", "0"], "batch-size is 0"),
    "another kind of model": (["a.wav", "--model", "mini"], "is no recogniser"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_line(world, tmp_path, capsys, name, monkeypatch):
    words, line = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    for place in ("again", "empty"):
        (tmp_path / place).mkdir()
    for place in ("a.wav", "again/a.wav"):
        save(tmp_path / place, sounds(0.3)[0], RATE)
    (tmp_path / "text.wav").write_text("no sound")
    code, out, err = run(capsys, *[str(world / "model") if word == "M" else word for word in words])
    assert code == 2
    assert line in err
    assert err.count("\n") == 1
    assert out == ""
    assert not (tmp_path / "out").exists()


def test_recordings_are_read_in_parts(world, capsys, monkeypatch):
    monkeypatch.setattr(command, "PART", 2)
    code, out, err = run(capsys, world / "talks", "--model", world / "model")
    assert code == 0, err
    assert [line for line in out.splitlines() if line.endswith((".wav", ".flac"))] == [
        str(world / "talks" / name) for name in ("a.wav", "b.flac", "more/c.wav")
    ]
