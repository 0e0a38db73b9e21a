"""Mini vision as it ships: loads, draws what captions say, judges, and stays small."""

import warnings

import pytest
import torch

import mmspec
from mmspec.minis import HOME, load_vision
from mmspec.minis.drawn.captioned import COLOURS, SHAPES, SIZES, captioned_scene, read_caption
from mmspec.minis.drawn.shapes import PLACES
from mmspec.minis.images import asked_values, load_judge
from mmspec.minis.picture_sets.vision_card import vision_card
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.families.llamagen import caption_words
from mmspec.vision.quality.classifier import classify, seen_values

LEAST_FEWER = {"vision": 4.0, "vision-fashion": 2.5}
"""Times fewer forwards than plain decoding's by `jacobi`, two pictures."""
LEAST_BY_DRAFTER = {"eagle": 2.5, "assisted": 2.5}
"""Codes a forward of the target by a trained drafter, one picture."""
LEAST_RIGHT, LEAST_ATTRIBUTES = 0.75, 0.95
"""Share of pictures of the example captions that show every attribute, and share of attributes."""
MOST_BY_CHANCE = 0.1
"""Share of the same pictures that show every attribute of another caption."""
MEGABYTES, MEGABYTES_OF_ALL = 15, 45


@pytest.fixture(scope="module", params=list(LEAST_FEWER))
def mini(request):
    return mmspec.load(request.param)


@pytest.fixture(scope="module")
def scenes():
    return mmspec.load("vision")


@pytest.fixture(scope="module")
def judge():
    return load_judge(HOME / "vision" / "scenes")


@pytest.fixture(scope="module")
def seen(scenes, judge):
    """What the judge sees in pictures of the example captions, plain decoding's by `jacobi`: [N, A]."""
    out = mmspec.vision.generate(scenes.target, scenes.examples, guidance=1.0, window=32, seed=0)
    return seen_values(judge, classify(judge, tokens.as_tensor(out.images))[0])


def test_it_draws_the_picture_of_plain_decoding_in_fewer_forwards(mini):
    some = mini.examples[:2]
    plain = mmspec.vision.generate(mini.target, some, method="plain", guidance=2.0, seed=1)
    fast = mmspec.vision.generate(mini.target, some, guidance=2.0, seed=1)
    assert torch.equal(plain.tokens, fast.tokens)
    assert [a.tobytes() for a in plain.images] == [b.tobytes() for b in fast.images]
    assert plain.images[0].size == ((64, 64) if mini.processor else (28, 28))
    least = LEAST_FEWER["vision" if mini.processor else "vision-fashion"]
    assert fast.stats.tokens_per_call > least * plain.stats.tokens_per_call


def test_its_drafters_are_accepted(mini):
    assert list(mini.drafters) == (["eagle1", "model"] if mini.processor else ["eagle1"])
    out = mmspec.vision.generate(mini.target, mini.examples[:1], method="eagle", guidance=2.0, seed=1)
    assert out.stats.exactness == "distribution-exact"
    assert out.stats.tokens_per_call > LEAST_BY_DRAFTER["eagle"]


def test_a_smaller_model_drafts_the_picture_of_plain_decoding(scenes):
    some = scenes.examples[:1]
    plain = mmspec.vision.generate(scenes.target, some, method="jacobi", guidance=2.0, seed=1)
    for drafting in ({"method": "assisted"}, {"drafter": scenes.drafters["model"]}):
        out = mmspec.vision.generate(scenes.target, some, guidance=2.0, seed=1, **drafting)
        assert torch.equal(plain.tokens, out.tokens)
        assert out.stats.exactness == "token-exact"
        assert out.stats.tokens_per_call > LEAST_BY_DRAFTER["assisted"]


def test_pictures_show_what_their_captions_say(scenes, judge, seen):
    right = seen == asked_values(judge, scenes.examples)
    assert right.all(1).float().mean() >= LEAST_RIGHT
    assert right.float().mean() >= LEAST_ATTRIBUTES
    other = seen == asked_values(judge, scenes.examples[1:] + scenes.examples[:1])
    assert other.all(1).float().mean() <= MOST_BY_CHANCE  # the test sees pictures of another caption


def test_the_judge_sees_the_classes_asked_for():
    mini, judge = mmspec.load("vision-fashion"), load_judge(HOME / "vision" / "fashion")
    out = mmspec.vision.generate(mini.target, list(range(10)), guidance=3.0, seed=0)
    seen = seen_values(judge, classify(judge, tokens.as_tensor(out.images))[0])
    wanted = asked_values(judge, [mini.target.labels[number] for number in range(10)], mini.target.labels)
    assert wanted.flatten().tolist() == list(range(10))
    assert (seen == wanted).float().mean() > 0.7  # 0.1 by chance


def test_what_a_judge_should_see_is_told_only_where_prompts_say_it(judge, scenes):
    assert asked_values(judge, ["a red ball"]) is None
    assert asked_values(load_judge(HOME / "vision" / "fashion"), scenes.examples) is None
    assert asked_values(judge, ["bag"], ["bag", "coat"]) is None


def test_examples_are_captions_that_were_held_out(scenes):
    assert scenes.examples == [captioned_scene(0, 10 * number).caption for number in range(len(scenes.examples))]
    assert len(scenes.examples) >= 16


def test_the_words_of_the_captions_are_known_and_others_are_named(scenes):
    words = {*COLOURS, *SHAPES, *SIZES, *caption_words(" ".join(PLACES)), "a", "and"}
    assert scenes.target.captions.words == words
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scenes.target.encode([*scenes.examples, scenes.examples[0].upper()], guided=True)
    with pytest.warns(UserWarning, match="words that the model was not trained on: apple, pear; it knows a, and, blue,"):
        scenes.target.encode(["a red apple and a pear"], guided=True)
    three = " and ".join(f"a small red star {place}" for place in PLACES[:3])
    with pytest.warns(UserWarning, match="has 20 tokens, and the model reads 13: the rest is left out"):
        scenes.target.encode([three], guided=True)


def test_every_caption_fits(scenes):
    """All captions of two objects are read whole, one token a word."""
    longest = " and ".join(f"a large {max(COLOURS, key=len)} {max(SHAPES, key=len)} {place}" for place in PLACES[2:])
    assert len(read_caption(longest).objects) == 2
    assert scenes.target.captions.unread([longest]) == []
    ids = scenes.processor(longest, padding=False, truncation=False)["input_ids"]
    assert len(ids) == len(longest.split())


def test_guidance_makes_captions_matter(scenes):
    """The distribution of a corner's first codes given a caption differs from the distribution given none."""
    model = scenes.target
    prompt = model.encode(["a large red star top left"], guided=True)
    codes = mmspec.vision.generate(model, ["a large red star top left"], guidance=2.0, window=32, seed=0).sequences[:, :128]
    with torch.no_grad():
        distribution = model.logits(model.model.states(prompt.embeds, codes.repeat(2, 1), prompt.mask)).softmax(-1)
    assert (distribution[0] - distribution[1]).abs().sum(-1).max() > 0.05


def test_the_card_says_what_the_files_hold():
    card = (HOME / "vision" / "card.md").read_text(encoding="utf-8")
    assert card == vision_card(HOME / "vision")
    assert mmspec.load("vision").card == card
    for said in ("Apache-2.0", "mmspec/minis/drawn/captioned.py", "no data set was used", "Fashion-MNIST (MIT)", "| plain | token-exact |"):
        assert said in card


def test_what_ships_is_small():
    def megabytes(folder):
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6

    assert megabytes(HOME / "vision") <= MEGABYTES
    assert megabytes(HOME) <= MEGABYTES_OF_ALL


def test_a_missing_mini_names_its_recipe(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"vision/train_target.py -- --pictures PICTURES --out"):
        load_vision(tmp_path, "scenes")
    with pytest.raises(ValueError, match="unknown mini 'pictures'; valid: text, vision"):
        mmspec.load("pictures")
