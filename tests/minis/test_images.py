"""Mini vision as it ships: loads, draws, judges, and stays small."""

import pytest
import torch

import mmspec
from mmspec.minis import HOME, load_vision
from mmspec.minis.images import load_judge
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.quality.classifier import classify


@pytest.fixture(scope="module", params=["vision", "vision-fashion"])
def mini(request):
    return mmspec.load(request.param)


def test_it_draws_the_picture_of_plain_decoding_in_a_third_of_the_forwards(mini):
    some = mini.examples[:2]
    plain = mmspec.vision.generate(mini.target, some, method="plain", guidance=2.0, seed=1)
    fast = mmspec.vision.generate(mini.target, some, guidance=2.0, seed=1)
    assert torch.equal(plain.tokens, fast.tokens)
    assert [a.tobytes() for a in plain.images] == [b.tobytes() for b in fast.images]
    assert plain.images[0].size == ((64, 64) if mini.processor else (28, 28))
    assert fast.stats.tokens_per_call > 2.5 * plain.stats.tokens_per_call


def test_its_drafter_is_accepted(mini):
    assert list(mini.drafters) == ["eagle1"]
    out = mmspec.vision.generate(mini.target, mini.examples[:2], method="eagle", guidance=2.0, seed=1)
    assert out.stats.exactness == "distribution-exact"
    assert out.stats.tokens_per_call > 1.8


def test_the_judge_sees_the_classes_asked_for():
    mini, judge = mmspec.load("vision-fashion"), load_judge(HOME / "vision" / "fashion")
    out = mmspec.vision.generate(mini.target, list(range(10)) * 3, guidance=3.0, seed=0)
    seen = classify(judge, tokens.as_tensor(out.images))[0].argmax(-1)
    assert (seen == torch.arange(10).repeat(3)).float().mean() > 0.7  # 0.1 by chance


def test_guidance_makes_captions_matter():
    """The distribution of the first codes given a caption differs from the distribution given none."""
    model = mmspec.load("vision").target
    prompt = model.encode(["grinning face"], guided=True)
    with torch.no_grad():
        codes = torch.zeros(2, 4, dtype=torch.long)
        distribution = model.logits(model.model.states(prompt.embeds, codes, prompt.mask)).softmax(-1)
    assert (distribution[0] - distribution[1]).abs().sum(-1).max() > 0.05


def test_what_ships_is_small():
    def megabytes(folder):
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6

    assert megabytes(HOME / "vision") <= 15
    assert megabytes(HOME) <= 40


def test_a_missing_mini_names_its_recipe(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"vision/train_target.py -- --set emoji"):
        load_vision(tmp_path, "emoji")
    with pytest.raises(ValueError, match="unknown mini 'pictures'; valid: text, vision"):
        mmspec.load("pictures")
