"""Models are never changed: several threads may run one model with different drafters, and it is afterwards what it was."""

import threading

import pytest
import torch

import mmspec
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.self_drafting.layer_skip import SkipLayers
from mmspec.models.module_copy import own_copy
from mmspec.models.proof.require import require
from tests.drafters.runs import random_prompt
from tests.snapshots import differences, model_state
from tests.soak.threads import OPTIONS, family_world, llama_world, run_threads, sight_world

WORLDS = {
    "Llama": llama_world,
    "LLaVA": sight_world,
    **{name: lambda name=name: family_world(name) for name in ("T5", "BART", "Gemma-3", "GPT-2")},
}


@pytest.mark.parametrize("name", WORLDS)
def test_three_threads_with_different_drafters_are_right_and_leave_nothing_behind(name):
    assert not run_threads(WORLDS[name](), threads=3, calls=8 if name == "Llama" else 4)


def beside_a_skipping_thread(model, inputs, monkeypatch):
    """Plain output of `model` while another thread waits in the middle of a forward that leaves out a layer."""
    inside, done = threading.Event(), threading.Event()
    mlp = type(model.model.layers[0].mlp)
    real = mlp.forward

    def waiting(self, x):
        if threading.current_thread() is other and own_copy(model).model.layers[1].__dict__.get("forward") is not None:
            inside.set()
            done.wait(60)
        return real(self, x)

    drafter = SkipLayers(layers=(1,))
    mmspec.text.generate(model, inputs, drafter=drafter, draft_length=2, **OPTIONS[0])  # what a layer returns has been learned
    monkeypatch.setattr(mlp, "forward", waiting)
    options = {"drafter": drafter, "draft_length": 2, **OPTIONS[0]}
    other = threading.Thread(target=lambda: mmspec.text.generate(model, inputs, **options))
    other.start()
    assert inside.wait(60)
    try:
        return mmspec.text.generate(model, inputs, **OPTIONS[0]).sequences.tolist()
    finally:
        done.set()
        other.join()


def test_a_thread_in_the_middle_of_a_changed_forward_does_not_change_others(big, monkeypatch):
    inputs = random_prompt(9)
    expected = mmspec.text.generate(big, inputs, **OPTIONS[0]).sequences.tolist()
    assert beside_a_skipping_thread(big, inputs, monkeypatch) == expected


def test_mutant_changes_to_the_model_itself(big, monkeypatch):
    """Were forwards replaced on the model that all threads run, the test above would see it."""
    inputs = random_prompt(9)
    expected = mmspec.text.generate(big, inputs, **OPTIONS[0]).sequences.tolist()
    monkeypatch.setattr("mmspec.models.module_copy.is_copy", lambda module: True)  # every model is its own copy
    monkeypatch.setattr("mmspec.models.stack.is_copy", lambda module: True)
    assert beside_a_skipping_thread(big, inputs, monkeypatch) != expected


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("source", [SkipLayers(layers=(1,)), EarlyExit(2), SkipLayers(attention=(1,)), "windowed", "swift"], ids=str)
def test_a_forward_that_is_cut_short_leaves_nothing_behind(big, error, source, monkeypatch):
    """Model and copy are as before after an error in the middle of any forward of a generation."""
    inputs = random_prompt(5, 9, 7, seed=1)
    expected = mmspec.text.generate(big, inputs, **OPTIONS[0]).sequences
    mmspec.text.generate(big, inputs, drafter=source, draft_length=3, **OPTIONS[0])
    before, copied = model_state(big), model_state(own_copy(big))
    mlp = type(big.model.layers[2].mlp)
    real, left = mlp.forward, [0]

    def failing(self, *args):
        left[0] -= 1
        if left[0] == 0:
            raise error("in the middle")
        return real(self, *args)

    monkeypatch.setattr(mlp, "forward", failing)
    require(big)  # a model that was changed is tested first
    for calls in (1, 4, 5, 8, 11):
        left[0] = calls
        with pytest.raises(error, match="in the middle"):
            mmspec.text.generate(big, inputs, drafter=source, draft_length=3, **OPTIONS[0])
        assert not differences(before, model_state(big))
        assert not differences(copied, model_state(own_copy(big)))
    left[0] = 0
    assert torch.equal(mmspec.text.generate(big, inputs, drafter=source, draft_length=3, **OPTIONS[0]).sequences, expected)


def test_one_generation_may_go_on_in_another_thread(big):
    """A server's rounds may run in any thread of a pool."""
    inputs, found = random_prompt(9), []
    expected = mmspec.text.generate(big, inputs, **OPTIONS[0]).sequences.tolist()

    def generate():
        found.append(mmspec.text.generate(big, inputs, drafter=EarlyExit(2), draft_length=3, on_step=hop, **OPTIONS[0]).sequences.tolist())

    def hop(step):
        other = threading.Thread(target=lambda: mmspec.text.generate(big, inputs, drafter="layer-skip", draft_length=2, **OPTIONS[0]))
        other.start()
        other.join()

    generate()
    assert found == [expected]


def test_what_is_set_on_a_model_between_calls_holds(big):
    """Modes, hooks and attributes changed between two calls are those of the copies too."""
    inputs = random_prompt(9)
    options = {"drafter": EarlyExit(2), "draft_length": 3, **OPTIONS[0]}
    first = mmspec.text.generate(big, inputs, **options).sequences
    attention = big.model.layers[1].self_attn
    before = attention.scaling
    try:
        attention.scaling = 4 * before
        changed = mmspec.text.generate(big, inputs, **options).sequences
        assert torch.equal(changed, big.generate(**inputs, do_sample=False, max_new_tokens=12)[:, 9:])
        assert not torch.equal(changed, first)
    finally:
        attention.scaling = before
    assert torch.equal(mmspec.text.generate(big, inputs, **options).sequences, first)
