"""Text that a target writes under the settings it will be used with: what its drafters learn from (on-policy data)."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.text.generation import generate


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How text is written. `temperatures` take turns, chunk by chunk of `chunk` prompts."""

    temperatures: Sequence[float] = (0.0, 1.0)
    top_k: int | None = None
    top_p: float | None = None
    opening: int = 48  # most values of a prompt
    new: int = 208  # most values the target adds
    chunk: int = 64
    seed: int = 0


def write_own_text(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], plan: Writing, folder: Path) -> tuple[Tensor, Tensor]:
    """Windows [N, W] of ids, in a fixed random order, and which of them the target wrote [N, W] bool; padding comes last.

    A file a chunk is kept in `folder`, so that a stopped run goes on. ValueError when the folder holds text of other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _same_settings(folder / "writing.json", {**asdict(plan), "temperatures": list(plan.temperatures), "prompts": len(prompts)})
    pieces = []
    for first in range(0, len(prompts), plan.chunk):
        path = folder / f"own-{first}.pt"
        if not path.exists():
            heat = plan.temperatures[first // plan.chunk % len(plan.temperatures)]
            chunk = [list(ids[: plan.opening]) for ids in prompts[first : first + plan.chunk]]
            torch.save(_write(model, tokenizer, chunk, plan, heat, first), path.with_suffix(".tmp"))
            path.with_suffix(".tmp").rename(path)
            print(f"written {first + len(chunk)} of {len(prompts)} windows at temperature {heat:g}", flush=True)
        pieces.append(torch.load(path))
    ids, own = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(plan.seed))
    return ids[order], own[order]


def _same_settings(path: Path, settings: dict[str, Any]) -> None:
    if not path.exists():
        path.write_text(json.dumps(settings), encoding="utf-8")
        return
    found = json.loads(path.read_text(encoding="utf-8"))
    for key, value in settings.items():
        if found.get(key) != value:
            raise ValueError(
                f"{path.parent} holds text written with {key} {found.get(key)}, not {value}: delete it or choose another folder"
            )


def _write(model: Any, tokenizer: Any, chunk: list[list[int]], plan: Writing, heat: float, first: int) -> tuple[Tensor, Tensor]:
    batch = tokenizer.pad({"input_ids": chunk}, return_tensors="pt").to(model.device)
    settings = {"temperature": heat, "top_k": plan.top_k, "top_p": plan.top_p, "max_new_tokens": plan.new}
    out = generate(model, batch, seed=plan.seed + first, **settings)
    ids = torch.full((len(chunk), plan.opening + plan.new), tokenizer.pad_token_id or 0)
    own = torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, new, size) in enumerate(zip(chunk, out.sequences.cpu(), out.lengths.tolist(), strict=True)):
        end = len(prompt) + size
        ids[row, : len(prompt)] = torch.tensor(prompt)
        ids[row, len(prompt) : end] = new[:size]
        own[row, len(prompt) : end] = True
    return ids, own
