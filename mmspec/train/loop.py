"""One training loop for everything small that mmspec trains: AdamW, warm-up and cosine, resumable, atomic checkpoints."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a training run is: `steps` optimiser steps at peak `lr`, `warmup` steps of linear warm-up, then a cosine to `lr / 10`."""

    steps: int
    lr: float
    warmup: int = 50
    weight_decay: float = 0.1
    clip: float = 1.0
    checkpoint_every: int = 100
    mixed_precision: str = "no"

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"Fit.steps is {self.steps}: training needs at least one step")

    def rate(self, step: int) -> float:
        """The learning rate at `step`, as a fraction of `lr`."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(done, 1.0)))


def fit(model: nn.Module, loss: Callable[[nn.Module, int], Tensor], plan: Fit, checkpoint: Path, *, title: str = "train") -> list[float]:
    """Train `model` in place and return the loss of every step run by this call.

    `loss(model, step)` gives the scalar loss of one batch and must draw that batch from `step` alone: a run killed and resumed
    from `checkpoint` then ends with the same weights as an undisturbed one. Works unchanged under `accelerate launch`.
    """
    accelerator = Accelerator(mixed_precision=plan.mixed_precision)
    optimizer = torch.optim.AdamW(_groups(model, plan.weight_decay), lr=plan.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, plan.rate)
    model, optimizer = accelerator.prepare(model, optimizer)
    start = _load(checkpoint, accelerator.unwrap_model(model), optimizer, schedule)
    losses: list[float] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    model.train()
    with Progress(*columns, disable=not accelerator.is_main_process) as progress:
        bar = progress.add_task(title, total=plan.steps, completed=start, loss=float("nan"))
        for step in range(start, plan.steps):
            with accelerator.autocast():
                value = loss(model, step)
            accelerator.backward(value)
            accelerator.clip_grad_norm_(model.parameters(), plan.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(value.item())
            progress.update(bar, advance=1, loss=losses[-1])
            if accelerator.is_main_process and ((step + 1) % plan.checkpoint_every == 0 or step + 1 == plan.steps):
                _save(checkpoint, step + 1, accelerator.unwrap_model(model), optimizer, schedule)
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).eval()
    return losses


def _groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Matrices decay; norms, biases and other vectors do not."""
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    vectors = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def _save(path: Path, step: int, model, optimizer, schedule) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save(state, temporary)
    os.replace(temporary, path)


def _load(path: Path, model, optimizer, schedule) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    return state["step"]
