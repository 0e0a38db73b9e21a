"""Codes that look alike are merged: nobody sees it, flat areas get one code, and the bound in dB holds."""

import pytest
import torch

from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.codes.merged_codes import merge_codes

CODES, TWINS = 12, 5


@pytest.fixture(scope="module")
def doubled():
    """A tokenizer whose first code has `TWINS` copies that differ by a thousandth, its decoder trained for a moment, and pictures."""
    torch.manual_seed(0)
    model = tokens.make_tokenizer(size=16, colours=3, patch=4, channels=(8,), codes=CODES + TWINS, dim=4).eval()
    flat = torch.rand(24, 3, 4, 4, generator=torch.Generator().manual_seed(1)) * 2 - 1
    pixels = flat.repeat_interleave(4, 2).repeat_interleave(4, 3)
    points = tokens.latents(model, pixels).detach().permute(0, 2, 3, 1).reshape(-1, 4)
    with torch.no_grad():
        book = tokens.codebook(model)
        book[:CODES] = points[:: len(points) // CODES][:CODES]
        book[CODES:] = book[0] + 1e-3 * torch.randn(TWINS, 4)
    optimizer = torch.optim.Adam(model.decoder.parameters(), 1e-2)
    vectors = tokens.codebook(model).detach()[tokens.encode_codes(model, pixels)].permute(0, 3, 1, 2)
    for _ in range(80):
        optimizer.zero_grad()
        (tokens.vectors_to_pixels(model, vectors) - pixels).square().mean().backward()
        optimizer.step()
    return model, pixels


def psnr(model, pixels):
    error = ((tokens.codes_to_pixels(model, tokens.encode_codes(model, pixels)) - pixels) / 2).square().flatten(1).mean(1)
    return (-10 * error.log10()).mean().item()


def test_twins_become_one_code(doubled):
    model, pixels = doubled
    merged = merge_codes(model, pixels, 0.01)
    assert len(tokens.codebook(merged)) <= CODES
    near = torch.cdist(tokens.codebook(merged), tokens.codebook(model)[:1]) < 0.01
    assert near.sum() == 1  # one of the six
    assert psnr(merged, pixels) >= psnr(model, pixels) - 0.01
    kept = {tuple(row) for row in tokens.codebook(merged).tolist()}
    assert kept <= {tuple(row) for row in tokens.codebook(model).tolist()}  # codes are left out, none is moved


def test_the_bound_is_what_is_lost_at_most(doubled):
    model, pixels = doubled
    counts = []
    for loss in (0.0, 0.1, 1.0, 20.0):
        merged = merge_codes(model, pixels, loss)
        assert psnr(merged, pixels) >= psnr(model, pixels) - loss - 1e-4
        counts.append(len(tokens.codebook(merged)))
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < counts[0]


def test_the_tokenizer_given_is_left_as_it_was(doubled):
    model, pixels = doubled
    before = tokens.codebook(model).clone()
    merged = merge_codes(model, pixels, 20.0)
    assert torch.equal(tokens.codebook(model), before)
    assert merged.config["num_vq_embeddings"] == len(tokens.codebook(merged)) < len(before)
    same = [name for name, value in model.state_dict().items() if not name.startswith("quantize")]
    assert all(torch.equal(model.state_dict()[name], merged.state_dict()[name]) for name in same)


@pytest.mark.parametrize("loss", [-0.1, float("nan")])
def test_a_loss_below_zero_is_refused(doubled, loss):
    with pytest.raises(ValueError, match="give the dB"):
        merge_codes(*doubled, loss)
