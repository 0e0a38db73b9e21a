"""Sound files of every kind are read, or refused in one line, in bounded memory: by the call, the command line and the server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import numpy as np
import pytest

from mmspec.loading import hearing
from mmspec.serving.http.loading import ModelNames, load_served
from mmspec.serving.http.options import ServerLimits
from mmspec.speech.recognition import transcribe
from mmspec.speech.recognition.transcript import Transcript
from mmspec.speech.sound import audio
from tests.fuzz.harness import INTERNAL, Report, command
from tests.fuzz.harness import LONGEST as LINE
from tests.fuzz.sounds import LONGEST, READ, REFUSED, SECONDS, TONE, SoundCase, sound_cases
from tests.serving.web import WAIT, running
from tests.speech.small_whisper import processor, whisper

RATE = 16_000
MEMORY = 150_000_000
"""Bytes that reading any of them may take: 30 s at 16 kHz are 2 MB, and a block of samples 4 MB."""
CASES = list(sound_cases())
_READER = """
import json, resource, sys
from pathlib import Path
from mmspec.speech.recognition import transcribe
from mmspec.speech.recognition.transcript import Transcript
from mmspec.speech.sound import audio

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

audio.read_sound(sys.argv[2], 16_000)  # libraries are loaded
before, found = peak(), {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    for source in (path, path.read_bytes()):
        try:
            wave, _ = audio.read_sound_and_rate(source, 16_000, float(sys.argv[3]))
            told = [len(wave), "", float(wave[:8000].abs().max())]
        except ValueError as error:
            told = [0, str(error), 0.0]
        found.setdefault(path.name, []).append((*told, peak() - before))
        before = max(before, peak())
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All files."""
    place = tmp_path_factory.mktemp("sounds")
    for case in CASES:
        (place / case.name).write_bytes(case.content)
    assert len({case.name for case in CASES}) == len(CASES) >= 40
    return place


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("models") / "whisper-random"
    whisper().save_pretrained(place)
    processor().save_pretrained(place)
    return place


@pytest.fixture
def unwritten(monkeypatch):
    """Recordings are read as they always are; what is written about them is not looked at here."""
    monkeypatch.setattr(transcribe, "transcribe_whisper", lambda model, kit, waves, *_: [Transcript("", None, 1.0) for _ in waves])


def _wrong(case: SoundCase, text: str, read: bool) -> Iterator[str]:
    """What is wrong with how a file was read or refused."""
    if case.wanted != (READ if read else REFUSED) and case.wanted in (READ, REFUSED):
        yield f"was {'read' if read else 'refused'}, and was to be {case.wanted}"
    if not read and ("\n" in text.strip() or not text or len(text) > LINE or INTERNAL.search(text)):
        yield "is refused unclearly"


def test_readers_take_bounded_memory(folder):
    """Files and uploads, in a process whose memory is theirs."""
    words = [sys.executable, "-c", _READER, str(folder), str(folder / "16000.wav"), str(LONGEST)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr  # what escapes from a callback of libsndfile is printed there
    found, faults = json.loads(done.stdout), []
    for case in CASES:
        for length, text, _, grown in found[case.name]:
            faults += [f"{case.name} {fault}: {text}" for fault in _wrong(case, text, length > 0)]
            if grown > MEMORY:
                faults.append(f"{case.name} took {grown / 1e6:.0f} MB")
            if length > LONGEST * RATE:
                faults.append(f"{case.name} has {length / RATE:.0f} s")
    assert not faults, "\n".join(faults)


def test_what_is_read_is_what_was_recorded(folder):
    """At every rate and in every format: half a second of a tone, at its frequency."""
    for case in CASES:
        if case.wanted == READ and case.name != "1000.wav":
            wave = audio.read_sound(folder / case.name, RATE).numpy()
            middle = wave[2000:6000]
            wanted = np.exp(-2j * np.pi * TONE * np.arange(4000) / RATE)
            level = 2 * abs(np.mean(middle * wanted))
            assert abs(len(wave) / RATE - SECONDS) < (0.11 if case.name.endswith("mp3") else 2e-3), case.name
            assert level == pytest.approx(0.5, rel=0.03), case.name


def test_command_lines_end_clearly(folder, model, tmp_path, monkeypatch, unwritten):
    monkeypatch.setattr(hearing, "load_transcriber", cache(hearing.load_transcriber))
    monkeypatch.setattr(audio, "LONGEST", LONGEST)
    report = Report()
    for case in CASES:
        outcome, detail = command(["transcribe", str(folder / case.name), "--model", str(model)], tmp_path, case.wanted == REFUSED)
        report.add(outcome, f"transcribe {case.name}", detail)
    assert report.clear, report.table("sound files")


def test_uploads_are_answered(folder, model, unwritten):
    limits, faults = ServerLimits(max_seconds=LONGEST), []
    models = load_served(ModelNames(names={"recognizer": str(model)}, drafters={"recognizer": "lookup"}, device="cpu"), limits)
    with running(models, limits) as site, httpx.Client(timeout=WAIT) as client:
        for case in CASES:
            answer = client.post(f"{site.url}/v1/audio/transcriptions", files={"file": (case.name, case.content)})
            read, told = answer.status_code == 200, answer.json()
            if answer.status_code not in (200, 400, 413):
                faults.append(f"{case.name}: status {answer.status_code}")
            text = "" if read else told["error"]["message"]
            faults += [f"{case.name} {fault}: {text}" for fault in _wrong(case, text, read)]
        assert client.get(f"{site.url}/health").status_code == 200
    assert not faults, "\n".join(faults)
