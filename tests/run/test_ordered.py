"""Rules that read how far apart values are: refused in one line by every call, unless the target's values are in order."""

import pytest
import torch

import mmspec
from mmspec.core.rules.lossy.top_k import ByDistance
from mmspec.models.families.base import DecoderOnly
from mmspec.run.registry import ACCEPT, RULES, build
from tests.conftest import llama

INPUTS = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
REFUSED = "reads how far apart two values are"


def test_rules_that_read_an_order_say_so_in_the_registry():
    assert {name for name, entry in RULES.items() if entry.needs == "values in order"} == {
        name for name in ACCEPT if getattr(build(name, ACCEPT, "accept rule"), "reads_order", False)
    }


def test_ids_of_text_have_no_order():
    model = llama(2, seed=0)
    calls = {
        "name": lambda: mmspec.text.generate(model, INPUTS, "lookup", accept="distance", max_new_tokens=4),
        "rule": lambda: mmspec.text.generate(model, INPUTS, "lookup", accept=ByDistance(1), max_new_tokens=4),
        "drop-in": lambda: model.generate(
            **INPUTS, max_new_tokens=4, do_sample=False, custom_generate=mmspec.text.speculate("lookup", accept="distance")
        ),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=REFUSED) as caught:
            call()
        assert "\n" not in str(caught.value), name


def test_codes_of_pictures_have_no_order():
    mini = mmspec.load("vision")
    with pytest.raises(ValueError, match=REFUSED):
        mmspec.vision.generate(mini.target, mini.examples[:1], mini.drafters["model"], accept="distance", method="assisted")


def test_a_family_whose_values_are_in_order_says_so(monkeypatch):
    monkeypatch.setattr(DecoderOnly, "ordered", True, raising=False)
    model = llama(2, seed=0)
    plain = mmspec.text.generate(model, INPUTS, max_new_tokens=6)
    assert mmspec.text.generate(model, INPUTS, model, accept=ByDistance(0), max_new_tokens=6).tokens.equal(plain.tokens)
