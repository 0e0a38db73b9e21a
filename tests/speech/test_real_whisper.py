"""Whisper base drafted by tiny.en, published weights and real recordings: text and times of `generate` alone, tokens a call, words wrong.

The weights are those that `speech/fetch_whisper.py` keeps; they are fetched once. `python -m tests.transcription` covers all recordings.
"""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mmspec.bench.suites.recordings import Recording, compared_words, recordings_of
from mmspec.loading.hearing import load_transcriber
from mmspec.loading.wheels import model_folder
from mmspec.speech.sound.recogniser import word_errors
from tests.transcription import RATE, by_generate, by_mmspec, equal

ROOT = Path(__file__).parents[2]
ASKED = SimpleNamespace(language="en", fallback=False, condition=False)


def recordings(kind):
    try:
        return recordings_of(kind, RATE)
    except (OSError, ValueError) as error:
        pytest.skip(f"no recordings: {error}")


@pytest.fixture(scope="module")
def pair():
    recordings("ljspeech")
    for size in ("base", "tiny.en"):
        if not (model_folder(f"whisper-{size}") / "config.json").exists():
            command = [sys.executable, str(ROOT / "speech/fetch_whisper.py"), "--size", size]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900)
            if done.returncode:
                pytest.skip(f"the weights cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
    return load_transcriber(str(model_folder("whisper-base")), str(model_folder("whisper-tiny.en")))


@pytest.mark.parametrize(
    ("kind", "times", "least", "errors"),
    [("ljspeech", None, 4.0, 0.15), ("ljspeech", "word", 3.5, 0.15), ("digits", None, 3.5, 0.05), ("long", "segment", 4.0, 0.15)],
)
def test_text_and_times_are_those_of_generate_on_each_recording_alone(pair, kind, times, least, errors):
    if kind == "long":
        clips = recordings("ljspeech")[:6]
        batch = [Recording("long", "long/0", " ".join(clip.text for clip in clips), torch.cat([clip.wave for clip in clips]))]
        assert len(batch[0].wave) > 30 * RATE
    else:
        batch = recordings(kind)[:2]
    out = by_mmspec(pair, ASKED, batch, times, "8")
    for clip, got in zip(batch, out.transcripts, strict=True):
        assert equal(got, by_generate(pair, ASKED, [clip], times))
        assert bool(got.segments) == (times is not None)
        assert any(part.words for part in got.segments) == (times == "word")
    assert out.stats.exactness == "token-exact"
    assert out.stats.tokens_per_call >= least
    said, written = [compared_words(clip.text) for clip in batch], [compared_words(text) for text in out.texts]
    assert sum(word_errors(said, written)) <= errors * sum(len(text.split()) for text in said)


def test_the_language_is_detected(pair):
    asked = SimpleNamespace(language="auto", fallback=False, condition=False)
    clip = recordings("ljspeech")[0]
    out = by_mmspec(pair, asked, [clip], None, "8")
    assert out.transcripts[0].language == "en"
    assert equal(out.transcripts[0], by_generate(pair, asked, [clip], None))
