"""Merges codes that look alike: fewer codes for the same pictures, and far less chance in which of them a flat area gets.

A VQ codebook has many codes for what pictures show most, such as a white ground, and which of them a cell gets depends on what is far from
it. A target then spends its capacity, and exact drafting its draft tokens, on differences that nobody sees.
"""

import torch
from diffusers import VQModel
from einops import rearrange
from torch import Tensor

from mmspec.vision.codes import tokenizer as tokens


@torch.no_grad()
def merge_codes(model: VQModel, pixels: Tensor, loss: float, rounds: int = 8) -> VQModel:
    """Return the tokenizer with fewer codes; encoder and decoder keep their weights.

    Codes nearer than a radius to a more frequent one are left out, those that no picture has too. The radius is the largest of `rounds`
    halvings of an interval at which the pictures' mean PSNR falls by at most `loss`.

    Args:
        model: the tokenizer.
        pixels: pictures [B, C, H, W] in [-1, 1] by which codes are counted and the loss is measured.
        loss: dB of PSNR that may be lost.
        rounds: halvings.

    Raises:
        ValueError: unless `loss` is 0 or more.
    """
    if not loss >= 0:
        raise ValueError(f"loss is {loss}: give the dB of PSNR that merging codes may cost, 0 or more")
    found = torch.cat([tokens.latents(model, some) for some in pixels.split(128)])
    before, counts = _psnr(model, found, pixels), _counts(model, found)
    low, high = 0.0, float(rearrange(found, "b d h w -> (b h w) d").std(0).norm())
    best = _kept(model, counts, low)
    for _ in range(rounds):
        middle = (low + high) / 2
        tried = _kept(model, counts, middle)
        if before - _psnr(tried, found, pixels) <= loss:
            low, best = middle, tried
        else:
            high = middle
    return best


def _counts(model: VQModel, found: Tensor) -> Tensor:
    """How often each code is the nearest to latents [B, D, h, w]."""
    return torch.bincount(tokens.nearest_codes(model, found).flatten(), minlength=len(tokens.codebook(model)))


def _kept(model: VQModel, counts: Tensor, radius: float) -> VQModel:
    """The tokenizer with the codes that are further than `radius` from every more frequent one that is kept."""
    book, rows = tokens.codebook(model), []
    for row in counts.argsort(descending=True, stable=True).tolist():
        if counts[row] and (not rows or (book[rows] - book[row]).norm(dim=1).min() > radius):
            rows.append(row)
    smaller = VQModel.from_config(dict(model.config) | {"num_vq_embeddings": len(rows)})
    assert isinstance(smaller, VQModel)
    smaller.load_state_dict(model.state_dict() | {"quantize.embedding.weight": book[rows]})
    return smaller.to(model.device).train(model.training)  # pyright: ignore[reportArgumentType]


def _psnr(model: VQModel, found: Tensor, pixels: Tensor) -> float:
    """Mean PSNR (dB) of pictures rebuilt from their latents by the nearest codes."""
    rebuilt = tokens.codes_to_pixels(model, tokens.nearest_codes(model, found))
    error = ((rebuilt - pixels) / 2).square().flatten(1).mean(1).clamp(min=1e-10)
    return (-10 * error.log10()).mean().item()
