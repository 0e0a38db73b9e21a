"""Estimates of the memory and disk space that the training of a drafter takes, before it begins."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate import PartialState

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
        disk: the recording; 0 for none.
        disk_free: disk space that is free where the recording will be.
        remedy: what to do about too little memory.
    """

    loaded: int
    needed: Mapping[str, int]
    available: int
    disk: int = 0
    disk_free: int = 0
    remedy: str = "take fewer rows a step or a smaller vocabulary"

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_gigabytes(size)}" for name, size in self.needed.items())
        disk = f"; disk: states {_gigabytes(self.disk)} of {_gigabytes(self.disk_free)} free" if self.disk else ""
        return (
            f"memory: target {_gigabytes(self.loaded)}, loaded; about {_gigabytes(sum(self.needed.values()))} more of "
            f"{_gigabytes(self.available)} available: {parts}{disk}"
        )

    def announce(self, here: PartialState, force: bool) -> None:
        """Print the estimate, in one of the processes `here`. Raise ValueError if more is needed than there is, unless by `force`."""
        here.print(self, flush=True)
        if not force:
            self.check()

    def check(self) -> None:
        """Raise ValueError if more is needed than there is."""
        needed = sum(self.needed.values())
        if needed > self.available:
            raise ValueError(
                f"training needs about {_gigabytes(needed)} of memory, but {_gigabytes(self.available)} are available: "
                f"{self.remedy}, or --force-memory"
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
    inside = _activations(config, size.levels * size.length)
    needed = {
        "drafter, gradients and optimiser": _TRAINED * weights + rows,
        "logits of a chunk": 4 * _COPIES * min(LOGITS, size.levels * columns * values),
        "activations of a step": 4 * columns * (size.levels * inside + (recorded + 1) * hidden),
    }
    window = size.length * (recorded * hidden * STATE_DTYPES[size.states].itemsize + 13)
    place = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    return TrainingMemory(_loaded(target), needed, _available(device), size.windows * window, shutil.disk_usage(place).free)


def small_model_memory(model: Any, target: Any, *, rows: int, length: int, logits: int | None = None, kept: int = 0) -> TrainingMemory:
    """Estimate what the training of a small language model on a target's text takes.

    Args:
        model: the small model, loaded.
        target: the transformers model it is for, loaded.
        rows: windows a step.
        length: values of a window.
        logits: logits of one model that are held at once; None: those of all values of a step.
        kept: bytes of the target's states that are kept.

    Returns:
        The estimate, beside what is available now.
    """
    config, head = model.config.get_text_config(decoder=True), model.get_output_embeddings().weight
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    logits = rows * length * len(head) if logits is None else logits
    needed = {
        "gradients and optimiser": (_TRAINED - 4) * trained + (2 * 4 * head.numel() if head.requires_grad else 0),  # summed over chunks
        "logits of a chunk": 4 * _COPIES * logits,
        "activations of a step": 4 * rows * length * config.num_hidden_layers * _activations(config, length),
    }
    needed |= {"the target's states": kept} if kept else {}
    remedy = "take fewer --rows or shorter windows"
    return TrainingMemory(_loaded(target), needed, _available(torch.device(target.device)), remedy=remedy)


def _activations(config: Any, seen: int) -> int:
    """Numbers that a column keeps for the backward pass in a layer in which it sees `seen` columns."""
    inside = _WIDTHS * config.hidden_size + _WIDTHS // 2 * (getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    return inside + 2 * getattr(config, "num_attention_heads", 0) * seen


def _loaded(model: Any) -> int:
    """Bytes of the weights that are in memory."""
    return sum(p.numel() * p.itemsize for p in model.parameters() if not p.is_meta)


def _available(device: torch.device) -> int:
    """Bytes that are free on a device; for one that cannot say, this process's part of the machine's."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
