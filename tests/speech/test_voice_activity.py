"""Silero's detector on spoken numbers between silence, and transcripts of the parts that it finds."""

from itertools import pairwise

import pytest
import torch

import mmspec
from mmspec.speech.recognition.voice_activity import speech_parts
from tests.speech.small_whisper import RATE, processor, whisper

pytest.importorskip("silero_vad", reason="it comes with mmspec[vad]")
GAP = 3.0


@pytest.fixture(scope="module")
def spoken():
    """(rate, waveforms) of two numbers."""
    mini = mmspec.load("speech")
    out = mmspec.speech.synthesize(mini.target, ["three five seven", "nine zero one"], voice=["jackson", "theo"])
    return out.sample_rate, out.waveforms


@pytest.fixture(scope="module")
def recording(spoken):
    """Silence, a number, silence, a number, silence; and where each number begins and ends, in seconds."""
    rate, (first, second) = spoken
    quiet = torch.zeros(round(GAP * rate))
    wave = torch.cat([quiet, first, quiet, second, quiet])
    ends = [GAP, GAP + len(first) / rate, 2 * GAP + len(first) / rate, 2 * GAP + (len(first) + len(second)) / rate]
    return rate, wave, ends


def test_parts_hold_the_speech_and_leave_the_silence_out(recording):
    rate, wave, (begin, end, again, last) = recording
    (one, other) = [(first / rate, stop / rate) for first, stop in speech_parts(wave, rate, 3.0)]
    assert one == (pytest.approx(begin, abs=0.4), pytest.approx(end, abs=0.4))
    assert other == (pytest.approx(again, abs=0.4), pytest.approx(last, abs=0.4))


def test_parts_are_joined_up_to_the_longest_and_no_further(recording):
    rate, wave, (begin, *_, last) = recording
    (whole,) = speech_parts(wave, rate, 30.0)
    assert [place / rate for place in whole] == [pytest.approx(begin, abs=0.4), pytest.approx(last, abs=0.4)]
    short = speech_parts(wave, rate, 1.0)
    assert max(end - first for first, end in short) <= rate
    assert all(before[1] <= after[0] for before, after in pairwise(short))


def test_silence_has_no_parts_and_threads_stay(recording):
    rate, threads = recording[0], torch.get_num_threads()
    assert speech_parts(torch.zeros(4 * rate), rate, 3.0) == []
    assert torch.get_num_threads() == threads


def test_a_recording_is_the_transcripts_of_its_parts(recording):
    model, kit = whisper(), processor()  # its window is one second
    rate, wave, _ = recording
    wave = torch.nn.functional.interpolate(wave[None, None], scale_factor=RATE / rate, mode="linear")[0, 0]
    parts = speech_parts(wave, RATE, 1.0)
    alone = mmspec.speech.transcribe(model, kit, [wave[first:end] for first, end in parts], timestamps="segment")
    out = mmspec.speech.transcribe(model, kit, [wave, torch.zeros(3 * RATE)], "lookup", vad=True, timestamps="segment", batch_size=2)
    assert out.transcripts[0].tokens == tuple(number for each in alone.transcripts for number in each.tokens)
    starts = [first / RATE + part.start for (first, _), each in zip(parts, alone.transcripts, strict=True) for part in each.segments]
    assert [part.start for part in out.transcripts[0].segments] == pytest.approx(starts)
    assert out.transcripts[0].seconds == len(wave) / RATE
    assert (out.transcripts[1].text, out.transcripts[1].tokens) == ("", ())
