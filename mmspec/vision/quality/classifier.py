"""The judge of pictures: a small convolutional classifier of classes or of several attributes at once.

Its last layer but one serves Frechet and kernel distances.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.utils.fp16 import float_weights, save_half


class Classifier(nn.Module):
    """Pictures [B, C, size, size] in [-1, 1] to logits over `labels`; `features` are the last layer but one.

    With `groups` the labels are those of several attributes, one attribute after another: `groups` says how many values each has, and
    every attribute is a choice of its own. Labels are then named "attribute: value".

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
        groups: Sequence[int] | None = None,
    ):
        super().__init__()
        if len(labels) < 2:
            raise ValueError(f"{len(labels)} labels: a classifier needs two at least")
        if groups is not None and sum(groups) != len(labels):
            raise ValueError(f"groups {list(groups)} add up to {sum(groups)}, and there are {len(labels)} labels")
        self.config = {"size": size, "colours": colours, "labels": list(labels), "widths": list(widths), "wide": wide, "dropout": dropout}
        if groups is not None:
            self.config["groups"] = list(groups)
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

    @property
    def groups(self) -> list[int]:
        """Number of labels of each attribute; of a classifier of classes one number."""
        return self.config.get("groups", [len(self.labels)])

    @property
    def values(self) -> dict[str, list[str]]:
        """Values of each attribute by its name; of a classifier of classes one attribute, "class"."""
        if "groups" not in self.config:
            return {"class": self.labels}
        found: dict[str, list[str]] = {}
        for label in self.labels:
            name, _, value = label.rpartition(": ")
            found.setdefault(name, []).append(value)
        return found

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


def attribute_loss(model: Classifier, logits: Tensor, wanted: Tensor, smoothing: float = 0.05) -> Tensor:
    """Return the mean cross-entropy of the attributes.

    Args:
        model: the classifier.
        logits: [B, labels].
        wanted: LongTensor [B, A], the value of each attribute, a number of its own values.
        smoothing: label smoothing.
    """
    parts = zip(logits.split(model.groups, 1), wanted.unbind(1), strict=True)
    return torch.stack([F.cross_entropy(part, value, label_smoothing=smoothing) for part, value in parts]).mean()


def seen_values(model: Classifier, logits: Tensor) -> Tensor:
    """Return the most likely value of each attribute, LongTensor [B, A], from logits [B, labels]."""
    return torch.stack([part.argmax(1) for part in logits.split(model.groups, 1)], 1)


def save_classifier(model: Classifier, folder: Path) -> None:
    """Write config.json and model.safetensors (float16) to `folder`, whole or not at all."""
    config = json.dumps(model.config, indent=1) + "\n"
    save_half(model, folder, lambda inside: (inside / "config.json").write_text(config, encoding="utf-8"))


def load_classifier(folder: Path) -> Classifier:
    """The classifier in `folder`, in float32 and ready to judge. FileNotFoundError when it is not there."""
    if not (folder / "model.safetensors").exists():
        raise FileNotFoundError(
            f"no classifier in {folder}: make it with mmspec recipe vision/train_classifier.py -- --pictures PICTURES --out {folder.parent}"
        )
    model = Classifier(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
    model.load_state_dict(float_weights(folder))
    return model.eval()
