"""Published settings of relaxed methods: the numbers they stand for, by every call that takes a method's name."""

import pytest
import torch

from mmspec.commands.models import published_methods
from mmspec.vision import METHODS, PUBLISHED, LlamaGen, LlamaGenConfig, generate
from mmspec.vision.codes.registry import can_draw, method_of
from mmspec.vision.families.llamagen import LlamaGenPictures
from tests.vision.small_nets import guided_model

SETTINGS = {
    "lantern-0.1-1000": ("delta", 0.1, 1000),
    "lantern-0.2-1000": ("delta", 0.2, 1000),
    "lantern++-5-10": ("lam", 5.0, 10),
    "lantern++-10-5": ("lam", 10.0, 5),
    "lantern++-20-5": ("lam", 20.0, 5),
    "gsd-14": ("size", 14, None),
    "gsd-25": ("size", 25, None),
    "gsd-50": ("size", 50, None),
    "cool-sd-1.1": ("delta", 1.1, None),
}


@pytest.fixture(scope="module")
def model() -> LlamaGenPictures:
    return guided_model()


def rule_of(name: str, model) -> object:
    rule = method_of(name).rule(model)
    return rule.siblings.rule if hasattr(rule, "siblings") else rule


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_name_stands_for_its_numbers(model, name):
    field, value, k = SETTINGS[name]
    rule = rule_of(name, model)
    assert getattr(rule, field) == value
    if k is not None:
        assert rule.k == rule.neighbours.k == min(k, len(model.codebook) - 1)


def test_names_are_not_given_twice():
    assert list(SETTINGS) == list(PUBLISHED)
    assert not set(METHODS) & set(PUBLISHED)


def test_a_thousand_neighbours_of_a_large_codebook():
    net = LlamaGen(LlamaGenConfig(vocab_size=1200, grid=2, classes=2, hidden_size=16, num_hidden_layers=1, num_attention_heads=1))
    many = LlamaGenPictures(net, codebook=torch.randn(1200, 4))
    assert rule_of("lantern-0.1-1000", many).k == 1000
    assert rule_of("lantern", many).k == 100


@pytest.mark.parametrize("name", PUBLISHED)
def test_pictures_depend_on_their_own_seed_and_the_budget_ends_the_drift(model, name):
    settings = {"method": name, "guidance": 2.5, "window": 9}
    together = generate(model, [0, 1, 2], seed=[5, 6, 7], **settings)
    assert together.stats.exactness == "lossy"
    alone = generate(model, [1], seed=6, **settings)
    assert torch.equal(alone.tokens[0], together.tokens[1])
    exact = generate(model, [0, 1, 2], seed=[5, 6, 7], drift_budget=0.0, **settings)
    assert exact.stats.drift == 0.0


def test_more_relaxed_settings_spend_more(model):
    def drift(name: str) -> float:
        out = generate(model, [0, 1, 2, 0, 1, 2], method=name, guidance=2.0, seed=3, window=9)
        return out.stats.drift / out.stats.tokens

    assert drift("lantern++-20-5") > drift("lantern++")
    assert drift("lantern-0.2-1000") > drift("lantern-0.1-1000")


def test_released_groups_read_the_input_embeddings(model):
    rule = rule_of("gsd-14", model)
    assert torch.equal(rule.embeddings, model.model.tok_embeddings.weight[: len(model.codebook)].detach().float())
    assert (rule.p_gap, rule.distance) == (0.15, 0.5**0.5)
    assert torch.equal(rule_of("gsd-25", model).embeddings, model.codebook)


def test_commands_know_the_names():
    rows = {row["name"]: row for row in published_methods()}
    assert list(rows) == list(PUBLISHED)
    assert all(row["setting"] and row["taken_from"] for row in rows.values())


def test_near_names_are_suggested(model):
    with pytest.raises(ValueError, match=r"did you mean 'lantern\+\+-20-5'"):
        generate(model, [0], method="lantern++-20-6")


def test_methods_whose_drafter_is_missing_cannot_draw(model):
    assert all(can_draw(model, name) for name in METHODS)
    alone = LlamaGenPictures(model.model, codebook=model.codebook)
    nets = {"eagle", "lantern", "lantern++", "cool-sd", "vvs"}
    assert {name for name in METHODS if not can_draw(alone, name)} == nets | {"assisted", "assisted-jacobi"}
    assert not can_draw(alone, "lantern++-20-5")
    alone.assistant = alone
    assert {name for name in METHODS if not can_draw(alone, name)} == nets
