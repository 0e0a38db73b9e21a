"""The autoencoder of continuous tokens: one scale for every channel, the same pictures from disk, errors that say what to give."""

import pytest
import torch

from mmspec.vision.continuous import autoencoder as auto


@pytest.fixture(scope="module")
def world():
    """A small autoencoder after a few steps on random pictures, its scale set over them."""
    torch.manual_seed(0)
    model = auto.make_autoencoder(size=28, colours=1, patch=2, channels=(8, 8), dim=8)
    pixels = torch.nn.functional.interpolate(torch.rand(32, 1, 7, 7), 28) * 2 - 1
    example, optimizer = auto.AutoencoderLoss(model), torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(3):
        rebuilt, nats = example(pixels)
        ((rebuilt - pixels).square().mean() + 0.01 * nats).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    auto.set_scale(model, pixels)
    return model, pixels


def test_tokens_have_unit_scale_in_every_channel(world):
    model, pixels = world
    generator = torch.Generator().manual_seed(0)
    tokens = torch.cat([auto.encode_tokens(model, pixels, generator) for _ in range(40)])
    assert tokens.shape == (1280, 49, 8)
    assert tokens.mean((0, 1)).abs().max() < 0.03
    assert (tokens.std((0, 1)) - 1).abs().max() < 0.03


def test_tokens_stand_in_raster_order(world):
    """A change in the upper right corner of the picture changes the tokens about there."""
    model, pixels = world
    changed = pixels[:1].clone()
    changed[..., :4, 24:] *= -1
    moved = (auto.encode_tokens(model, changed) - auto.encode_tokens(model, pixels[:1]))[0].square().sum(-1).view(7, 7)
    assert moved[:3, 3:].sum() > 0.7 * moved.sum()  # norms over the whole picture spread the rest


def test_a_draw_is_a_mean_with_the_posterior_s_noise(world):
    model, pixels = world
    mean, std = auto.posteriors(model, pixels)
    drawn = auto.encode_tokens(model, pixels, torch.Generator().manual_seed(1))
    torch.testing.assert_close(auto.encode_tokens(model, pixels), mean)
    score = (drawn - mean) / std
    assert abs(score.mean().item()) < 0.05
    assert abs(score.std().item() - 1) < 0.05


def test_what_is_stored_decodes_the_same_pictures(world, tmp_path):
    model, pixels = world
    auto.save_autoencoder(model, tmp_path)
    once = auto.load_autoencoder(tmp_path)
    auto.save_autoencoder(once, tmp_path / "again")
    again = auto.load_autoencoder(tmp_path / "again")
    tokens = auto.encode_tokens(once, pixels)
    torch.testing.assert_close(auto.encode_tokens(again, pixels), tokens, atol=1e-3, rtol=1e-3)
    assert (auto.tokens_to_pixels(once, tokens) - auto.tokens_to_pixels(model, tokens)).abs().max() < 0.1  # bytes
    assert [picture.size for picture in auto.decode_tokens(once, tokens[:3])] == [(28, 28)] * 3


def test_bad_input_is_one_clear_line(world, tmp_path):
    model, _ = world
    with pytest.raises(ValueError, match=r"pictures are \(1, 32, 32\): this autoencoder takes \(1, 28, 28\)"):
        auto.encode_tokens(model, torch.zeros(2, 1, 32, 32))
    with pytest.raises(ValueError, match=r"tokens are \(2, 48, 8\): this autoencoder takes \[B, 49, 8\]"):
        auto.decode_tokens(model, torch.zeros(2, 48, 8))
    broken = torch.zeros(2, 49, 8)
    broken[1, 3, 2] = float("nan")
    with pytest.raises(ValueError, match="tokens of picture 1 are not finite"):
        auto.decode_tokens(model, broken)
    with pytest.raises(FileNotFoundError, match=r"train_autoencoder\.py"):
        auto.load_autoencoder(tmp_path / "nowhere")
