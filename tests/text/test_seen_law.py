"""Sampling about a picture: what the distribution-exact rules give follows the exact distribution of the first two tokens, and planted bugs
do not."""

from functools import cache

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.core.rules.block import Block
from mmspec.core.rules.token import Token, ratio
from tests.companions import llama
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.seeing import clip, nested
from tests.sizes import LLAMA, Case, build

SIZE, TEMPERATURE, ROWS = 12, 3.0, 6000
PLACE = SIZE - 1
PICTURE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
INPUTS = {"input_ids": torch.tensor([[3, 4, PLACE, PLACE, PLACE, PLACE, 5]]), "pixel_values": PICTURE}


@cache
def model():
    sizes = hf.LlamaConfig(**LLAMA | {"vocab_size": SIZE, "eos_token_id": None})
    found = build(Case(lambda: hf.LlavaForConditionalGeneration(nested(hf.LlavaConfig, sizes, clip(), image_token_index=PLACE)), ""))
    found.lm_head.weight.data[PLACE] *= 4  # the placeholder would be said often
    return found


@cache
def exact():
    """[V * V] the distribution of the first two tokens, by the model's own forward over every first one."""
    firsts = torch.arange(SIZE)[:, None]
    ids = torch.cat([INPUTS["input_ids"].expand(SIZE, -1), firsts], 1)
    features = {"image": model().model.get_image_features(INPUTS["pixel_values"].expand(SIZE, -1, -1, -1))}
    before = model().model.get_input_embeddings()(ids)
    where = (torch.arange(ids.shape[1]) >= 2) & (torch.arange(ids.shape[1]) < 6)  # of the prompt: a placeholder said is none
    before[:, where] = torch.stack(list(features["image"].pooler_output)).to(before)
    logits = model()(inputs_embeds=before).logits[:, -2:].double()
    logits[..., PLACE] = -torch.inf
    distribution = (logits / TEMPERATURE).softmax(-1)
    return (distribution[0, 0][:, None] * distribution[:, 1]).flatten()


class Generous(Token):
    """Accepts half as much again as it may."""

    def accept_prob(self, p, q, x):
        return (1.5 * ratio(p, q, x)).clamp(max=1)


class GenerousBlock(Block):
    @staticmethod
    def reach(p, q, x):
        ratios, reach = 1.5 * ratio(p, q, x), [torch.ones_like(x[:, 0], dtype=p.scores.dtype)]
        for step in range(x.shape[1]):
            reach.append((reach[-1] * ratios[:, step]).clamp(max=1))
        return torch.stack(reach, 1)


@torch.no_grad()
def sampled(rule) -> float:
    """p-value that the first two of many sampled answers follow the exact distribution."""
    rows = {key: value.expand(ROWS, *value.shape[1:]) for key, value in INPUTS.items()}
    drafter = llama(vocab_size=SIZE)
    settings = {"temperature": TEMPERATURE, "max_new_tokens": 3, "draft_length": 2, "seed": 11}
    out = mmspec.text.generate(model(), rows, drafter=drafter, accept=rule, **settings)
    assert out.stats.accepted > ROWS / 4
    assert out.stats.rejected > ROWS / 100  # both are common
    return chi_square(out.sequences[:, 0] * SIZE + out.sequences[:, 1], exact())


@pytest.mark.parametrize("rule", [Token(), Block(), "coupled"])
def test_answers_follow_the_exact_distribution(rule):
    with torch.no_grad():
        assert exact()[PLACE::SIZE].sum() == exact()[PLACE * SIZE :].sum() == 0
        assert abs(exact().sum() - 1) < 1e-9
    assert sampled(rule) > PASS


@pytest.mark.parametrize("rule", [Generous(), GenerousBlock()])
def test_a_rule_that_accepts_too_much_is_rejected(rule):
    assert sampled(rule) < FAIL
