"""Estimates of the memory and disk space that the training of a drafter takes, before it begins."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from mmspec.models.stack import numbered, stack
from mmspec.train.states.disk import STATE_DTYPES

LOGITS = 2**25
"""Logits of a model that stand in memory at once in training and recording; larger sets of positions are taken in chunks."""
_COPIES = 6  # of the logits of a chunk: both sides' logits and log-probabilities, and gradients
_WIDTHS = 24  # activations a column keeps for the backward pass, in hidden sizes; and as many halves of its MLP's
_TRAINED = 16  # bytes a trained number takes: float32 weight, gradient and two moments


def chunk_of_positions(values: int, logits: int = LOGITS) -> int:
    """Return how many positions are taken at once, so that their logits over `values` are about `logits` numbers."""
    return max(1, logits // values)


@dataclass(frozen=True, kw_only=True)
class TrainingSize:
    """How much is trained at once.

    Args:
        windows: windows that are recorded.
        length: values of a window.
        rows: windows a step.
        levels: levels that are unrolled.
        states: dtype of the states on disk, one of `STATE_DTYPES`.
    """

    windows: int
    length: int
    rows: int
    levels: int
    states: str


@dataclass(frozen=True)
class TrainingMemory:
    """An estimate in bytes, by what takes them.

    Args:
        loaded: the target's weights, in memory already.
        needed: what training takes besides.
        available: memory that is free on the device.
        disk: the recording.
        disk_free: disk space that is free where the recording will be.
    """

    loaded: int
    needed: Mapping[str, int]
    available: int
    disk: int
    disk_free: int

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_gigabytes(size)}" for name, size in self.needed.items())
        return (
            f"memory: target {_gigabytes(self.loaded)}, loaded; about {_gigabytes(sum(self.needed.values()))} more of "
            f"{_gigabytes(self.available)} available: {parts}; disk: states {_gigabytes(self.disk)} of {_gigabytes(self.disk_free)} free"
        )

    def check(self) -> None:
        """Raise ValueError if more is needed than there is."""
        needed = sum(self.needed.values())
        if needed > self.available:
            raise ValueError(
                f"training needs about {_gigabytes(needed)} of memory, but {_gigabytes(self.available)} are available: "
                "take fewer rows a step or a smaller vocabulary, or --force-memory"
            )
        if self.disk > self.disk_free:
            raise ValueError(
                f"the states need about {_gigabytes(self.disk)} of disk space, but {_gigabytes(self.disk_free)} are free: "
                "take fewer windows, --states bfloat16 or another --work, or --force-memory"
            )


def training_memory(net: Any, target: Any, size: TrainingSize, folder: Path) -> TrainingMemory:
    """Estimate what the training of `net` takes.

    Args:
        net: the drafter net.
        target: the transformers model it is for, loaded.
        size: how much is trained at once.
        folder: where the states are recorded.

    Returns:
        The estimate, beside what is available now.
    """
    config, device = target.config.get_text_config(decoder=True), torch.device(target.device)
    hidden, layers = config.hidden_size, len(stack(target))
    recorded = len({*numbered(net.reads, layers), layers})
    columns, weights = size.rows * size.length, sum(p.numel() for p in net.parameters() if p.requires_grad)
    known = getattr(net, "vocabulary", None)
    values = config.vocab_size if known is None else len(known)
    rows = 0 if known is None else 2 * 4 * hidden * values  # of the head: the drafter's, and for the target's distribution
    inside = _WIDTHS * hidden + _WIDTHS // 2 * (getattr(config, "intermediate_size", None) or 4 * hidden)
    seen = 2 * config.num_attention_heads * size.levels * size.length  # weights of attention
    needed = {
        "drafter, gradients and optimiser": _TRAINED * weights + rows,
        "logits of a chunk": 4 * _COPIES * min(LOGITS, size.levels * columns * values),
        "activations of a step": 4 * columns * (size.levels * (inside + seen) + (recorded + 1) * hidden),
    }
    window = size.length * (recorded * hidden * STATE_DTYPES[size.states].itemsize + 13)
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    loaded = sum(p.numel() * p.itemsize for p in target.parameters() if not p.is_meta)
    return TrainingMemory(loaded, needed, _available(device), size.windows * window, shutil.disk_usage(place).free)


def _available(device: torch.device) -> int:
    """Bytes that are free on a device; those of the machine for one that cannot say."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
