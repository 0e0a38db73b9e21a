"""The judge of pictures: features lead to the logits, it learns, and it comes back as it was saved."""

import pytest
import torch
import torch.nn.functional as F

from mmspec.loading.vision import load_image_model
from mmspec.minis import HOME
from mmspec.minis.drawn.captioned import COLOURS, NOTHING, PLACES, SHAPES, SIZES, captioned_scene, draw_captioned
from mmspec.minis.images import asked_values
from mmspec.minis.pictures import FASHION
from mmspec.vision.codes.tokenizer import as_tensor
from mmspec.vision.generation import generate
from mmspec.vision.quality.classifier import Classifier, attribute_loss, classify, load_classifier, save_classifier, seen_values
from mmspec.vision.quality.judging import judged_pictures
from tests.vision import small_minis

MOST_PARAMETERS = 250_000
LEAST_READ = 0.9
"""Share of new pictures of which the scenes' judge reads all attributes."""
NEW = 10**6


def tiny(size=12, colours=1):
    torch.manual_seed(0)
    return Classifier(size=size, colours=colours, labels=("dark", "light", "striped"), widths=(4, 8, 8), wide=10).eval()


@pytest.mark.parametrize(("size", "colours"), [(28, 1), (64, 3)])
def test_features_are_the_last_layer_but_one(size, colours):
    model, pixels = tiny(size, colours), torch.randn(5, colours, size, size)
    logits, features = classify(model, pixels, batch=2)
    assert features.shape == (5, 10)
    assert torch.allclose(model(pixels), logits, atol=1e-5)
    assert torch.allclose(F.linear(features, model.head.weight, model.head.bias), logits, atol=1e-5)


def test_wrong_inputs_are_named():
    with pytest.raises(ValueError, match="resize them"):
        tiny()(torch.zeros(2, 3, 12, 12))
    with pytest.raises(ValueError, match="two at least"):
        Classifier(size=8, colours=1, labels=("one",))


def test_it_learns_what_is_plain_to_see():
    torch.manual_seed(0)
    stripes = torch.tensor([1.0, -1.0]).repeat(6).expand(1, 12, 12)
    kinds = torch.stack([torch.full((1, 12, 12), -0.5), torch.full((1, 12, 12), 0.5), stripes])
    labels = torch.arange(3).repeat(8)
    model = tiny().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for _ in range(40):
        loss = F.cross_entropy(model(kinds[labels] + 0.2 * torch.randn(24, 1, 12, 12)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fresh = kinds[labels] + 0.2 * torch.randn(24, 1, 12, 12)
    assert (classify(model.eval(), fresh)[0].argmax(1) == labels).all()


def test_it_comes_back_in_half_precision(tmp_path):
    model = tiny()
    save_classifier(model, tmp_path / "judge")
    back = load_classifier(tmp_path / "judge")
    assert back.labels == ["dark", "light", "striped"]
    assert all(torch.equal(tensor.half().float(), back.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert [path.name for path in tmp_path.iterdir()] == ["judge"]
    with pytest.raises(FileNotFoundError, match=r"vision/train_classifier\.py"):
        load_classifier(tmp_path / "none")


def test_several_attributes_are_judged_apart(tmp_path):
    torch.manual_seed(0)
    labels = ("left colour: red", "left colour: blue", "shape: disc", "shape: bar", "shape: none")
    model = Classifier(size=12, colours=1, labels=labels, widths=(4, 8, 8), wide=10, groups=(2, 3))
    assert model.values == {"left colour": ["red", "blue"], "shape": ["disc", "bar", "none"]}
    logits, wanted = torch.randn(6, 5), torch.tensor([[0, 2], [1, 1], [0, 0], [1, 2], [0, 1], [1, 0]])
    one, two = F.cross_entropy(logits[:, :2], wanted[:, 0]), F.cross_entropy(logits[:, 2:], wanted[:, 1])
    assert torch.allclose(attribute_loss(model, logits, wanted, smoothing=0.0), (one + two) / 2)
    assert torch.equal(seen_values(model, logits), torch.stack([logits[:, :2].argmax(1), logits[:, 2:].argmax(1)], 1))
    save_classifier(model, tmp_path / "judge")
    assert load_classifier(tmp_path / "judge").values == model.values
    assert tiny().values == {"class": ["dark", "light", "striped"]}
    with pytest.raises(ValueError, match="add up to 4"):
        Classifier(size=12, colours=1, labels=labels, groups=(2, 2))


def test_pictures_that_show_every_attribute_are_hits(tmp_path):
    model = load_image_model(str(small_minis.scenes(tmp_path, grid=4))).model
    torch.manual_seed(0)
    judge = Classifier(size=16, colours=3, labels=("a: x", "a: y", "b: x", "b: y", "b: z"), widths=(4, 8), groups=(2, 3)).eval()
    prompts = ["a large red star top left", "a small blue ring top right", "a large red star top left"]
    out = generate(model, prompts, method="plain", guidance=2.0, seed=1)
    wanted = seen_values(judge, classify(judge, as_tensor(out.images))[0])
    wanted[1, 1] = (wanted[1, 1] + 1) % 3
    found = judged_pictures(model, judge, prompts, out.sequences, 2.0, torch.tensor([0, 1, 0]), wanted)
    assert found.hits.tolist() == [True, False, True]
    assert found.labels.tolist() == [0, 1, 0]
    assert found.nll.shape == (3, 16)
    assert judged_pictures(model, judge, prompts, out.sequences, 2.0, torch.tensor([0, 1, 0]), None).hits is None


def test_the_shipped_judges_are_small_and_name_their_classes():
    fashion, scenes = (load_classifier(HOME / "vision" / name / "classifier") for name in ("fashion", "scenes"))
    assert fashion.labels == list(FASHION)
    kinds = {"colour": COLOURS, "shape": SHAPES, "size": SIZES}
    assert scenes.values == {f"{place} {kind}": sorted([*kinds[kind], NOTHING]) for place in PLACES for kind in sorted(kinds)}
    for model in (fashion, scenes):
        assert sum(parameter.numel() for parameter in model.parameters()) <= MOST_PARAMETERS


def test_the_shipped_scenes_judge_reads_pictures_it_never_saw():
    """Scenes of a seed that no training picture has."""
    judge, seen = load_classifier(HOME / "vision" / "scenes" / "classifier"), [captioned_scene(NEW, number) for number in range(100)]
    shown = as_tensor([draw_captioned(scene) for scene in seen])
    right = seen_values(judge, classify(judge, shown)[0]) == asked_values(judge, [scene.caption for scene in seen])
    assert right.all(1).float().mean() >= LEAST_READ


def test_the_shipped_fashion_judge_tells_trousers_from_a_bag():
    """Drawn by hand: two legs; a box with a handle."""
    legs, bag = torch.zeros(28, 28), torch.zeros(28, 28)
    legs[2:8, 8:20] = legs[8:26, 8:13] = legs[8:26, 15:20] = 0.7
    bag[11:25, 3:25] = bag[5:11, 8] = bag[5:11, 19] = bag[4, 8:20] = 0.7
    logits, _ = classify(load_classifier(HOME / "vision/fashion/classifier"), torch.stack([legs, bag])[:, None] * 2 - 1)
    assert [FASHION[each] for each in logits.argmax(1)] == ["trouser", "bag"]
