"""The judge of pictures: features lead to the logits, it learns, and it comes back as it was saved."""

import pytest
import torch
import torch.nn.functional as F

from mmspec.vision.classifier import Classifier, classify, load_classifier, save_classifier


def tiny(size=12, colours=1):
    torch.manual_seed(0)
    return Classifier(size=size, colours=colours, labels=("dark", "light", "striped"), widths=(4, 8, 8)).eval()


@pytest.mark.parametrize(("size", "colours"), [(28, 1), (64, 3)])
def test_features_are_the_last_layer_but_one(size, colours):
    model, pixels = tiny(size, colours), torch.randn(5, colours, size, size)
    logits, features = classify(model, pixels, batch=2)
    assert features.shape == (5, 8)
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
