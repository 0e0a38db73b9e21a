"""NextStep-1 from the folders of its published checkpoints: the model's, and the autoencoder's."""

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.models.checkpoint_loading import loaded
from mmspec.utils.names import shown
from mmspec.vision.checkpoints.vqgan import ConvolutionalDecoder, checkpoint_tensors
from mmspec.vision.continuous.nextstep import NextStep, nextstep_config
from mmspec.vision.continuous.nextstep_pictures import NextStepPictures
from mmspec.vision.families.base import Size, as_pictures

AUTOENCODER = ("checkpoint.pt", "checkpoint.safetensors", "model.safetensors")


class LatentDecoder(ConvolutionalDecoder):
    """The decoder of NextStep-1's autoencoder.

    Args:
        weights: tensors `decoder.*`.
        scaling, shift: of the latents, `scaling_factor` and `shift_factor` of its config.
    """

    def __init__(self, weights: Any, scaling: float = 1.0, shift: float = 0.0):
        super().__init__(weights)
        self.scaling, self.shift = scaling, shift

    @staticmethod
    def load(folder: str | Path) -> "LatentDecoder":
        """Read the folder of the autoencoder.

        Args:
            folder: with `config.json` and `checkpoint.pt`.

        Returns:
            The decoder.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: for files without such a decoder.
        """
        where = Path(folder).expanduser()
        path = next((where / name for name in AUTOENCODER if (where / name).is_file()), None)
        if path is None or not (where / "config.json").is_file():
            raise FileNotFoundError(f"{where} has no autoencoder: give the folder with config.json and {AUTOENCODER[0]}")
        fields = json.loads((where / "config.json").read_text(encoding="utf-8"))
        try:
            return LatentDecoder(checkpoint_tensors(path), float(fields.get("scaling_factor", 1.0)), float(fields.get("shift_factor", 0.0)))
        except ValueError as error:
            raise ValueError(f"{path} holds no decoder of NextStep-1's autoencoder: {error}") from None

    @torch.no_grad()
    def __call__(self, latents: Tensor) -> list[Image.Image]:
        """Decode latents [B, channels, h, w] to PIL pictures, one by one."""
        given = latents.to(self.weights["decoder.conv_in.weight"]) / self.scaling + self.shift
        return [picture for each in given for picture in as_pictures(self.decoded(each[None]))]


def load_nextstep(
    folder: str | Path,
    *,
    decoder: str | Path | None = None,
    dtype: str = "float32",
    device: torch.device | str = "cpu",
    size: Size = 256,
    negative: str = "",
    normalised: bool = True,
) -> NextStepPictures:
    """Load NextStep-1 for `mmspec.vision.generate`.

    Args:
        folder: of the model: `config.json`, safetensors, and the tokenizer's files.
        decoder: the folder of the autoencoder; by default `vae` in `folder`, if there is one.
        dtype: "float32", "bfloat16" or "float16". States of the head's chain stay float32.
        device: where it runs.
        size, negative, normalised: as in `NextStepPictures`.

    Returns:
        The model.

    Raises:
        FileNotFoundError: if there is no config.json.
        ValueError: for checkpoints that do not fit.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    where = Path(folder).expanduser()
    if not (where / "config.json").is_file():
        raise FileNotFoundError(f"{where} has no config.json: give the folder of a NextStep-1 checkpoint")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ValueError(f"unknown dtype {shown(dtype)}; valid: float32, bfloat16, float16")
    config = nextstep_config(json.loads((where / "config.json").read_text(encoding="utf-8")))
    try:
        model = loaded(NextStep, where, config=config, dtype=getattr(torch, dtype)).to(device).eval()
        if (where / "tokenizer.json").is_file():
            tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(where)
        else:
            tokenizer = AutoTokenizer.from_pretrained(where, config=config, trust_remote_code=False)  # Qwen's vocabulary and merges
    except (OSError, ValueError, RecursionError, KeyError) as error:
        lines = str(error).strip().splitlines()
        raise ValueError(f"model {where} cannot be loaded: {lines[0] if lines else type(error).__name__}") from None
    pictures = LatentDecoder.load(where / "vae") if decoder is None and (where / "vae").is_dir() else None
    pictures = pictures if decoder is None else LatentDecoder.load(decoder)
    return NextStepPictures(
        model, tokenizer, None if pictures is None else pictures.to(device), size=size, negative=negative, normalised=normalised
    )
