"""Masked models of continuous tokens: what a state may depend on, and which masks training draws."""

import pytest
import torch

from mmspec.vision.mar import MaskedAR, MaskedARConfig, random_masks

SIZES: dict = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "head_width": 16,
    "head_blocks": 1,
}


def small(seed: int = 0, grid: int = 3, **changes) -> MaskedAR:
    torch.manual_seed(seed)
    config = MaskedARConfig(**{"grid": grid, "classes": 3, "channels": 2, "initializer_range": 0.3} | SIZES | changes)
    return MaskedAR(config).eval()


def test_hidden_tokens_are_not_read_and_seen_ones_are():
    model, tokens = small(), torch.randn(2, 9, 2)
    masked = torch.tensor([[True, False, True, False, True, True, False, False, True]] * 2)
    states = model.states(torch.tensor([0, 1]), tokens, masked)
    other = tokens + masked[..., None] * 7
    assert torch.equal(model.states(torch.tensor([0, 1]), other, masked), states)
    other = tokens.clone()
    other[:, 8 - 1] += 1  # a seen one behind most hidden ones: attention looks both ways
    moved = (model.states(torch.tensor([0, 1]), other, masked) - states).abs().amax(-1)
    assert (moved > 1e-5).all()
    assert not torch.allclose(model.states(torch.tensor([3, 3]), tokens, masked), states)


def test_masks_hide_every_number_of_cells_alike():
    hidden = random_masks(9000, 9, torch.Generator().manual_seed(0))
    counts = torch.bincount(hidden.sum(1), minlength=10)
    assert counts[0] == 0
    assert ((counts[1:] - 1000).abs() < 150).all()
    assert ((hidden.double().mean(0) - 5 / 9).abs() < 0.03).all()


def test_a_mixture_head_is_refused():
    with pytest.raises(ValueError, match="a masked model has a diffusion head"):
        MaskedARConfig(head="mixture", **SIZES)
