"""Why a row ended: "stop" where nothing is missing, "length" where the longest length cut it; the same by every way of decoding."""

import copy
import json

import pytest
import torch

import mmspec
from mmspec import Engine
from mmspec.core.stopping import LENGTH, STOP, DefaultStopping
from mmspec.minis import load
from mmspec.speech import synthesize
from mmspec.speech.recognition.transcript import joined_transcript
from tests.conftest import llama
from tests.speech import small_bark, small_delay, small_pocket
from tests.speech.small_recognisers import RECOGNISERS
from tests.speech.small_whisper import processor, sounds, whisper

PROMPTS = {"input_ids": torch.tensor([[5, 6, 7, 5, 6], [9, 3, 9, 3, 8]]), "attention_mask": torch.ones(2, 5).long()}
WAIT = 60


@pytest.fixture(scope="module")
def model():
    """A model and the number of tokens after which its rows end by themselves."""
    found = copy.deepcopy(llama(2, seed=0))
    found.generation_config.eos_token_id = None
    rows = mmspec.text.generate(found, PROMPTS, max_new_tokens=24).tokens.tolist()
    end = next(token for token in rows[0][3:])
    found.generation_config.eos_token_id = found.generation_config.pad_token_id = end
    return found, [row.index(end) + 1 if end in row else None for row in rows]


def reason(length, most):
    return LENGTH if length is None or length > most else STOP


@pytest.mark.parametrize("drafter", [None, "lookup", "itself"])
def test_text_says_why_it_ended(model, drafter):
    net, lengths = model
    drafter = net if drafter == "itself" else drafter
    with Engine(net, drafter, max_rows=2) as engine:
        for most in (1, lengths[0] - 1, lengths[0], lengths[0] + 1, 24):
            wanted = [reason(length, most) for length in lengths]
            out = mmspec.text.generate(net, PROMPTS, drafter, max_new_tokens=most)
            assert list(out.finish_reasons) == wanted
            asked = [{name: part[row : row + 1] for name, part in PROMPTS.items()} for row in range(2)]
            handles = [engine.submit(inputs, max_new_tokens=most) for inputs in asked]
            assert [handle.result(WAIT).finish_reasons[0] for handle in handles] == wanted
            assert [handle.finish_reason for handle in handles] == wanted


def test_a_stop_at_the_last_place_is_a_stop(model):
    net, _ = model
    stop = lambda row, ids: len(ids) == 2  # noqa: E731
    assert mmspec.text.generate(net, PROMPTS, max_new_tokens=2).finish_reasons == (LENGTH, LENGTH)
    for drafter in (None, net):
        assert mmspec.text.generate(net, PROMPTS, drafter, max_new_tokens=2, stops=[stop]).finish_reasons == (STOP, STOP)


def test_rows_keep_their_reasons_as_others_leave_and_join():
    one, other = DefaultStopping(2, 3, [7]), DefaultStopping(1, 5, [7])
    one.finish_reasons = [STOP, None]
    one.take_rows([1, 0])
    one.join_rows(other)
    assert one.finish_reasons == [None, STOP, None]


# --- sound ----------------------------------------------------------------------------------------------------------------


def test_speech_says_that_it_was_cut():
    speaker = load("speech")
    whole = synthesize(speaker.target, speaker.examples["texts"][:2], seed=3)
    assert whole.finish_reasons == (STOP, STOP)
    steps = int(whole.lengths[0])
    for most, expected in ((steps, STOP), (steps - 1, LENGTH)):
        options = {"seed": 3, "max_seconds": (most + 0.5) / speaker.target.pace}
        for drafter in (None, "lookup"):
            found = synthesize(speaker.target, speaker.examples["texts"][:1], drafter, **options)
            assert (found.finish_reasons, int(found.lengths[0])) == ((expected,), most)
        with Engine(speaker.target, "lookup") as engine:
            assert engine.submit(speaker.examples["texts"][0], **options).result(WAIT).finish_reasons == (expected,)


def test_the_command_line_says_what_was_cut(tmp_path, capsys, monkeypatch):
    from mmspec.cli import app

    monkeypatch.chdir(tmp_path)
    for words, cut in (((), False), (("--max-seconds", "0.3"), True)):
        for form in ((), ("--json",)):
            with pytest.raises(SystemExit):
                app(["speech", "three five", *words, *form])
            said = capsys.readouterr()
            if form:
                assert json.loads(said.out)["utterances"][0]["finish_reason"] == (LENGTH if cut else STOP)
            else:
                assert ("the sound was cut at --max-seconds 0.3" in said.err) == cut


def test_an_end_that_the_limit_forced_is_no_end():
    """Dia's books are made to end within the longest duration, as the class does."""
    said = small_delay.say(small_delay.dia_target(), small_delay.TEXTS, temperature=0.0)
    assert said.finish_reasons == tuple(LENGTH if length == small_delay.STEPS else STOP for length in said.lengths.tolist())
    assert LENGTH in said.finish_reasons
    assert small_delay.say(small_delay.musicgen(), small_delay.music_prompts(2)).finish_reasons == (LENGTH, LENGTH)


def test_models_of_several_networks_and_of_latents_say_it_too():
    bark = mmspec.speech.families.speech_model(small_bark.bark(), small_bark.tokenizer())
    assert synthesize(bark, ["hello"], temperature=0, max_seconds=0.1).finish_reasons == (LENGTH,)
    pocket = small_pocket.pocket()
    for threshold, expected in ((1e9, LENGTH), (-1e9, STOP)):
        pocket.generation_config.eos_threshold = threshold
        adapter = mmspec.speech.families.speech_model(pocket)
        said = synthesize(adapter, small_pocket.prompts(1), max_seconds=12.5 / adapter.pace)
        assert said.finish_reasons == (expected,)


# --- recordings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["whisper", min(RECOGNISERS)])
def test_transcripts_say_that_a_window_was_cut(name):
    net, kit = (whisper(), processor()) if name == "whisper" else RECOGNISERS[name]()
    waves = sounds(0.8, 0.5)
    for most in (1, None):
        plain, drafted = (mmspec.speech.transcribe(net, kit, waves, way, max_new_tokens=most) for way in (None, "lookup"))
        assert plain.finish_reasons == drafted.finish_reasons
        if most == 1:
            assert plain.finish_reasons == [LENGTH, LENGTH]
            parts = [(float(place), each) for place, each in enumerate(plain.transcripts)]
            assert joined_transcript(parts, 2.0).finish_reason == LENGTH
            assert json.loads(plain.transcripts[0].formatted("json"))["finish_reason"] == LENGTH
