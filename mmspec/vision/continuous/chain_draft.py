"""Fitting, storing and loading the linear model by which the steps of a diffusion head's chain are drafted.

The model is fitted in closed form, in one pass over a few pictures: the mean derivative of the head's output with respect to the state, by
differences, and a regression of its first prediction on the backbone's state.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.core.chains.linear import LinearDraft
from mmspec.utils.weights import load_file
from mmspec.vision.continuous.ar import ContinuousAR, scheduler

FILE = "chain.safetensors"
"""Name of the file in a model's folder."""
LEVELS, RIDGE, REACH = 32, 10.0, 0.3
"""Noise levels of the fit; ridge of the regression; length of a difference in units of the level's noise."""


@torch.no_grad()
def fit_linear_draft(model: ContinuousAR, classes: Tensor, tokens: Tensor, *, contexts: int = 64, seed: int = 0) -> LinearDraft:
    """Fit the linear model of a causal model's diffusion head.

    Args:
        model: the model.
        classes: LongTensor [R], class numbers of pictures.
        tokens: float [R, S, d], the pictures' tokens in raster order: the model's own, or encoded ones.
        contexts: tokens whose head is differentiated.
        seed: of the noise.

    Returns:
        The linear model. Some 20 pictures are enough.

    Raises:
        ValueError: for a model without a diffusion head.
    """
    if model.config.head != "diffusion":
        raise ValueError(f"the head is a {model.config.head}: only a diffusion head has a chain of steps to draft")
    generator = torch.Generator().manual_seed(seed)
    bare = torch.full_like(classes, model.config.classes)
    cond, uncond = (model.states(each, tokens).flatten(0, 1) for each in (classes, bare))
    some = torch.randperm(len(cond), generator=generator)[:contexts].to(cond.device)
    levels = ((torch.arange(LEVELS) / (LEVELS - 1)).square() * (scheduler().config["num_train_timesteps"] - 1)).long()
    noise = torch.randn(LEVELS, len(some), tokens.shape[-1], generator=generator).to(cond)
    guided, unguided = (_jacobian(model.head, z[some], tokens.flatten(0, 1)[some], levels, noise) for z in (cond, uncond))
    weight, bias = _first(model.head, torch.cat([cond, uncond]), levels[-1:], generator)
    return LinearDraft(levels.float().to(cond.device), guided, unguided, weight, bias)


def _jacobian(head: Any, z: Tensor, tokens: Tensor, levels: Tensor, noise: Tensor) -> Tensor:
    """Return the mean derivative of the output [L, d, d] at noised `tokens` [M, d], rows of the state first."""
    width, found = tokens.shape[-1], []
    shifts = torch.cat([torch.eye(width), -torch.eye(width)]).to(tokens)
    given = z.repeat_interleave(2 * width, 0)
    for level, drawn in zip(levels, noise, strict=True):
        share = scheduler().alphas_cumprod[level].to(tokens)
        reach = REACH * (1 - share).sqrt()
        x = share.sqrt() * tokens + (1 - share).sqrt() * drawn
        rows = (x[:, None] + reach * shifts).flatten(0, 1)
        up, down = head(rows, level.to(tokens).expand(len(rows)), given).view(len(x), 2, width, -1).mean(0)
        found.append((up - down) / (2 * reach))
    return torch.stack(found)


def _first(head: Any, z: Tensor, level: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Regress the prediction of the clean token from noise alone on the states `z` [M, D]. Return weight [D, d] and bias [d]."""
    share = scheduler().alphas_cumprod[level].to(z)
    x = torch.randn(len(z), head.output.out_features, generator=generator).to(z)
    out = head(x, level.to(z).expand(len(z)), z)
    clean, inputs = (share.sqrt() * x - (1 - share).sqrt() * out).double(), torch.nn.functional.pad(z, (0, 1), value=1.0).double()
    ridge = RIDGE * torch.eye(inputs.shape[1], dtype=torch.float64, device=z.device)
    ridge[-1, -1] = 0
    found = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ clean).float()
    return found[:-1], found[-1]


def save_linear_draft(linear: LinearDraft, folder: Path) -> None:
    """Write a linear model to a model's folder, under a temporary name first.

    Args:
        linear: the linear model.
        folder: the model's folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{FILE}.tmp"
    save_file({name: tensor.contiguous().cpu() for name, tensor in asdict(linear).items()}, temporary, {"format": "pt"})
    temporary.replace(folder / FILE)


def load_linear_draft(folder: Path) -> LinearDraft | None:
    """Return the linear model in a model's folder; None if it has none.

    Args:
        folder: the model's folder.
    """
    return LinearDraft(**load_file(folder / FILE)) if (folder / FILE).exists() else None
