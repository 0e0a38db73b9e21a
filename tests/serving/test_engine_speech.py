"""Speech in an engine: every request has the tokens and the samples of `synthesize` for it alone, whatever runs beside it."""

from concurrent.futures import CancelledError
from dataclasses import replace

import pytest
import torch

import mmspec
from mmspec import Engine
from mmspec.core.processors.by_row import RowPipelines
from mmspec.serving.handle import RequestHandle
from mmspec.serving.models.speech import SpeechOptions
from mmspec.speech import synthesize
from tests.serving.traffic import Asked, scheduler_for, serve
from tests.speech import small_bark

WAIT = 60
ASKED = [
    Asked("one two", {"max_seconds": 0.3, "voice": "theo"}),
    Asked("the red bird sings", {"seed": 1, "temperature": 0.0}),
    Asked("six", {"seed": 2, "max_seconds": 0.1, "temperature": 0.7, "top_k": 5}, arrives=3),
    Asked("nine zero nine zero", {"seed": 3, "max_seconds": 0.4, "top_p": 0.9, "repetition_penalty": 1.2}, arrives=4),
    Asked("one", {"seed": 4, "max_seconds": 0.2}, arrives=9),
]


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("speech")


@pytest.fixture(scope="module")
def alone(mini):
    return [said(mini.target, each) for each in ASKED]


def said(model, asked, drafter=None, **options):
    return synthesize(model, [asked.ids], drafter, **options, **asked.options)


def same(found, right):
    return torch.equal(found.tokens, right.tokens) and torch.equal(found.waveforms[0], right.waveforms[0])


def served(model, drafter=None, asked=ASKED, **shared):
    scheduler, waiting = scheduler_for(model, drafter, max_rows=2, piece=4, **shared)
    return scheduler, serve(scheduler, waiting, asked, most=2000)


PAIRS = [(None, None), ("lookup", None), *((name, tree) for name in ("model", "vadusa") for tree in (None, (2, 1), "dynamic"))]


@pytest.mark.parametrize(("drafter", "tree"), PAIRS)
def test_every_request_has_the_sound_it_has_alone(mini, alone, drafter, tree):
    scheduler, handles = served(mini.target, mini.drafters.get(drafter, drafter), tree=tree)
    for handle, right in zip(handles, alone, strict=True):
        out = handle.result(0)
        assert same(out, right)
        assert out.sample_rate == right.sample_rate
        assert torch.equal(torch.cat(list(handle.stream())), right.waveforms[0])
        assert out.first_sound[0] <= out.seconds
    assert scheduler.counts.restarted == 0


def test_rows_need_fewer_forwards_than_static_batches(mini):
    asked = [replace(each, arrives=0) for each in ASKED]
    scheduler, _ = served(mini.target, asked=asked)
    batches = 0
    for first in range(0, len(asked), 2):
        batches += max(said(mini.target, each).stats.target_calls for each in asked[first : first + 2])
    assert scheduler.counts.forwards < batches + len(asked)
    assert scheduler.counts.rounds < batches


def test_a_row_mixed_up_is_heard(mini, alone, monkeypatch):
    """The equality above fails where rows that join get the processors of others."""
    monkeypatch.setattr(RowPipelines, "join_rows", lambda self, other: RowPipelines((*other.rows, *self.rows)))
    _, handles = served(mini.target)
    assert not all(same(handle.result(0), right) for handle, right in zip(handles, alone, strict=True))


def test_sound_is_streamed_while_others_run_and_a_row_is_cancelled(mini, alone):
    with Engine(mini.target, mini.drafters["model"], max_rows=3) as engine:
        going = engine.submit("the old door sings now and the river too", max_seconds=10.0, temperature=1.3)
        handles = [engine.submit(each.ids, **each.options) for each in ASKED]
        pieces = going.stream()
        next(pieces)
        going.cancel()
        for handle, right in zip(handles, alone, strict=True):
            assert same(handle.result(WAIT), right)
        with pytest.raises(CancelledError):
            list(pieces)
    assert engine.counts.finished == len(ASKED)


def test_a_failing_row_is_run_again_and_the_others_go_on(mini, alone):
    def broken(scores, history):
        if int(history.position.max()) > 6:
            raise ZeroDivisionError("a processor that fails")
        return scores

    with Engine(mini.target, max_rows=3) as engine:
        bad = engine.submit("one two", samplers=[broken])
        handles = [engine.submit(each.ids, **each.options) for each in ASKED]
        for handle, right in zip(handles, alone, strict=True):
            assert same(handle.result(WAIT), right)
        with pytest.raises(ZeroDivisionError):
            bad.result(WAIT)
    assert engine.counts.failed == 1


def test_a_codec_that_fails_ends_its_request_alone(mini, alone):
    """And without a second run of the others."""

    def broken(steps):
        raise ZeroDivisionError("a codec that fails")

    scheduler, waiting = scheduler_for(mini.target, max_rows=3)
    work = scheduler.model.read("one two", SpeechOptions())
    work.ready.streams[0].push = broken
    bad = RequestHandle(work, 0, "")
    waiting.append(bad)
    handles = serve(scheduler, waiting, ASKED, most=2000)
    for handle, right in zip(handles, alone, strict=True):
        assert same(handle.result(0), right)
    with pytest.raises(ZeroDivisionError):
        bad.result(0)
    assert (scheduler.counts.failed, scheduler.counts.restarted) == (1, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": 3}, "max_new_tokens is no option of this engine's requests; valid: seed, voice"),
        ({"guidance": 3.0}, "guidance is 3.0, but the model's own is None"),
        ({"voice": "nobody"}, "unknown voice 'nobody'"),
        ({"seed": [1, 2]}, r"seed is \[1, 2\]: give a whole number"),
        ({"max_seconds": 1000.0}, "max_seconds is 1000.0, but this model has room for"),
        ({"temperature": -1.0}, "temperature is -1.0"),
    ],
)
def test_a_wrong_request_is_refused_before_it_waits(mini, options, words):
    with Engine(mini.target) as engine, pytest.raises(ValueError, match=words) as caught:
        engine.submit("one", **options)
    assert "\n" not in str(caught.value)
    assert engine.counts.failed == 0


def test_several_texts_and_text_decoding_are_refused(mini):
    with Engine(mini.target) as engine:
        with pytest.raises(ValueError, match="a request of an engine is one text"):
            engine.submit(["one", "two"])
        handle = engine.submit("one", max_seconds=0.1)
        with pytest.raises(ValueError, match="decode is for text"):
            handle.stream(str)
        handle.result(WAIT)


def test_models_of_several_networks_are_refused_by_name():
    with pytest.raises(ValueError, match="Bark generates in a loop of its own, which no request can join") as caught:
        Engine(small_bark.bark())
    assert "\n" not in str(caught.value)
