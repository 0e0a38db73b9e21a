"""Trained drafters in int8: the same text, close distributions, and refusals."""

import pytest
import torch
from torch import nn

import mmspec
from mmspec.drafters.checkpoints.load import save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.int8 import is_int8
from mmspec.loading.text import load_pair
from mmspec.run.config import Config, DrafterSection, TargetSection
from tests.conftest import llama
from tests.drafters.test_guided import lively

KINDS = {
    "eagle1": {},
    "eagle3": {},
    "eagle3-shared": {"values": 30, "shared_head": True},
    "dflash": {"values": 30},
    "dspark": {},
    "p-eagle": {},
    "medusa": {},
    "hydra": {},
    "mtp": {},
}


def saved(name, target, folder):
    save_drafter(lively(new_net(name.partition("-shared")[0], target, KINDS[name])), folder)
    return folder


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_that_of_plain_decoding(name, temperature, tmp_path):
    target = llama(2, 0)
    net = mmspec.load_drafter(saved(name, target, tmp_path), target, int8=True)
    assert is_int8(net)
    assert not any(type(module) is nn.Linear for module in net.modules())
    ids = torch.randint(3, 50, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    ids[0, :3], mask[0, :3] = 0, 0
    asked = {"max_new_tokens": 20, "seed": 3, "temperature": temperature}
    plain = mmspec.text.generate(target, {"input_ids": ids, "attention_mask": mask}, **asked)
    out = mmspec.text.generate(target, {"input_ids": ids, "attention_mask": mask}, net, draft_length=3, **asked)
    assert torch.equal(out.sequences, plain.sequences)
    assert out.stats.drafted > 0


def test_layers_in_int8_are_close_to_the_ones_they_replace(tmp_path):
    target = llama(2, 0)
    folder = saved("eagle3-shared", target, tmp_path)
    plain, light = (mmspec.load_drafter(folder, target, int8=int8) for int8 in (False, True))
    x = torch.randn(5, 2 * plain.hidden)
    one, other = (net.midlayer.self_attn.q_proj(x) for net in (plain, light))
    assert 0 < (one - other).abs().max() < 0.03 * one.abs().max()
    for net in (plain, light):
        net.attach(target)
    hidden = torch.randn(5, plain.hidden)
    one, other = plain.lm_head(hidden), light.lm_head(hidden)
    assert 0 < (one - other).abs().max() < 0.03 * one.abs().max()


def test_int8_is_an_option_of_a_config(tmp_path):
    mini = load_pair(Config(target=TargetSection(path="mini"))).target
    save_drafter(new_net("eagle3", mini), tmp_path / "drafter")
    section = DrafterSection(kind="trained", path=str(tmp_path / "drafter"), options={"int8": True})
    assert is_int8(load_pair(Config(target=TargetSection(path="mini"), drafter=section)).drafter)


@pytest.mark.parametrize("wrong", [1, "yes", None])
def test_int8_is_a_bool(wrong, tmp_path):
    with pytest.raises(ValueError, match=r"int8 is .*: give True or False"):
        mmspec.load_drafter(tmp_path, int8=wrong)


def test_other_dtypes_and_saving_are_refused(tmp_path):
    target = llama(2, 0)
    folder = saved("eagle3", target, tmp_path / "one")
    with pytest.raises(ValueError, match="int8 is for drafters on a CPU in float32, and this eagle3 drafter is on cpu in bfloat16"):
        mmspec.load_drafter(folder, llama(2, 0).bfloat16(), int8=True)
    with pytest.raises(ValueError, match="load it without int8 to save it"):
        save_drafter(mmspec.load_drafter(folder, target, int8=True), tmp_path / "two")
    assert not (tmp_path / "two").exists()
