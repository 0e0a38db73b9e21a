"""Prompts with pictures in an engine: every request has the tokens of `mmspec.text.generate` for it alone, whatever runs beside it."""

import copy
from concurrent.futures import CancelledError
from functools import cache

import pytest
import torch

import mmspec
from mmspec import Engine
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.minis.vlm_model import asked, inputs_of
from mmspec.models.rows.merged import Merged, stacked
from tests.companions import counted, perturbed
from tests.seeing import PLACE, SIGHTS, seen
from tests.serving.traffic import Asked, scheduler_for, serve
from tests.sizes import build

WAIT = 60
KEPT = [name for name, view in SIGHTS.items() if name == "Mllama" or "states" in view.case.note]
SERVED = [name for name in SIGHTS if name not in KEPT]
GIVEN = [  # pictures and when they arrive: the first two start together or not, the others join running rows
    ((2,), 0, {"max_new_tokens": 12}),
    ((0,), 0, {"max_new_tokens": 20, "temperature": 1.0, "seed": 1}),
    ((1,), 3, {"max_new_tokens": 14, "temperature": 0.8, "top_k": 12, "seed": 2}),
    ((0,), 4, {"max_new_tokens": 5}),
    ((3,), 6, {"max_new_tokens": 9, "repetition_penalty": 1.3}),
]


@cache
def model_of(name):
    model = build(SIGHTS[name].case)
    model.generation_config.eos_token_id = None
    return model


@cache
def asked_of(name):
    return [Asked(seen(name, pictures, seed=seed), options, when) for seed, (pictures, when, options) in enumerate(GIVEN)]


@cache
def alone_of(name):
    return [each.alone(model_of(name)) for each in asked_of(name)]


def served(model, requests, drafter=None, **shared):
    scheduler, waiting = scheduler_for(model, drafter, **{"max_rows": 3, "piece": 8} | shared)
    return scheduler, serve(scheduler, waiting, requests, most=2000)


def tokens(handles):
    return [handle.result(0).tokens[0].tolist() for handle in handles]


# --- families ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVED)
def test_families_give_every_request_its_tokens(name):
    """Pictures of several sizes and texts beside each other; prompts in pieces where the family allows it, and several begun together."""
    model = model_of(name)
    for shared in ({"drafter": "lookup"}, {"drafter": model, "tree": (2, 1), "piece": 256}):
        scheduler, handles = served(model, asked_of(name), draft_length=3, **shared)
        assert tokens(handles) == alone_of(name), shared
        assert scheduler.counts.restarted == 0


@pytest.mark.parametrize("name", ["LLaVA-NeXT", "Qwen3-VL", "Idefics3", "Gemma-3 VLM", "PaliGemma 2"])
def test_prompts_that_begin_together_are_encoded_one_by_one(name):
    """By the tower of a drafter, too. What cannot read them so begins alone."""
    model, requests = model_of(name), [Asked(each.ids, each.options) for each in asked_of(name)]
    own = perturbed(copy.deepcopy(model))
    towers = [each.get_submodule(SIGHTS[name].tower) for each in (model, own)]
    with counted(*towers) as runs:
        _, handles = served(model, requests, own, max_rows=5, piece=1000, draft_length=3)
    assert tokens(handles) == alone_of(name)
    assert runs == [3, 3]
    assert all(handle.work.together for handle in handles)
    _, handles = served(model, requests, own, view="pruned", max_rows=5, piece=1000, draft_length=3)
    assert tokens(handles) == alone_of(name)
    assert not handles[0].work.together


@pytest.mark.parametrize("name", KEPT)
def test_states_and_cross_attention_are_refused_by_name(name):
    model = build(SIGHTS[name].case)
    with pytest.raises(ValueError, match=f"{type(model).__name__} keeps more than keys and values") as caught:
        Engine(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_a_prompt_is_left_out(side):
    for name in ("LLaVA", "Qwen2-VL", "Gemma-3 VLM"):
        inputs = seen(name, (1,))
        more = {key: inputs[key] for key in ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids") if key in inputs}
        sides = (3, 0) if side == "left" else (0, 3)
        padded = inputs | {key: torch.nn.functional.pad(value, sides) for key, value in more.items()}
        _, handles = served(model_of(name), [Asked(padded, {"max_new_tokens": 8}), *asked_of(name)[:2]])
        assert tokens(handles) == [Asked(inputs, {"max_new_tokens": 8}).alone(model_of(name)), *alone_of(name)[:2]]
        assert handles[0].work.columns == int(inputs["attention_mask"].sum())


def test_towers_run_once_a_request():
    model = model_of("Qwen2-VL")
    with counted(model.get_submodule(SIGHTS["Qwen2-VL"].tower)) as runs:
        served(model, asked_of("Qwen2-VL"), drafter=model)
    assert runs == [sum(sum(pictures) > 0 for pictures, *_ in GIVEN)]


def lengths_swapped(self, other):
    found = stacked([self, other])
    return Merged(found.embeds, found.lengths.flip(0), found.axes, found.sees, found.deep)


def axes_swapped(self, other):
    found = stacked([self, other])
    return Merged(found.embeds, found.lengths, found.axes.flip(1), found.sees, found.deep)


def axes_left(self, rows):
    return Merged(self.embeds[: len(rows)], self.lengths[: len(rows)], self.axes[:, : len(rows)])


@pytest.mark.parametrize(("attribute", "planted"), [("join_rows", lengths_swapped), ("join_rows", axes_swapped), ("take_rows", axes_left)])
@pytest.mark.parametrize("name", ["Qwen2-VL", "GLM-4V"])
def test_positions_of_another_row_show(name, attribute, planted, monkeypatch):
    """The equality above fails where a row continues from the positions of another one."""
    monkeypatch.setattr(Merged, attribute, planted)
    _, handles = served(model_of(name), asked_of(name))
    assert tokens(handles) != alone_of(name)


# --- the mini ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("vlm")


@pytest.fixture(scope="module")
def requests(mini):
    """Descriptions, answers about one and two pictures, and prompts without any."""
    examples = [*asked(0, 3, "describe"), *asked(1, 1, "pairs"), *asked(2, 2, "questions")]
    prompts = [dict(inputs_of(mini.processor, [each])) for each in examples]
    prompts += [dict(mini.processor(text=[text], return_tensors="pt")) for text in ("\nwhat is this?\n", "\nhow many?\n")]
    options = [
        {"max_new_tokens": 40},
        {"max_new_tokens": 24, "temperature": 1.0, "seed": 1},
        {"max_new_tokens": 30, "temperature": 0.7, "top_k": 5, "seed": 2},
        {"max_new_tokens": 12},
        {"max_new_tokens": 9, "temperature": 1.0, "top_p": 0.9, "seed": 4},
        {"max_new_tokens": 9},
        {"max_new_tokens": 8},
        {"max_new_tokens": 8, "temperature": 1.0, "seed": 7},
    ]
    arrives = (0, 0, 2, 3, 4, 5, 6, 6)
    return [Asked(*each) for each in zip(prompts, options, arrives, strict=True)]


@pytest.fixture(scope="module")
def alone(mini, requests):
    return [each.alone(mini.target) for each in requests]


def drafter_of(mini, name):
    own = {"none": None, "the target": mini.target, "early exit": EarlyExit(1)}
    return own[name] if name in own else mini.drafters.get(name, name)


MODELS = ("text", "vlm", "hivis", "vispec", "the target", "early exit")
PAIRS = [
    *((name, None) for name in ("none", "lookup", "suffix", "swift")),
    *((n, tree) for n in MODELS for tree in (None, (2, 1), "dynamic")),
]


@pytest.mark.parametrize(("drafter", "tree"), PAIRS)
def test_every_request_of_the_mini_has_its_tokens(mini, requests, alone, drafter, tree):
    scheduler, handles = served(mini.target, requests, drafter_of(mini, drafter), piece=64, tree=tree)
    assert [handle.tokens for handle in handles] == alone
    assert scheduler.counts.restarted == 0


@pytest.mark.parametrize("name", ["lookup", *MODELS])
def test_drafters_have_as_much_accepted_as_alone(mini, requests, name):
    """What a drafter keeps of a row goes with the row."""
    drafter = drafter_of(mini, name)
    _, handles = served(mini.target, requests, drafter, piece=64, draft_length=4)
    plain = [mmspec.text.generate(mini.target, each.inputs, drafter, draft_length=4, **each.options).stats for each in requests]
    assert [handle.stats.accepted for handle in handles] == [stats.accepted for stats in plain]


def test_rows_need_fewer_forwards_than_static_batches(mini, requests):
    together = [Asked(each.ids, each.options) for each in requests]
    scheduler, handles = served(mini.target, together, max_rows=2, piece=64)
    lengths = [len(handle.tokens) for handle in handles]
    assert scheduler.counts.forwards < sum(max(lengths[first : first + 2]) for first in range(0, len(lengths), 2))


def test_a_row_is_cancelled_while_others_run(mini, requests, alone):
    with Engine(mini.target, mini.drafters["vlm"], max_rows=3) as engine:
        going = engine.submit(requests[0].ids, max_new_tokens=400, stops=[lambda row, ids: False], temperature=3.0)
        handles = [engine.submit(each.ids, **each.options) for each in requests]
        next(pieces := going.stream())
        going.cancel()
        assert [handle.result(WAIT).tokens[0].tolist() for handle in handles] == alone
        with pytest.raises(CancelledError):
            list(pieces)
    assert engine.counts.finished == len(requests)


def test_failing_requests_end_with_their_errors_and_the_others_go_on(mini, requests, alone):
    def broken(scores, history):
        if int(history.position.max()) > 6:
            raise ZeroDivisionError("a processor that fails")
        return scores

    pictures = requests[0].ids["pixel_values"]
    with Engine(mini.target, mini.drafters["vlm"], max_rows=3) as engine:
        bad = engine.submit(requests[0].ids, processors=[broken])
        unlike = engine.submit(requests[1].ids | {"pixel_values": torch.cat([pictures, pictures])})
        handles = [engine.submit(each.ids, **each.options) for each in requests]
        assert [handle.result(WAIT).tokens[0].tolist() for handle in handles] == alone
        with pytest.raises(ZeroDivisionError):
            bad.result(WAIT)
        with pytest.raises(ValueError, match="prompt and pictures do not fit together") as caught:
            unlike.result(WAIT)
        assert "\n" not in str(caught.value)
    assert engine.counts.failed == 2


def test_wrong_requests_are_refused_before_they_wait():
    model, inputs = model_of("Qwen2-VL"), seen("Qwen2-VL", (1,))
    words = inputs["input_ids"].masked_fill(inputs["input_ids"] == PLACE, 7)
    wrong = {
        "no pixel_values": {key: value for key, value in inputs.items() if key != "pixel_values"},
        "no placeholder": inputs | {"input_ids": words},
        "no image_grid_thw": {key: value for key, value in inputs.items() if key != "image_grid_thw"},
        "3 rows": seen("Qwen2-VL"),
    }
    with Engine(model) as engine:
        for match, given in wrong.items():
            with pytest.raises(ValueError, match=match) as caught:
                engine.submit(given)
            assert "\n" not in str(caught.value)
    assert engine.counts.failed == 0
