"""The decoder of a VQGAN (Esser et al. 2021, arXiv 2012.09841): codes to pictures, from the files of Chameleon, Anole and LlamaGen.

The network's shape is read from the file's tensors. Two layouts are known: that of taming-transformers, which Chameleon's and Anole's
`vqgan.ckpt` have, and LlamaGen's `vq_ds16_*.pt`, whose code vectors are normalised where they are looked up.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from einops import rearrange
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from mmspec.utils.weights import load_file
from mmspec.vision.families.base import as_pictures

GROUPS, EPS = 32, 1e-6
_BLOCKS = re.compile(r"^decoder\.conv_blocks\.(\d+)\.")
_MIDDLE = {"decoder.mid.0.": "decoder.mid.block_1.", "decoder.mid.1.": "decoder.mid.attn_1.", "decoder.mid.2.": "decoder.mid.block_2."}
_READ = ("decoder.", "post_quant_conv.", "quantize.embedding.")


class ConvolutionalDecoder:
    """The decoder's network alone, from tensors `decoder.*` by taming-transformers' names.

    Args:
        weights: tensors by name.

    Raises:
        ValueError: if a tensor is missing.
    """

    def __init__(self, weights: Mapping[str, Tensor]):
        self.weights = {name: tensor.float() for name, tensor in weights.items() if name.startswith(_READ)}
        for name in ("decoder.conv_in.weight", "decoder.conv_out.weight"):
            self._read(name)
        self.levels = 1 + max((int(name.split(".")[2]) for name in self.weights if name.startswith("decoder.up.")), default=-1)

    def decoded(self, x: Tensor) -> Tensor:
        """Run the network.

        Args:
            x: latents [B, d, h, w].

        Returns:
            Pixels [B, 3, H, W], about [-1, 1].
        """
        x = self._conv("decoder.conv_in", x)
        x = self._block("decoder.mid.block_1", x)
        x = self._attention("decoder.mid.attn_1", x)
        x = self._block("decoder.mid.block_2", x)
        for level in range(self.levels - 1, -1, -1):
            x = self._level(f"decoder.up.{level}", x)
        return self._conv("decoder.conv_out", F.silu(self._norm("decoder.norm_out", x)))

    def to(self, device: torch.device | str) -> Self:
        """Move the tensors to a device, and return this decoder."""
        self.weights = {name: tensor.to(device) for name, tensor in self.weights.items()}
        return self

    def _level(self, name: str, x: Tensor) -> Tensor:
        block = 0
        while f"{name}.block.{block}.conv1.weight" in self.weights:
            x = self._block(f"{name}.block.{block}", x)
            if f"{name}.attn.{block}.q.weight" in self.weights:
                x = self._attention(f"{name}.attn.{block}", x)
            block += 1
        if f"{name}.upsample.conv.weight" in self.weights:
            x = self._conv(f"{name}.upsample.conv", F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return x

    def _block(self, name: str, x: Tensor) -> Tensor:
        y = self._conv(f"{name}.conv1", F.silu(self._norm(f"{name}.norm1", x)))
        y = self._conv(f"{name}.conv2", F.silu(self._norm(f"{name}.norm2", y)))
        return y + (self._conv(f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in self.weights else x)

    def _attention(self, name: str, x: Tensor) -> Tensor:
        y = self._norm(f"{name}.norm", x)
        q, k, v = (rearrange(self._conv(f"{name}.{part}", y), "b c h w -> b 1 (h w) c") for part in "qkv")
        y = rearrange(F.scaled_dot_product_attention(q, k, v), "b 1 (h w) c -> b c h w", h=x.shape[2])
        return x + self._conv(f"{name}.proj_out", y)

    def _conv(self, name: str, x: Tensor) -> Tensor:
        weight = self._read(f"{name}.weight")
        return F.conv2d(x, weight, self._read(f"{name}.bias"), padding=weight.shape[-1] // 2)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.group_norm(x, GROUPS, self._read(f"{name}.weight"), self._read(f"{name}.bias"), EPS)

    def _read(self, name: str) -> Tensor:
        if name not in self.weights:
            raise ValueError(f"tensor {name} is missing")
        return self.weights[name]


class VQGANDecoder(ConvolutionalDecoder):
    """Codes to pictures.

    Args:
        weights: tensors by taming-transformers' names: `decoder.*`, `post_quant_conv.*`, `quantize.embedding.weight`.
        normalised: the code vectors are normalised where they are looked up.

    Raises:
        ValueError: if a tensor is missing.
    """

    def __init__(self, weights: Mapping[str, Tensor], normalised: bool = False):
        super().__init__(weights)
        self.normalised = normalised
        for name in ("post_quant_conv.weight", "quantize.embedding.weight"):
            self._read(name)

    @staticmethod
    def load(path: str | Path) -> "VQGANDecoder":
        """Read a published file.

        Args:
            path: a `.pt`, `.ckpt` or `.safetensors` file; tensors may stand under "state_dict" or "model".

        Returns:
            The decoder.

        Raises:
            ValueError: for files without such a decoder.
        """
        found = checkpoint_tensors(path)
        try:
            return VQGANDecoder(*_renamed(found))
        except ValueError as error:
            raise ValueError(f"{path} holds no decoder of a VQGAN: {error}") from None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors by name, and a mark if the code vectors are normalised."""
        return self.weights | ({"mmspec.normalised": torch.ones(1)} if self.normalised else {})

    def save(self, path: Path) -> None:
        """Write the tensors as safetensors, which `load` reads."""
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, path)

    @property
    def codebook(self) -> Tensor:
        """The code vectors [K, d] as they are looked up."""
        found = self.weights["quantize.embedding.weight"]
        return F.normalize(found, dim=-1) if self.normalised else found

    @torch.no_grad()
    def pixels(self, codes: Tensor) -> Tensor:
        """Decode codes.

        Args:
            codes: LongTensor [B, height, width].

        Returns:
            Pixels [B, 3, H, W], about [-1, 1].
        """
        x = rearrange(self.codebook[codes.to(self.codebook.device)], "b h w d -> b d h w")
        return self.decoded(self._conv("post_quant_conv", x))

    def __call__(self, codes: Tensor) -> list[Image.Image]:
        """Decode codes [B, height, width] to PIL pictures, one by one, so that a picture does not depend on its batch."""
        return [picture for each in codes for picture in as_pictures(self.pixels(each[None]))]


def checkpoint_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint file.

    Args:
        path: `.safetensors`, or a file of `torch.save` with tensors, or with a mapping of them under "model", "module" or "state_dict".

    Returns:
        Tensors by name, on the host.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for files that hold anything but tensors and plain data.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file: give a checkpoint with tensors")
    try:
        found: Any = load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} cannot be read as tensors: {first}; save its tensors as safetensors") from None
    for name in ("model", "module", "state_dict"):
        found = found[name] if isinstance(found, Mapping) and isinstance(found.get(name), Mapping) else found
    if not isinstance(found, Mapping):
        raise ValueError(f"{path} holds no tensors by name")
    return {str(name): tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}


def _renamed(found: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """Tensors by taming-transformers' names, and whether code vectors are normalised: in LlamaGen's layout, and where the file says so."""
    blocks = [int(match[1]) for name in found if (match := _BLOCKS.match(name))]
    if not blocks:
        return {name: tensor for name, tensor in found.items() if name != "mmspec.normalised"}, "mmspec.normalised" in found
    weights, top = {}, max(blocks)
    for name, tensor in found.items():
        if match := _BLOCKS.match(name):
            name = f"decoder.up.{top - int(match[1])}." + name[match.end() :].replace("res.", "block.", 1)
        for old, new in _MIDDLE.items():
            name = new + name[len(old) :] if name.startswith(old) else name
        weights[name] = tensor
    return weights, True
