"""Pictures in an engine: every family x method x guidance, pictures that arrive while others are drawn: each is the one drawn alone."""

from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
import torch

import mmspec
from mmspec import Engine
from mmspec.core.noise_ring import RingNoise
from mmspec.core.rows import rounds
from mmspec.drafters.jacobi.windows import LastRound
from mmspec.models.guidance import PairedRows
from mmspec.models.slot_cache import SlotCache
from mmspec.run.request import Request
from mmspec.serving.models.pictures import PictureModel, PictureSettings
from mmspec.vision.families.prompts import Prompt
from tests.serving.traffic import Asked, scheduler_of, serve
from tests.vision.small_models import CASES
from tests.vision.small_nets import guided_model
from tests.vision.test_assisted import shaken

WAIT = 60
FREE = {"plain": None, "jacobi": None, "assisted": "small", "assisted-jacobi": "small"}  # methods of all families, and their drafters


@dataclass(frozen=True)
class AskedPicture(Asked):
    """A picture: what is drawn stands in `ids`."""

    def alone(self, model: Any, method: str | None = None, drafter: Any = None, **options: Any) -> Any:
        prompts = self.ids if isinstance(self.ids, dict) else [self.ids]
        return mmspec.vision.generate(model, prompts, drafter, method=method, **self.options, **options)


def one_of(case, row):
    """The prompt of a row of a family's prompts."""
    prompts = CASES[case].prompts(4)
    if isinstance(prompts, list):
        return prompts[row % len(prompts)]
    names = ("input_ids", "attention_mask") if case == "glm_image" else list(prompts)
    return {name: prompts[name][row : row + 1] for name in names}


def asked(prompts, guided=True):
    """Pictures of different settings, of which some arrive later; some are guided."""
    scales = (2.0, None, 2.0, 3.5) if guided else (None,) * 4
    options = [{"seed": 3}, {"seed": 5, "temperature": 0.0}, {"seed": 8, "top_k": 7}, {"seed": 13, "temperature": 0.7}]
    arrives = (0, 0, 2, 3)
    return [
        AskedPicture(prompt, given | {"guidance": scale}, when)
        for prompt, given, scale, when in zip(prompts, options, scales, arrives, strict=True)
    ]


def drawn(model, requests, method, drafter=None, draft_length=4, **settings):
    request = Request.of(drafter=drafter, draft_length=draft_length)
    found = PictureModel.of(model, request, None, PictureSettings(method=method, **settings))
    scheduler, waiting = scheduler_of(found, max_rows=3)
    handles = serve(scheduler, waiting, requests, most=300)
    return [handle.result(0) for handle in handles], scheduler.counts


@lru_cache(maxsize=1)
def made(case):
    """A family's model, and another that drafts for it."""
    return with_codes(CASES[case].make()), shaken(CASES[case].make())


def with_codes(model):
    """A model with usual codes of its own: what is drafted does not depend on what this process has seen."""
    model.usual_codes = (0,) * model.raster.length
    return model


@pytest.mark.parametrize("method", FREE)
@pytest.mark.parametrize("case", CASES)
def test_every_family_draws_the_picture_of_the_request_alone(case, method):
    adapter, small = made(case)
    small = small if FREE[method] else None
    requests = asked([one_of(case, row) for row in range(4)], CASES[case].guided)
    found, counts = drawn(adapter, requests, method, small)
    for out, each in zip(found, requests, strict=True):
        alone = each.alone(adapter, method, small, window=None if method == "plain" else 5)
        assert torch.equal(out.sequences, alone.sequences)
        assert torch.equal(out.tokens, alone.tokens)
        assert torch.equal(out.runs, alone.runs)
        assert (out.stats.target_calls, out.stats.drafted) == (alone.stats.target_calls, alone.stats.drafted)
    assert counts.restarted == counts.failed == 0


@pytest.fixture(scope="module")
def small():
    return with_codes(guided_model())


@pytest.fixture(scope="module")
def plain(small):
    """What plain decoding draws for each request of the tests below."""
    return [each.alone(small, "plain").sequences.tolist() for each in asked([0, 1, 2, 0])]


FORMS = {
    "a window of values to the left": {"method": "jacobi", "init": "left"},
    "a window of values above": {"method": "jacobi", "init": "up"},
    "a window of random values": {"method": "jacobi", "init": "uniform"},
    "a window of distributions above": {"method": "jacobi", "init": "carried"},
    "a window that keeps draft tokens": {"method": "scd"},
    "a window with a tree": {"method": "sjd-pac"},
    "a trained net": {"method": "eagle"},
    "a trained net's likeliest tree": {"method": "lantern"},
    "a smaller model": {"method": "assisted"},
    "a window that ends with a smaller model's values": {"method": "assisted-jacobi"},
}


@pytest.mark.parametrize("length", [1, 6, "auto"])
@pytest.mark.parametrize("form", FORMS)
def test_every_source_of_drafts_gives_the_pictures_of_plain_decoding(form, length, small, plain):
    requests = asked([0, 1, 2, 0])
    found, counts = drawn(small, requests, draft_length=length, **FORMS[form])
    assert [out.sequences.tolist() for out in found] == plain
    assert counts.restarted == 0
    assert counts.drafted > 0


def test_an_engine_draws_for_many_clients(small):
    requests = asked([0, 1, 2, 0])
    with Engine(small, max_rows=2, draft_length=7) as engine:
        handles = [engine.submit(each.inputs, **each.options) for each in requests]
        gone = engine.submit("owl", seed=1)
        gone.cancel()
        outs = [handle.result(WAIT) for handle in handles]
        with pytest.raises(CancelledError):
            gone.result(WAIT)
    for out, each in zip(outs, requests, strict=True):
        assert torch.equal(out.tokens, each.alone(small).tokens)
        assert out.stats.exactness == "token-exact"


def test_pictures_that_arrive_one_after_the_other_take_fewer_forwards_than_static_batches(small):
    """Twelve pictures, two every third step: static batches of those that wait, against four rows that are never idle."""
    requests = [AskedPicture(0, {"seed": seed}, 3 * (seed // 2)) for seed in range(12)]
    found, counts = drawn(small, requests, "plain")
    assert [out.sequences.tolist() for out in found] == [each.alone(small, "plain").sequences.tolist() for each in requests]
    now = forwards = 0
    left = list(requests)
    while left:
        now = max(now, left[0].arrives)
        batch = [each for each in left if each.arrives <= now][:3]
        out = mmspec.vision.generate(small, [0] * len(batch), method="plain", seed=[each.options["seed"] for each in batch])
        left, now, forwards = left[len(batch) :], now + out.stats.target_calls, forwards + out.stats.target_calls
    assert counts.forwards < forwards


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accept": "token"}, "accept rule Token is distribution-exact"),
        ({"method": "zipar"}, "this method writes the rows of a picture side by side"),
        ({"method": "none"}, "unknown method 'none'"),
        ({"max_length": 4}, "max_length is 4, but it is for models whose outputs have no fixed length"),
        ({"catalogue": 1}, "catalogue is no setting of this target's engine; valid: method, size, couple, init"),
        ({"draft_length": -1}, "draft_length is -1"),
    ],
)
def test_a_wrong_engine_is_refused(small, options, words):
    with pytest.raises(ValueError, match=words) as caught:
        Engine(small, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "options", "words"),
    [
        ("horse", {}, "unknown class 'horse'"),
        ("cat", {"guidance": -1.0}, "guidance is -1"),
        ("cat", {"seed": [1, 2]}, r"seed is \[1, 2\]: give a whole number"),
        ("cat", {"guidance": [1.0, 2.0]}, "guidance has 2 values, but a request of an engine is one row"),
        ("cat", {"max_new_tokens": 4}, "max_new_tokens is no option of this engine's requests; valid: seed, temperature"),
        ("cat", {"temperature": -1.0}, "temperature is -1"),
    ],
)
def test_a_wrong_request_is_refused(small, inputs, options, words):
    with Engine(small) as engine, pytest.raises(ValueError, match=words) as caught:
        engine.submit(inputs, **options)
    assert "\n" not in str(caught.value)


def test_vectors_are_refused():
    with pytest.raises(ValueError, match="continuous tokens"):
        Engine(mmspec.load("continuous").target)


# --- planted bugs are found -------------------------------------------------------------------------------------------


def rotated(rows, count):
    return [(row + 1) % count for row in rows]


MUTANTS = {  # each part gives its rows another row's state when some leave or join
    "noise": (RingNoise, "take_rows", lambda own: lambda self, rows: own(self, rotated(rows, len(self.seeds)))),
    "pending": (rounds, "pending_rows", lambda own: lambda pending, rows: own(pending, rotated(rows, len(pending.start)))),
    "cache": (SlotCache, "take_rows", lambda own: lambda self, rows: own(self, range(len(rows)))),
    "prompts": (Prompt, "take_rows", lambda own: lambda self, rows: own(self, rotated(rows, len(self.mask)))),
    "pairs": (PairedRows, "join_rows", lambda own: lambda self, other: (own(self, other)[0], list(range(len(own(self, other)[1]))))),
}


@pytest.mark.parametrize("part", MUTANTS)
def test_mutant_a_part_whose_rows_are_mixed_up_gives_other_pictures(part, small, plain, monkeypatch):
    where, name, change = MUTANTS[part]
    requests = asked([0, 1, 2, 0])
    wanted = [sequences[0] for sequences in plain]
    monkeypatch.setattr(where, name, change(getattr(where, name)))
    scheduler, waiting = scheduler_of(PictureModel.of(small, Request.of(draft_length=4), None, PictureSettings()), max_rows=3)
    assert [handle.tokens for handle in serve(scheduler, waiting, requests, most=300)] != wanted


def test_mutant_a_window_whose_rows_are_mixed_up_drafts_worse(small, monkeypatch):
    """Draft tokens of another picture are rejected; the pictures stay right."""
    requests = asked([0, 1, 2, 0])
    wanted, counts = drawn(small, requests, "jacobi")
    monkeypatch.setattr(LastRound, "take_rows", lambda self, rows, own=LastRound.take_rows: own(self, rotated(rows, len(self.left))))
    found, worse = drawn(small, requests, "jacobi")
    assert [out.sequences.tolist() for out in found] == [out.sequences.tolist() for out in wanted]
    assert worse.accepted < counts.accepted
