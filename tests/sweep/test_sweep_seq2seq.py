"""A fast slice of the sweep: a model of each mechanism by which decoders are told positions, and every refusal by kind."""

from dataclasses import replace

import pytest

from tests.sweep import audio, seq2seq, speech
from tests.sweep.run import EXACT, NOT_RUN, REFUSED, examine

CASES = {case.name: case for case in (*speech.cases(), *audio.cases(), *seq2seq.cases())}
SLICE = ("led", "fsmt", "umt5", "moonshine", "granite_speech")
HELD_BACK = {
    "prophetnet": "in no known way",
    "pop2piano": "generate of its own",
    "nemo_speechlm": "reads pictures or sound",
    "kyutai_speech_to_text": "ahead of the sound",
}


@pytest.mark.parametrize("name", SLICE)
def test_a_model_of_every_mechanism_gives_the_tokens_of_its_own_generate(name):
    record = examine(replace(CASES[name], tokens=6), pairs=True)
    assert record.outcome == EXACT, record.reason


@pytest.mark.parametrize("name", HELD_BACK)
def test_what_is_not_right_is_refused_by_its_reason(name):
    record = examine(CASES[name])
    assert record.outcome == REFUSED
    assert HELD_BACK[name] in record.reason


def test_every_model_that_writes_sound_is_refused():
    records = [examine(case) for case in speech.cases()]
    unlike = {record.name: record.reason for record in records if record.outcome != REFUSED}
    assert set(unlike) <= {"qwen3_omni_moe"}, unlike  # transformers cannot make its default config
    assert all(record.outcome in (REFUSED, NOT_RUN) for record in records)
