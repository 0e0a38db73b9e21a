"""The judge of mini vision's pictures: a small convolutional classifier whose last layer but one serves Frechet and kernel distances."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.utils.fp16 import float_weights, save_half


class Classifier(nn.Module):
    """Pictures [B, C, size, size] in [-1, 1] to logits over `labels`; `features` are the last layer but one.

    Three convolutions that halve the size (of pictures below 32 pixels, the first does not), one that does not, the means of a 4x4 grid
    and a layer of `wide` features.
    """

    def __init__(
        self,
        *,
        size: int,
        colours: int,
        labels: Sequence[str],
        widths: Sequence[int] = (16, 32, 64),
        wide: int = 64,
        dropout: float = 0.0,
    ):
        super().__init__()
        if len(labels) < 2:
            raise ValueError(f"{len(labels)} labels: a classifier needs two at least")
        self.config = {"size": size, "colours": colours, "labels": list(labels), "widths": list(widths), "wide": wide, "dropout": dropout}
        ends, strides = [*widths, widths[-1]], [2 if size >= 32 else 1] + [2] * (len(widths) - 1) + [1]
        steps = zip([colours, *widths], ends, strides, strict=True)
        self.body = nn.Sequential(*(layer for entry in steps for layer in _step(*entry)), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.last = nn.Sequential(nn.Linear(16 * ends[-1], wide), nn.SiLU())
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(wide, len(labels))

    @property
    def labels(self) -> list[str]:
        """Names of the classes."""
        return self.config["labels"]

    def features(self, pixels: Tensor) -> Tensor:
        """[B, wide]: what the last layer but one says of pictures [B, C, size, size]."""
        wanted = (self.config["colours"], self.config["size"], self.config["size"])
        if tuple(pixels.shape[1:]) != wanted:
            raise ValueError(f"pictures are {tuple(pixels.shape[1:])}: this classifier takes {wanted}; resize them")
        return self.last(self.body(pixels))

    def forward(self, pixels: Tensor) -> Tensor:
        """Return logits [B, classes] of `pixels` [B, C, H, W]."""
        return self.head(self.dropout(self.features(pixels)))  # [B, labels]


def _step(before: int, after: int, stride: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    return nn.Conv2d(before, after, 3, stride, padding=1), nn.GroupNorm(4, after), nn.SiLU()


@torch.no_grad()
def classify(model: Classifier, pixels: Tensor, batch: int = 256) -> tuple[Tensor, Tensor]:
    """Logits [B, labels] and features [B, F] of pictures [B, C, H, W] in [-1, 1], some at a time."""
    found = torch.cat([model.features(some.to(model.head.weight.device)) for some in pixels.split(batch)])
    return model.head(found), found


def save_classifier(model: Classifier, folder: Path) -> None:
    """Write config.json and model.safetensors (float16) to `folder`, whole or not at all."""
    config = json.dumps(model.config, indent=1) + "\n"
    save_half(model, folder, lambda inside: (inside / "config.json").write_text(config, encoding="utf-8"))


def load_classifier(folder: Path) -> Classifier:
    """The classifier in `folder`, in float32 and ready to judge. FileNotFoundError when it is not there."""
    if not (folder / "model.safetensors").exists():
        raise FileNotFoundError(
            f"no classifier in {folder}: make it with mmspec recipe vision/train_classifier.py -- --set SET --out {folder}"
        )
    model = Classifier(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
    model.load_state_dict(float_weights(folder))
    return model.eval()
