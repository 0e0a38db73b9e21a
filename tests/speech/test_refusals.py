"""Models that are refused are refused in one line that says why and what to do."""

import pytest
import torch
from transformers import MoshiForConditionalGeneration

from mmspec.speech.families import ADAPTERS, REFUSED, speech_model


def one_line(model: object) -> str:
    with pytest.raises(ValueError, match=r"speech|sped") as told:
        speech_model(model)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_moshi_is_refused_because_it_listens_while_it_speaks():
    unmade = MoshiForConditionalGeneration.__new__(MoshiForConditionalGeneration)  # the class alone tells
    said = one_line(unmade)
    assert said.startswith("MoshiForConditionalGeneration cannot be sped up")
    assert "hears the other side" in said
    assert "use its own generate" in said


def test_unknown_classes_are_told_which_are_known():
    said = one_line(torch.nn.Linear(1, 1))
    assert said.startswith("Linear is no speech model")
    assert all(name in said for name in ADAPTERS)


def test_no_class_is_both_adapted_and_refused():
    assert not set(ADAPTERS) & set(REFUSED)
