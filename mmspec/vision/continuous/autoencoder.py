"""Pictures to a grid of continuous tokens and back, with diffusers' `AutoencoderKL`, and its training loss.

Tokens are draws from the encoder's posterior, scaled so that every channel has mean 0 and deviation 1 over the training pictures (both are
in the config). As in `mmspec.vision.codes.tokenizer`, pictures may be folded into blocks, so that the networks run at half the resolution.
Posteriors as a regulariser: Kingma and Welling 2014, arXiv 1312.6114. A decoder trained with noise on its latents, so that noise on tokens
is tolerated: sigma-VAE, Sun et al. 2024, arXiv 2412.08635.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from einops import rearrange
from PIL import Image
from torch import Tensor, nn

from mmspec.utils.packing import read_bytes, save_bytes
from mmspec.vision.codes.tokenizer import as_tensor, colours, patch
from mmspec.vision.families.base import as_pictures

Some = Tensor | np.ndarray | Sequence[Image.Image]


def make_autoencoder(*, size: int, colours: int, patch: int, channels: Sequence[int], dim: int) -> AutoencoderKL:
    """Return an untrained autoencoder for `size` x `size` pictures.

    Tokens have `dim` numbers, in a grid of size / (patch * 2^(len(channels) - 1)) a side. ValueError if that is no whole number.
    """
    if size % (patch * 2 ** (len(channels) - 1)):
        raise ValueError(f"size {size} is not a multiple of {patch * 2 ** (len(channels) - 1)}, which patch {patch} and {channels} need")
    options: dict[str, Any] = {
        "in_channels": colours * patch**2,
        "out_channels": colours * patch**2,
        "down_block_types": ("DownEncoderBlock2D",) * len(channels),
        "up_block_types": ("UpDecoderBlock2D",) * len(channels),
        "block_out_channels": tuple(channels),
        "latent_channels": dim,
        "sample_size": size // patch,
        "norm_num_groups": 8,
        "scaling_factor": 1.0,
        "latents_mean": (0.0,) * dim,
        "latents_std": (1.0,) * dim,
        "mid_block_add_attention": False,
    }
    return AutoencoderKL(**options)


def posterior(model: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and log-variance of the latents of pictures [B, C, H, W] in [-1, 1]: [B, d, h, w] each, float32, not scaled."""
    side = model.config["sample_size"] * patch(model)
    if tuple(pixels.shape[1:]) != (colours(model), side, side):
        raise ValueError(f"pictures are {tuple(pixels.shape[1:])}: this autoencoder takes ({colours(model)}, {side}, {side}); resize them")
    found = model.encode(F.pixel_unshuffle(pixels, patch(model))).latent_dist
    return found.mean.float(), found.logvar.float()


def latents_to_pixels(model: Any, latents: Tensor) -> Tensor:
    """Decode latents [B, d, h, w] to pictures [B, C, H, W], about [-1, 1]."""
    return F.pixel_shuffle(model.decode(latents, return_dict=False)[0].float(), patch(model))


def scale(model: Any) -> tuple[Tensor, Tensor]:
    """Return mean and deviation [d] of the latents' channels from the config."""
    mean, std = (torch.tensor(model.config[name], device=model.device) for name in ("latents_mean", "latents_std"))
    return mean, std


@torch.no_grad()
def posteriors(model: AutoencoderKL, pictures: Some, batch: int = 250) -> tuple[Tensor, Tensor]:
    """Return mean and deviation [B, h * w, d] of every picture's scaled tokens, in raster order.

    Pictures are bytes or PIL pictures (see `tokenizer.as_tensor`), or floats [B, C, H, W] in [-1, 1].
    """
    pixels = pictures if isinstance(pictures, Tensor) and pictures.is_floating_point() else as_tensor(pictures)
    mean, std = scale(model)
    parts = [posterior(model, some.to(model.device)) for some in pixels.split(batch)]
    means, logvars = (rearrange(torch.cat(found), "b d h w -> b (h w) d") for found in zip(*parts, strict=True))
    return (means - mean) / std, (logvars / 2).exp() / std


def encode_tokens(model: AutoencoderKL, pictures: Some, generator: torch.Generator | None = None) -> Tensor:
    """Return tokens [B, h * w, d] of pictures: draws from the posteriors with a `generator`, as in training of targets; else the means."""
    mean, std = posteriors(model, pictures)
    return mean if generator is None else mean + std * torch.randn(mean.shape, generator=generator).to(std.device)


@torch.no_grad()
def tokens_to_pixels(model: AutoencoderKL, tokens: Tensor, batch: int = 250) -> Tensor:
    """Decode tokens [B, h * w, d] to pictures [B, C, H, W] in [-1, 1]. ValueError for another shape and for values that are not finite."""
    side, dim = model.config["sample_size"] // 2 ** (len(model.config["block_out_channels"]) - 1), model.config["latent_channels"]
    if tokens.dim() != 3 or tokens.shape[1:] != (side * side, dim):
        raise ValueError(f"tokens are {tuple(tokens.shape)}: this autoencoder takes [B, {side * side}, {dim}], in raster order")
    if not tokens.isfinite().all():
        raise ValueError(f"tokens of picture {(~tokens.isfinite()).nonzero()[0, 0].item()} are not finite: leave that picture out")
    mean, std = scale(model)
    latents = rearrange(tokens.float().to(model.device) * std + mean, "b (h w) d -> b d h w", h=side)
    return torch.cat([latents_to_pixels(model, some) for some in latents.split(batch)]).clamp(-1, 1)


def decode_tokens(model: AutoencoderKL, tokens: Tensor) -> list[Image.Image]:
    """Decode tokens [B, h * w, d] to PIL pictures."""
    return as_pictures(tokens_to_pixels(model, tokens))


class AutoencoderLoss(nn.Module):
    """Forward of training: reconstructions from posterior draws with added noise, and the KL divergence in nats per number.

    The noise has up to `noise` deviations, drawn for each picture, so that the decoder also works without it.
    """

    def __init__(self, model: AutoencoderKL, noise: float = 0.15):
        super().__init__()
        self.model, self.noise = model, noise

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss terms of `pixels` [B, C, H, W]."""
        mean, logvar = posterior(self.model, pixels)
        drawn = mean + (logvar / 2).exp() * torch.randn_like(mean)
        spread = drawn.detach().std((0, 2, 3), keepdim=True) * torch.rand(len(mean), 1, 1, 1, device=mean.device) * self.noise
        nats = (mean.square() + logvar.exp() - 1 - logvar) / 2
        return latents_to_pixels(self.model, drawn + spread * torch.randn_like(drawn)), nats.mean()


@torch.no_grad()
def set_scale(model: AutoencoderKL, pixels: Tensor, batch: int = 250) -> None:
    """Store mean and deviation of every channel over training pictures, posterior noise included, in the config."""
    found = [posterior(model, some) for some in pixels.split(batch)]
    mean, var = torch.cat([m for m, _ in found]), torch.cat([v.exp() for _, v in found])
    std = (mean.var((0, 2, 3)) + var.mean((0, 2, 3))).sqrt()
    model.register_to_config(latents_mean=mean.mean((0, 2, 3)).tolist(), latents_std=std.tolist())


def save_autoencoder(model: AutoencoderKL, folder: Path) -> None:
    """Write config.json and model.safetensors (matrices as bytes) to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_config(folder)
    save_bytes(model.state_dict(), folder / "model.safetensors")


def load_autoencoder(folder: Path) -> AutoencoderKL:
    """Load the autoencoder in `folder`, in float32 and eval mode. FileNotFoundError if it does not exist."""
    if not (folder / "model.safetensors").exists():
        raise FileNotFoundError(f"no autoencoder in {folder}: make it with mmspec recipe vision/train_autoencoder.py -- --out {folder}")
    model = AutoencoderKL.from_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    assert isinstance(model, AutoencoderKL)
    model.load_state_dict(read_bytes(folder / "model.safetensors"))
    return model.eval()
