"""Mini continuous as it ships: loads, draws what was asked for, is drafted for, and stays small."""

import pytest
import torch

import mmspec
from mmspec.minis import HOME, load_continuous
from mmspec.minis.images import load_judge
from mmspec.vision.codes.tokenizer import as_tensor
from mmspec.vision.continuous import autoencoder as auto
from mmspec.vision.quality.classifier import classify

MINIS = {"continuous": ("diffusion", 0.65), "continuous-mixture": ("mixture", 0.55), "continuous-masked": ("masked", 0.5)}


@pytest.fixture(scope="module", params=MINIS)
def mini(request):
    return request.param, mmspec.load(request.param)


def test_it_draws_the_classes_asked_for(mini):
    name, found = mini
    head, least = MINIS[name]
    assert found.target.head == head
    out = mmspec.vision.generate(found.target, found.examples * 4, method="plain", seed=0)
    seen = classify(load_judge(HOME / "vision" / "fashion"), as_tensor(out.images))[0].argmax(-1)
    assert (seen == torch.arange(10).repeat(4)).float().mean() > least  # 0.1 by chance
    assert 0.85 < out.tokens.std() < 1.15


@pytest.mark.parametrize(("name", "method"), [("continuous", "path"), ("continuous-mixture", "density")])
def test_its_drafter_is_accepted(name, method):
    found = mmspec.load(name)
    assert list(found.drafters) == ["small"]
    out = mmspec.vision.generate(found.target, found.examples[:4], method=method, seed=1)
    assert out.stats.exactness == "distribution-exact"
    assert out.stats.tokens_per_call > 1.3


def test_every_way_finds_a_model_with_its_head():
    target = mmspec.load("continuous").target
    assert [target.fit(method).head for method in ("path", "density", "cspd-compat")] == ["diffusion", "mixture", "masked"]


def test_tokens_bear_the_noise_that_is_a_part_of_the_distribution():
    """sigma_out is 0.1: as much on every token changes pictures by less than encoding them again does."""
    found = mmspec.load("continuous")
    out = mmspec.vision.generate(found.target, found.examples * 2, method="plain", seed=2)
    pixels = as_tensor(out.images)
    tokens = auto.encode_tokens(found.processor, pixels)

    def decibels(other):
        return -10 * ((other - pixels) / 2).square().mean().log10()

    assert decibels(auto.tokens_to_pixels(found.processor, tokens)) > 27
    noise = 0.1 * torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0))
    assert decibels(auto.tokens_to_pixels(found.processor, tokens + noise)) > 26


def test_what_ships_is_small():
    def megabytes(folder):
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6

    assert megabytes(HOME / "continuous") <= 6
    assert megabytes(HOME) <= 45


def test_a_missing_mini_names_its_recipe(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train_autoencoder\.py"):
        load_continuous(tmp_path, "diffusion")
