"""Sampled text follows the target's distribution, whatever drafts: values that were drafted, against the target's exact joint
distribution."""

import pytest
import torch

from mmspec.core.rules.sibling_rules import without_replacement_rule
from mmspec.core.rules.token import Token
from mmspec.drafters.body.systems import SYSTEMS
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.self_drafting.layer_skip import SimilarLayers, SkipLayers
from mmspec.drafters.self_drafting.swift import Swift
from mmspec.drafters.self_drafting.windowed import Windowed
from mmspec.drafters.shapes import Chain, Comb, draw_without_replacement, sampled
from tests.conftest import llama
from tests.drafters.runs import run
from tests.oracles.statistics import FAIL, PASS, chi_square

PROMPT, ROWS, VALUES = [4, 8, 15], 1000, 16
BLOCKS = ("dflash", "dflash2", "dspark", "p-eagle")
NETS = ("medusa", "hydra", "eagle1", "eagle3", "kangaroo", "mtp", "mtp-parallel", "glide", "ctc", "mask-tokens", *BLOCKS, *SYSTEMS)
TREES = ("hydra", "eagle3", "kangaroo", "layer-skip", "mtp", "dspark", *SYSTEMS)
SELVES = {
    "early-exit": EarlyExit(2),
    "layer-skip": SkipLayers(layers=(1,)),
    "similar-layers": SimilarLayers(),
    "swift": Swift(),
    "windowed": Windowed(1, 2),
}


@pytest.fixture(scope="module")
def target():
    return llama(3, seed=5, vocabulary=VALUES).requires_grad_(False)


@pytest.fixture(scope="module")
def joint(target):
    """[256] the distribution of values 2 and 3 after the prompt, value 1 summed out."""
    with torch.no_grad():
        pairs = torch.cartesian_prod(torch.arange(VALUES), torch.arange(VALUES))
        distributions = target(torch.cat([torch.tensor([PROMPT] * len(pairs)), pairs], 1)).logits[:, -3:].softmax(-1).double()
    first, second = distributions[:, 0].gather(1, pairs[:, :1])[:, 0], distributions[:, 1].gather(1, pairs[:, 1:])[:, 0]
    return ((first * second)[:, None] * distributions[:, 2]).view(VALUES, VALUES, VALUES).sum(0).flatten()


def source(name, target):
    if name in SELVES:
        return SELVES[name]
    torch.manual_seed(2)
    net = new_net(name, target)
    for parameter in net.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    if hasattr(net, "start_from"):
        net.start_from(target)
    return net.eval()


CASES = [(name, "token") for name in (*NETS, *SELVES)] + [(name, "tree") for name in TREES]


@pytest.mark.parametrize(("name", "rule"), CASES)
def test_sampled_text_follows_the_targets_distribution(target, joint, name, rule):
    shape, judge = {"token": (Chain(sampled), Token()), "tree": (Comb(pick=draw_without_replacement), without_replacement_rule())}[rule]
    inputs = {"input_ids": torch.tensor([PROMPT] * ROWS), "attention_mask": torch.ones(ROWS, len(PROMPT), dtype=torch.long)}
    out = run(target, GuidedDrafter(source(name, target), shape), inputs, judge, new=4, length=3, temperature=1.0)
    values = out.sequences[:, 1] * VALUES + out.sequences[:, 2]
    assert out.stats.judged > ROWS  # both were drafted
    assert chi_square(values, joint) > PASS
    assert chi_square(values, 0.8 * joint + 0.2 * joint.roll(1)) < FAIL
