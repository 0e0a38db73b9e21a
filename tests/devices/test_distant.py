"""A drafter model on another device than the target: plain decoding's tokens, and one move of the draft a round."""

import copy

import pytest
import torch

from mmspec.core.records import Draft
from mmspec.drafters.model import distant
from tests.devices.runs import plain, simulated, unexplained
from tests.devices.simulated import FIRST, SECOND, put, simulated_devices
from tests.devices.test_generations import INPUTS, written
from tests.serving.traffic import Asked, scheduler_for, serve

pytestmark = pytest.mark.filterwarnings("ignore:the drafter is on")
CPU = torch.device("cpu")
PLACES = {"two GPUs": (FIRST, SECOND), "drafter on the CPU": (FIRST, CPU), "target on the CPU": (CPU, FIRST)}


def there(thing, device):
    return thing if device == CPU else put(thing, device)


def drafted(target, drafter, place, **options):
    """The tokens, and how often records were moved to the target in every round."""
    moves = []
    with simulated_devices():
        mine, inputs = there([target, INPUTS], PLACES[place][0])
        own = there(drafter, PLACES[place][1])
        out = written(mine, inputs, lambda step: moves.append(step.draft.size), own, **options)
    return plain(out), moves


TREES = (None, "expand", "best-first", "comb")
CROSSED = [(place, tree, float((p + t) % 2)) for p, place in enumerate(PLACES) for t, tree in enumerate(TREES)]  # every pair of the three


@pytest.mark.parametrize(("place", "tree", "temperature"), CROSSED)
def test_tokens_are_those_of_plain_decoding(big, small, place, tree, temperature):
    expected = plain(written(big, INPUTS, lambda step: None, temperature=temperature))
    for drafter in (big, small):
        assert drafted(big, drafter, place, tree=tree, temperature=temperature)[0] == expected


@pytest.mark.parametrize("rule", ["token", "block"])
def test_rules_that_read_the_drafters_distributions(big, small, rule):
    options = {"accept": rule, "temperature": 0.8, "top_k": 8}
    expected = plain(written(big, INPUTS, lambda step: None, small, **options))
    for place in PLACES:
        assert drafted(big, small, place, **options)[0] == expected


def test_another_vocabulary_penalties_and_thresholds(big, small):
    options = {"temperature": 0.9, "repetition_penalty": 1.3, "stop_below": "adaptive"}
    expected = plain(written(big, INPUTS, lambda step: None, **{k: v for k, v in options.items() if k != "stop_below"}))
    other = copy.deepcopy(small)
    other.resize_token_embeddings(big.config.vocab_size + 2)
    for drafter in (small, other):
        assert drafted(big, drafter, "two GPUs", **options)[0] == expected


def test_it_is_told(big, small):
    with simulated_devices(), pytest.warns(UserWarning, match="the drafter is on cuda:1 and the target on another device"):
        written(*put([big, INPUTS], FIRST), lambda step: None, put(small, SECOND))


def test_a_round_waits_once_and_moves_its_draft_once(big, small, monkeypatch):
    with simulated_devices():
        parts = [put([big, INPUTS], FIRST), put(small, SECOND)]
        found = simulated(parts, lambda given, on_step: written(*given[0], on_step, given[1]), placed=True)
    assert unexplained(found) == []
    back = []
    own = distant.moved
    monkeypatch.setattr(distant, "moved", lambda value, device: (back.append((type(value), device)), own(value, device))[1])
    _, rounds = drafted(big, small, "two GPUs")
    assert back.count((Draft, FIRST)) == back.count((Draft, SECOND)) == len(rounds)


def test_rows_of_a_distant_drafter_leave_and_join(big, small):
    prompts = [row[mask.bool()].tolist() for row, mask in zip(INPUTS["input_ids"], INPUTS["attention_mask"], strict=True)] * 2
    asked = [
        Asked(ids, {"max_new_tokens": 3 + 4 * number, "temperature": number % 2, "seed": number}, arrives=2 * number)
        for number, ids in enumerate(prompts)
    ]
    expected = [each.alone(big) for each in asked]
    with simulated_devices():
        scheduler, waiting = scheduler_for(put(big, FIRST), put(small, SECOND), max_rows=2, draft_length=3)
        handles = serve(scheduler, waiting, [On(*(getattr(each, name) for name in ("ids", "options", "arrives"))) for each in asked])
        assert [plain(handle.result(0).tokens)[0] for handle in handles] == expected


class On(Asked):
    """A request whose ids are on the target's device."""

    @property
    def inputs(self):
        return put(super().inputs, FIRST)
