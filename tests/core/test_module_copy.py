"""A copy of a module tree shares tensors and nothing else that a forward could change."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module

from mmspec.models.module_copy import own_copy, refresh, state_of
from tests.conftest import llama


def test_a_copy_gives_the_same_logits_and_shares_every_tensor():
    model, ids = llama(2, seed=1), torch.arange(8)[None]
    other = own_copy(model)
    assert other is not model
    assert own_copy(model) is other
    assert own_copy(other) is other
    assert torch.equal(other(ids).logits, model(ids).logits)
    assert [id(p) for p in model.parameters()] == [id(p) for p in other.parameters()]
    model.to(torch.float64)
    assert other(ids).logits.dtype is torch.float64


def test_hooks_and_forwards_put_on_a_copy_are_not_the_models():
    model, ids = llama(2, seed=1), torch.arange(8)[None]
    expected, other = model(ids).logits, own_copy(model)
    other.model.layers[0].forward = lambda hidden_states, *args, **kwargs: hidden_states
    other.model.layers[1].register_forward_hook(lambda module, args, output: output * 2)
    assert torch.equal(model(ids).logits, expected)
    assert not torch.equal(other(ids).logits, expected)
    assert "forward" not in vars(model.model.layers[0])


def test_a_forward_that_accelerate_wrapped_runs_the_copys_own_children():
    model, ids, seen = llama(2, seed=1), torch.arange(8)[None], []
    add_hook_to_module(model.model, ModelHook())
    other = own_copy(model)
    other.model.layers[0].register_forward_hook(lambda module, args, output: seen.append(module))
    other(ids)
    assert seen == [other.model.layers[0]]


def test_a_copy_is_made_anew_when_the_model_has_changed():
    model = llama(2, seed=1)
    first = own_copy(model)
    refresh(model)
    assert own_copy(model) is first
    model.model.layers.append(copy.deepcopy(model.model.layers[0]))
    refresh(model)
    assert len(own_copy(model).model.layers) == 3


def test_threads_have_copies_of_their_own():
    model, found = llama(1, seed=1), []
    thread = threading.Thread(target=lambda: found.append(own_copy(model)))
    thread.start()
    thread.join()
    assert found[0] is not own_copy(model)


def test_a_copy_does_not_keep_its_model_alive():
    model = llama(1, seed=1)
    own_copy(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def rename(layer):
    """The same values in the same order."""
    own = {"width" if name == "hidden_size" else name: value for name, value in vars(layer).items()}
    vars(layer).clear()
    vars(layer).update(own)


CHANGES = {
    "another hook": lambda layer: layer.register_forward_pre_hook(print),
    "another module": lambda layer: setattr(layer, "mlp", copy.deepcopy(layer.mlp)),
    "another buffer": lambda layer: layer.register_buffer("late", torch.zeros(1)),
    "another tensor in a buffer": lambda layer: setattr(layer, "early", torch.zeros(1)),
    "another value": lambda layer: setattr(layer, "hidden_size", layer.hidden_size + 1000),
    "another name": rename,
    "a method": lambda layer: setattr(layer, "forward", layer.mlp.forward),
    "another mode": lambda layer: layer.train(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_a_module_shows_in_the_state(change):
    model = llama(2, seed=1)
    layer = model.model.layers[1]
    layer.register_buffer("early", torch.ones(1))
    before = state_of(model)
    assert state_of(model) == before
    change(layer)
    assert state_of(model) != before


def test_a_method_that_is_bound_anew_is_no_change():
    """Frameworks put a forward back as `module.forward = module.forward`, which is another object each time."""
    model = llama(1, seed=1)
    model.lm_head.forward = model.lm_head.forward
    before = state_of(model)
    model.lm_head.forward = type(model.lm_head).forward.__get__(model.lm_head)
    assert state_of(model) == before
    model.lm_head.forward = type(model.lm_head).forward.__get__(model.model.embed_tokens)
    assert state_of(model) != before


def test_a_hook_in_place_of_another_one_is_seen():
    model, heard = llama(2, seed=1), []
    for name in ("first", "second"):
        handle = model.lm_head.register_forward_hook(lambda *_, name=name: heard.append(name))
        refresh(model)
        own_copy(model)(torch.tensor([[5, 6]]))
        handle.remove()
    assert heard == ["first", "second"]
