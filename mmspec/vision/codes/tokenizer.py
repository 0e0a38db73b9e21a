"""Picture tokenizers: pictures to a grid of codes and back, over diffusers' `VQModel`, and what training one needs.

A model whose `in_channels` are 4 or 16 times the colours takes pictures folded into blocks of 2x2 or 4x4 (pixel unshuffle, and back
after the decoder): the networks then run at a half or a quarter of the size, several times faster for the same codes.
Vector quantisation: van den Oord et al. 2017, arXiv 1711.00937. Start by k-means, restarts of dead codes: Lancucki et al. 2020, 2005.08520.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import VQModel
from einops import rearrange
from PIL import Image
from torch import Tensor, nn

from mmspec.utils.fp16 import float_weights, save_half
from mmspec.vision.families.base import as_pictures


def make_tokenizer(*, size: int, colours: int, patch: int, channels: Sequence[int], codes: int, dim: int) -> VQModel:
    """An untrained tokenizer for `size` x `size` pictures: codes on a grid of size / (patch * 2^(len(channels) - 1))."""
    if colours not in (1, 3) or patch not in (1, 2, 4):
        raise ValueError(f"{colours} colours in patches of {patch}: a picture has 1 colour or 3, a patch a side of 1, 2 or 4")
    if size % (patch * 2 ** (len(channels) - 1)):
        raise ValueError(f"size {size} is not a multiple of {patch * 2 ** (len(channels) - 1)}, which patch {patch} and {channels} need")
    return VQModel(
        in_channels=colours * patch**2,
        out_channels=colours * patch**2,
        down_block_types=("DownEncoderBlock2D",) * len(channels),
        up_block_types=("UpDecoderBlock2D",) * len(channels),
        block_out_channels=tuple(channels),
        latent_channels=dim,
        sample_size=size // patch,
        num_vq_embeddings=codes,
        norm_num_groups=8,
        vq_embed_dim=dim,
        mid_block_add_attention=False,
    )


def sizes_for(size: int, grid: int, *, codes: int = 512, width: int = 64, dim: int = 8) -> dict[str, Any]:
    """Return arguments of `make_tokenizer` for colour pictures.

    Args:
        size: pixels a side.
        grid: codes a side.
        codes: size of the codebook.
        width: channels of the first level; each further level, of half the size, has half as many more.
        dim: length of the codes' vectors.

    Returns:
        The arguments: blocks of up to 4x4 pixels, then as many levels as the grid needs.

    Raises:
        ValueError: unless the size is 1, 2, 4, 8, ... times the grid, and the width a multiple of 8.
    """
    times = size // grid if grid > 0 else 0
    if times < 1 or times * grid != size or times & (times - 1):
        near = [grid * 2**power for power in range(6)] if grid > 0 else []
        raise ValueError(f"{size} pixels in {grid} codes a side: the size is 1, 2, 4, 8 ... times the grid, such as one of {near}")
    if width < 8 or width % 8:
        raise ValueError(f"width is {width}: the number of channels is a multiple of 8")
    patch = min(times, 4)
    levels = (times // patch).bit_length()
    channels = tuple(width * (2 + level) // 2 // 8 * 8 for level in range(levels))
    return {"size": size, "colours": 3, "patch": patch, "channels": channels, "codes": codes, "dim": dim}


def colours(model: VQModel) -> int:
    """Return the number of colour channels of the pictures."""
    return 3 if model.config["in_channels"] % 3 == 0 else 1


def patch(model: VQModel) -> int:
    """Return the side of the blocks that pictures are folded into."""
    return round((model.config["in_channels"] / colours(model)) ** 0.5)


def codebook(model: VQModel) -> Tensor:
    """Return the vectors of the codes, [K, D]."""
    return model.quantize.embedding.weight


def as_tensor(pictures: Tensor | np.ndarray | Sequence[Image.Image]) -> Tensor:
    """Pictures as float32 [B, C, H, W] in [-1, 1], from bytes [B, H, W] or [B, H, W, 3] or a list of PIL pictures of one size."""
    if not isinstance(pictures, Tensor | np.ndarray):
        pictures = np.stack([np.asarray(picture) for picture in pictures])
    found = torch.as_tensor(np.array(pictures) if isinstance(pictures, np.ndarray) else pictures)
    if found.dtype != torch.uint8 or not (found.dim() == 3 or (found.dim() == 4 and found.shape[3] == 3)):
        raise ValueError(f"pictures are {found.dtype} {tuple(found.shape)}: give uint8 [B, H, W] or [B, H, W, 3], or PIL pictures")
    found = rearrange(found, "b h w -> b 1 h w" if found.dim() == 3 else "b h w c -> b c h w")
    return found.float() / 127.5 - 1


def latents(model: VQModel, pixels: Tensor) -> Tensor:
    """Return the encoder's output before quantisation, [B, D, h, w] float32."""
    side = model.config["sample_size"] * patch(model)
    if tuple(pixels.shape[1:]) != (colours(model), side, side):
        raise ValueError(f"pictures are {tuple(pixels.shape[1:])}: this tokenizer takes ({colours(model)}, {side}, {side}); resize them")
    return model.encode(F.pixel_unshuffle(pixels, patch(model))).latents.float()


def vectors_to_pixels(model: VQModel, quantised: Tensor) -> Tensor:
    """Return pictures [B, C, H, W], about [-1, 1], of code vectors [B, D, h, w]."""
    return F.pixel_shuffle(model.decode(quantised, force_not_quantize=True, return_dict=False)[0].float(), patch(model))


def nearest_codes(model: VQModel, found: Tensor) -> Tensor:
    """Return the codes [B, h, w] of the vectors nearest to latents [B, D, h, w]."""
    height, width = found.shape[2:]
    codes = torch.cdist(rearrange(found, "b d h w -> (b h w) d"), codebook(model)).argmin(-1)
    return rearrange(codes, "(b h w) -> b h w", h=height, w=width)


@torch.no_grad()
def encode_codes(model: VQModel, pictures: Tensor | np.ndarray | Sequence[Image.Image], batch: int = 128) -> Tensor:
    """Return codes [B, h, w] of pictures: bytes or PIL pictures (see `as_tensor`), or floats [B, C, H, W] in [-1, 1]."""
    pixels = pictures if isinstance(pictures, Tensor) and pictures.is_floating_point() else as_tensor(pictures)
    return torch.cat([nearest_codes(model, latents(model, some.to(model.device))) for some in pixels.split(batch)])


@torch.no_grad()
def codes_to_pixels(model: VQModel, codes: Tensor, batch: int = 128) -> Tensor:
    """Return pictures [B, C, H, W] in [-1, 1] of codes [B, h, w]. ValueError for a code outside the codebook."""
    count = len(codebook(model))
    if codes.dim() != 3 or not len(codes):
        raise ValueError(f"codes are {tuple(codes.shape)}: give [B, h, w] with B >= 1, in raster order")
    if not 0 <= int(codes.min()) <= int(codes.max()) < count:
        raise ValueError(f"codes reach from {int(codes.min())} to {int(codes.max())}: the codebook has 0 to {count - 1}")
    vectors = rearrange(codebook(model)[codes.long().to(model.device)], "b h w d -> b d h w")
    return torch.cat([vectors_to_pixels(model, some) for some in vectors.split(batch)]).clamp(-1, 1)


def decode_codes(model: VQModel, codes: Tensor) -> list[Image.Image]:
    """Return PIL pictures of codes [B, h, w]."""
    return as_pictures(codes_to_pixels(model, codes))


def vary(pixels: Tensor, generator: torch.Generator, *, shift: int = 1, mirror: Tensor | None = None) -> Tensor:
    """Return pictures [B, C, H, W] moved by up to `shift` whole pixels on white, half of those in `mirror` [B] (bool) mirrored."""
    rows, side = len(pixels), pixels.shape[-1]
    turned = torch.rand(rows, generator=generator) < 0.5
    turned &= torch.zeros(rows, dtype=torch.bool) if mirror is None else mirror
    move = torch.randint(-shift, shift + 1, (rows, 2), generator=generator) * 2 / side
    corner = torch.diag_embed(torch.stack([torch.where(turned, -1.0, 1.0), torch.ones(rows)], 1))
    grid = F.affine_grid(torch.cat([corner, move[:, :, None]], 2), list(pixels.shape), align_corners=False)
    return 1 - F.grid_sample(1 - pixels, grid, align_corners=False)


class TokenizerLoss(nn.Module):
    """The forward of training: pictures [B, C, H, W] rebuilt, and the commitment loss. Given `noise`, nothing is quantised:
    the noise is added to the latents, whose size is kept near one instead (the warm-up before k-means)."""

    def __init__(self, model: VQModel):
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the reconstruction and the commitment loss of `pixels` [B, C, H, W]."""
        found = latents(self.model, pixels)
        if noise is not None:
            return vectors_to_pixels(self.model, found + noise), found.square().mean() + 0 * codebook(self.model).sum()
        with torch.autocast(found.device.type, enabled=False):
            quantised, commitment, _ = self.model.quantize(found)
        return vectors_to_pixels(self.model, quantised), commitment


def rebuilding_loss(rebuilt: Tensor, pixels: Tensor) -> Tensor:
    """L1 + squared error + L1 of the differences of neighbouring pixels, which keeps edges sharp, and of 4x4 means, which keeps colours."""
    wrong = rebuilt - pixels
    edges = wrong.diff(dim=-1).abs().mean() + wrong.diff(dim=-2).abs().mean()
    return wrong.abs().mean() + wrong.square().mean() + edges / 2 + F.avg_pool2d(wrong, 4).abs().mean()


@torch.no_grad()
def start_codebook(model: VQModel, found: Tensor, generator: torch.Generator, rounds: int = 20) -> None:
    """Set the codebook by k-means of latents [B, D, h, w], started far apart (k-means++, Arthur and Vassilvitskii 2007).

    Started at random, most codes would share the ground of the pictures, which most latents show.
    """
    points, centres = rearrange(found, "b d h w -> (b h w) d"), codebook(model)
    far = torch.ones(len(points), device=points.device)
    for row in range(len(centres)):
        centres[row] = points[torch.multinomial(far + 1e-12, 1, generator=generator)[0]]
        gap = (points - centres[row]).square().sum(1)
        far = gap if row == 0 else far.minimum(gap)
    for _ in range(rounds):
        owner = torch.cdist(points, centres).argmin(-1)
        counts = torch.bincount(owner, minlength=len(centres))
        means = torch.zeros_like(centres).index_add_(0, owner, points) / counts.clamp(min=1)[:, None]
        centres.copy_(torch.where(counts[:, None] > 0, means, centres))


@torch.no_grad()
def restart_dead(model: VQModel, found: Tensor, generator: torch.Generator) -> int:
    """Move the codes that no latent of [B, D, h, w] is nearest to onto latents, drawn by squared error. Returns how many."""
    points = rearrange(found, "b d h w -> (b h w) d")
    far, owner = torch.cdist(points, codebook(model)).min(-1)
    dead = torch.bincount(owner, minlength=len(codebook(model))) == 0
    count = int(dead.sum())
    if count:
        pick = torch.multinomial(far.square() + 1e-12, count, replacement=count > len(points), generator=generator)
        codebook(model)[dead] = points[pick]
    return count


def perplexity(codes: Tensor, count: int) -> float:
    """exp of the entropy of the codes' shares: how many codes a picture is drawn with, were they used alike."""
    share = torch.bincount(codes.flatten().long(), minlength=count) / codes.numel()
    return torch.special.entr(share).sum().exp().item()


def save_tokenizer(model: VQModel, folder: Path) -> None:
    """Write config.json and model.safetensors (float16) to `folder`, whole or not at all."""
    save_half(model, folder, model.save_config)


def load_tokenizer(folder: Path) -> VQModel:
    """The tokenizer in `folder`, in float32 and ready to use. FileNotFoundError when it is not there."""
    if not (folder / "model.safetensors").exists():
        raise FileNotFoundError(
            f"no tokenizer in {folder}: make it with mmspec recipe vision/train_tokenizer.py -- --pictures PICTURES --out {folder.parent}"
        )
    config = VQModel.load_config(folder)
    assert isinstance(config, dict)
    model = VQModel.from_config(config)
    assert isinstance(model, VQModel)
    model.load_state_dict(float_weights(folder))
    return model.eval()
