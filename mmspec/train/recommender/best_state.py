"""Training that keeps the state which ranks best on validation, and resumes after a kill with the same weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.train.held_out import HeldOut
from mmspec.train.loop import Fit, fit

Rank = Callable[[nn.Module], dict[str, float]]


def fit_best(
    model: nn.Module,
    loss: Callable[[nn.Module, int], Tensor],
    plan: Fit,
    work: Path,
    rank: Rank,
    held: HeldOut,
    by: str = "NDCG@10",
) -> dict:
    """Train a model, and leave it with the weights of the checkpoint that ranks best.

    A state that a kill left unvalidated is validated before training goes on.

    Args:
        model: the model.
        loss: the loss of a turn, as `mmspec.train.fit` takes it.
        plan: settings of the training.
        work: folder for checkpoint.pt, best.pt and validation.jsonl.
        rank: measures a model; called at every checkpoint.
        held: what `rank` measures on.
        by: the measure that decides.

    Returns:
        `step` of the best state and its measures.
    """
    work.mkdir(parents=True, exist_ok=True)
    checkpoint, best, notes = work / "checkpoint.pt", work / "best.pt", work / "validation.jsonl"

    def validate(example: nn.Module, step: int) -> None:
        facts = {"step": step, **rank(example)}
        print(json.dumps(facts), flush=True)
        if not best.exists() or _read(best)["facts"][by] < facts[by]:
            temporary = best.with_suffix(".tmp")
            torch.save({"facts": facts, "model": example.state_dict()}, temporary)
            temporary.replace(best)
        with notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")

    if not checkpoint.exists():  # of a run that is begun again
        best.unlink(missing_ok=True)
        notes.unlink(missing_ok=True)
    resumed = lambda example, step: step in _noted(notes) or validate(example, step)  # noqa: E731
    fit(model, loss, plan, checkpoint, title=work.name, validate=validate, held=held, resumed=resumed)
    kept = _read(best)
    model.load_state_dict(kept["model"])
    return kept["facts"]


def _read(path: Path) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", weights_only=True)


def _noted(path: Path) -> set[int]:
    return {json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()} if path.exists() else set()
