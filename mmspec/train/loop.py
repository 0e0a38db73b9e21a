"""Training loop of all small models: AdamW, warm-up and cosine, resumable, with atomic checkpoints."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from rich.progress import BarColumn, Progress, TimeRemainingColumn
from torch import Tensor, nn

from mmspec.train.held_out import HeldOut
from mmspec.train.parallel import join_processes
from mmspec.train.states.identity import check_identity, training_identity
from mmspec.utils.screen import text_column
from mmspec.utils.weights import first_not_finite


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Settings of a training run.

    Args:
        steps: optimiser steps.
        lr: peak learning rate; it decays to `lr / 10` by a cosine.
        warmup: steps of linear warm-up.
        weight_decay: weight decay of matrices.
        clip: largest norm of the gradient.
        checkpoint_every: steps between checkpoints.
        mixed_precision: as in accelerate: "no", "bf16" or "fp16".
        rates: multiples of `lr` by the beginning of a parameter's name.

    Raises:
        ValueError: for fewer than one step.
    """

    steps: int
    lr: float
    warmup: int = 50
    weight_decay: float = 0.1
    clip: float = 1.0
    checkpoint_every: int = 100
    mixed_precision: str = "no"
    rates: Mapping[str, float] = field(default_factory=dict)  # by the beginning of a parameter's name: its rate as a multiple of `lr`

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"Fit.steps is {self.steps}: training needs at least one step")

    def rate(self, step: int) -> float:
        """The learning rate at `step`, as a fraction of `lr`."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(done, 1.0)))


def fit(
    model: nn.Module,
    loss: Callable[[nn.Module, int], Tensor],
    plan: Fit,
    checkpoint: Path,
    *,
    title: str = "train",
    validate: Callable[[nn.Module, int], object] | None = None,
    held: HeldOut | None = None,
    resumed: Callable[[nn.Module, int], object] | None = None,
) -> list[float]:
    """Train `model` in place and return the loss of every step run by this call.

    `loss(model, turn)` gives the scalar loss of one batch and must draw that batch from `turn` alone: a run killed and resumed
    from `checkpoint` then ends with the same weights as an undisturbed one. The checkpoint notes the first weights of `model`, `plan` and
    all that `loss` reads; one of other data, another target or other settings is refused. `resumed(model, step)` is called with what a
    checkpoint held. Under `torchrun` and `accelerate launch` step s of process r
    of W has the turn s * W + r, and gradients are averaged over the processes when `loss` calls the model; the losses returned are
    averages, too. The first process alone saves and runs `validate(model, step)`, at every checkpoint; `held` says which examples it
    judges by, of which `loss` draws none.

    Raises:
        FloatingPointError: naming the step and what is not finite: the loss, a gradient or a weight. Nothing of that step is saved.
        ValueError: if `checkpoint` belongs to another training, naming what differs, or what it holds is not finite; and for `validate`
            without `held`.
    """
    if validate is not None and held is None:
        raise ValueError("validate is given without held: say by mmspec.train.held_out which examples are held out")
    identity = training_identity(model, loss, plan)
    accelerator = _accelerator(plan)
    optimizer = torch.optim.AdamW(_groups(model, plan), lr=plan.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, plan.rate)
    model, optimizer = accelerator.prepare(model, optimizer)
    start = _load(checkpoint, identity, accelerator.unwrap_model(model), optimizer, schedule)
    if resumed is not None and start and accelerator.is_main_process:
        _in_eval(resumed, accelerator.unwrap_model(model), start)
    losses: list[float] = []
    columns = (
        text_column(),
        BarColumn(),
        text_column("{task.completed}/{task.total} loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    model.train()
    with Progress(*columns, disable=not accelerator.is_main_process) as progress:
        bar = progress.add_task(title, total=plan.steps, completed=start, loss=float("nan"))
        for step in range(start, plan.steps):
            with accelerator.autocast():
                value = loss(model, step * accelerator.num_processes + accelerator.process_index)
            accelerator.backward(value)
            value: Tensor = accelerator.reduce(value.detach(), "mean")  # pyright: ignore[reportAssignmentType]
            norm = accelerator.clip_grad_norm_(model.parameters(), plan.clip)
            losses.append(_finite_loss(step + 1, value, norm, accelerator.unwrap_model(model), accelerator.scaler))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            progress.update(bar, advance=1, loss=losses[-1])
            if accelerator.is_main_process and ((step + 1) % plan.checkpoint_every == 0 or step + 1 == plan.steps):
                _save(checkpoint, identity, step + 1, accelerator.unwrap_model(model), optimizer, schedule)
                if validate is not None:
                    _in_eval(validate, accelerator.unwrap_model(model), step + 1)
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model, keep_fp32_wrapper=False).eval()  # from here on it computes as its class does, in its own precision
    if accelerator.num_processes > 1:
        accelerator.free_memory()  # the wrapper's hooks on the parameters would disturb a second training
    return losses


def _accelerator(plan: Fit) -> Accelerator:
    here = join_processes()
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)  # levels that are not unrolled, parts that are frozen at first
    return Accelerator(mixed_precision=plan.mixed_precision, cpu=here.device.type == "cpu", kwargs_handlers=[unused])


def _finite_loss(step: int, loss: Tensor, norm: Any, model: nn.Module, scaler: Any) -> float:
    """Return the loss as a number. FloatingPointError unless it and the gradient are finite.

    A scaler of half precision skips steps whose gradient overflows, and lowers its scale: only at a scale below 1 is that an error.
    """
    value = loss.item()
    if not math.isfinite(value):
        raise FloatingPointError(f"the loss of step {step} is {value}: training stopped; lower the rate, or train in another precision")
    if not math.isfinite(float(norm)) and (scaler is None or scaler.get_scale() < 1):
        name = first_not_finite((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
        raise FloatingPointError(
            f"the gradient of {name or 'all weights together'} holds NaN or infinity at step {step}: training stopped; lower the rate, "
            "or train in another precision"
        )
    return value


def _in_eval(validate: Callable[[nn.Module, int], object], model: nn.Module, step: int) -> None:
    model.eval()
    mixed = vars(model).pop("forward", None)  # accelerate's, in the training's precision
    try:
        with torch.no_grad():
            validate(model, step)
    finally:
        if mixed is not None:
            model.forward = mixed
    model.train()


def _beginnings(names: Sequence[str]) -> list[str]:
    return sorted({name.partition(".")[0] + "." for name in names})


def _groups(model: nn.Module, plan: Fit) -> list[dict]:
    """Matrices decay; norms, biases and other vectors do not. Parameters with a rate of their own stand apart."""
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    names = [name for name, _ in model.named_parameters()]
    for start in plan.rates:
        if not any(name.startswith(start) for name in names):
            raise ValueError(f"rates has {start!r}, which begins no parameter's name; names begin with {', '.join(_beginnings(names))}")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate = next((rate for start, rate in plan.rates.items() if name.startswith(start)), 1.0)
            groups.setdefault((rate, parameter.dim() > 1), []).append(parameter)
    return [
        {"params": found, "lr": plan.lr * rate, "weight_decay": plan.weight_decay if decays else 0.0}
        for (rate, decays), found in groups.items()
    ]


def _save(path: Path, identity: dict[str, str], step: int, model, optimizer, schedule) -> None:
    broken = first_not_finite(model.state_dict().items())
    if broken is not None:
        raise FloatingPointError(f"weight {broken} holds NaN or infinity after step {step}: training stopped, and {path} is not written")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save({"identity": identity, **state}, temporary)
    os.replace(temporary, path)


def _load(path: Path, identity: dict[str, str], model, optimizer, schedule) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    _same_model(path, state["model"], model.state_dict())
    moments = ((f"{part} of the optimiser", moment) for each in state["optimizer"]["state"].values() for part, moment in each.items())
    broken = first_not_finite((name, tensor) for name, tensor in (*state["model"].items(), *moments) if isinstance(tensor, Tensor))
    if broken is not None:
        raise ValueError(f"{path}: tensor {broken} holds NaN or infinity; delete it and train again")
    check_identity(path, state.get("identity", {}), identity)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    return state["step"]


def _same_model(path: Path, found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """ValueError unless a checkpoint is of this very model."""
    for name in {**wanted, **found}:
        shapes = [tuple(state[name].shape) if name in state else "missing" for state in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{path} is of another run: tensor {name} is {shapes[0]} there and {shapes[1]} here; delete it or choose another folder"
            )
