"""Targets whose weights accelerate keeps on disk: trained drafters, trees, and how often layers are loaded."""

import copy

import pytest
import torch
from accelerate import disk_offload, dispatch_model
from accelerate.hooks import AlignDevicesHook

import mmspec
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.models.compat import execution_device
from tests.drafters.cascades import perturbed
from tests.drafters.runs import random_prompt
from tests.drafters.test_guided import lively

PROMPTS = random_prompt(5, 9, seed=1)
_MAP = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers.0": "cpu", "model.norm": "cpu"}
SPLIT = _MAP | {"model.layers.1": "disk", "model.layers.2": "disk", "lm_head": "disk"}


@pytest.fixture(scope="module")
def disk(big, tmp_path_factory):
    model = copy.deepcopy(big)
    disk_offload(model, str(tmp_path_factory.mktemp("disk")), execution_device=torch.device("cpu"))
    return model


@pytest.fixture(scope="module")
def split(big, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("split"))
    return dispatch_model(copy.deepcopy(big), dict(SPLIT), main_device="cpu", offload_dir=folder)


def test_the_execution_device_is_where_forwards_run(big, disk, split):
    assert disk.device.type == "meta"
    assert {execution_device(model) for model in (big, disk, split)} == {torch.device("cpu")}


@pytest.mark.parametrize("where", ["disk", "split"])
@pytest.mark.parametrize("name", ["eagle1", "medusa"])
def test_trained_drafters_and_trees_give_plain_tokens(big, where, name, request):
    target, net = request.getfixturevalue(where), lively(new_net(name, big))
    expected = mmspec.text.generate(big, PROMPTS, max_new_tokens=8).tokens
    for tree in (None, "expand"):
        out = mmspec.text.generate(target, PROMPTS, net, tree=tree, draft_length=3, max_new_tokens=8)
        assert torch.equal(out.tokens, expected)


@pytest.fixture
def loads(disk, monkeypatch):
    """The modules that were brought in from disk."""
    loads = []
    bring = AlignDevicesHook.pre_forward

    def counted(hook, module, *args, **kwargs):
        if hook.offload:
            loads.append(module)
        return bring(hook, module, *args, **kwargs)

    mmspec.text.generate(disk, PROMPTS, max_new_tokens=1)  # the self-test
    monkeypatch.setattr(AlignDevicesHook, "pre_forward", counted)
    return loads


def test_loads_fall_with_accepted_tokens(big, disk, loads):
    found = {}
    for length in (0, 3):
        loads.clear()
        out = mmspec.text.generate(disk, PROMPTS, big, draft_length=length, max_new_tokens=8)
        found[length] = len(loads) / out.stats.target_calls
        assert out.stats.target_calls == 8 // (length + 1)
    assert found[0] == found[3] > 0  # every forward loads the same modules


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_loads_fall_with_the_size_of_a_best_first_tree(big, disk, loads, temperature):
    options = {"max_new_tokens": 16, "temperature": temperature, "seed": 3}
    expected, counts = mmspec.text.generate(big, PROMPTS, **options).tokens, []
    for size in (0, 1, 16, 256):
        loads.clear()
        out = mmspec.text.generate(disk, PROMPTS, perturbed(big, 0.05), tree="best-first", draft_length=size, **options)
        assert torch.equal(out.tokens, expected)
        counts.append(len(loads))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] >= 2 * counts[-1]
