"""On-policy training data: text that a target writes with the settings it will be used with."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.models.model_checks import check_finite_weights
from mmspec.text.generation import generate
from mmspec.train.parallel import join_processes, own_share
from mmspec.train.record import Ask
from mmspec.utils.files import write_json


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How text is written. `temperatures` alternate from chunk to chunk of `chunk` prompts."""

    temperatures: Sequence[float] = (0.0, 1.0)
    top_k: int | None = None
    top_p: float | None = None
    opening: int = 48  # most values of a prompt
    new: int = 208  # most values the target adds
    chunk: int = 64
    seed: int = 0


def write_own_text(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], plan: Writing, folder: Path) -> tuple[Tensor, Tensor]:
    """Return windows [N, W] of ids, in a fixed random order, and which of them the target wrote [N, W] bool; padding comes last.

    One file a chunk is kept in `folder`, so that a stopped run resumes. Several processes share the chunks, and all return all windows.
    ValueError if the folder holds text of other settings, or a weight of `model` is not finite.
    """
    check_finite_weights(model)
    _same_settings(folder / "writing.json", plan, len(prompts))

    def written(first: int, end: int, temperature: float) -> tuple[Tensor, Tensor]:
        return _write(model, tokenizer, [list(ids[: plan.opening]) for ids in prompts[first:end]], plan, temperature, first)

    ids, own = _in_chunks(written, "own", len(prompts), plan, folder)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(plan.seed))
    return ids[order], own[order]


def write_own_answers(model: Any, ask: Ask, requests: int, plan: Writing, folder: Path) -> tuple[Tensor, Tensor]:
    """What the model answers to `requests` requests that may hold pictures or sound: ids [N, new], zeros behind, and lengths [N].

    In the order of the requests: `record_answers` asks for them once more. Files are kept as `write_own_text` keeps them.
    """
    check_finite_weights(model)
    _same_settings(folder / "answering.json", plan, requests)

    def written(first: int, end: int, temperature: float) -> tuple[Tensor, Tensor]:
        inputs = {key: value.to(model.device) for key, value in ask(first, end).items()}
        out = generate(model, inputs, **_settings(plan, temperature, first))
        answers, lengths = out.sequences.cpu(), out.lengths.cpu()
        real = torch.arange(answers.shape[1]) < lengths[:, None]
        return torch.nn.functional.pad(answers * real, (0, plan.new - answers.shape[1])), lengths

    return _in_chunks(written, "answers", requests, plan, folder)


def _in_chunks(
    written: Callable[[int, int, float], tuple[Tensor, Tensor]], name: str, count: int, plan: Writing, folder: Path
) -> tuple[Tensor, Tensor]:
    """What `written` gives for (first, end, temperature), a chunk at a time, each kept in a file; every process makes its share."""
    starts = range(0, count, plan.chunk)
    for first in own_share(starts):
        path, end = folder / f"{name}-{first}.pt", min(first + plan.chunk, count)
        if not path.exists():
            temperature = plan.temperatures[first // plan.chunk % len(plan.temperatures)]
            torch.save(written(first, end, temperature), path.with_suffix(".tmp"))
            path.with_suffix(".tmp").rename(path)
            print(f"written {end} of {count} windows at temperature {temperature:g}", flush=True)
    join_processes().wait_for_everyone()
    pieces = [torch.load(folder / f"{name}-{first}.pt") for first in starts]
    one, other = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return one, other


def _same_settings(path: Path, plan: Writing, prompts: int) -> None:
    settings, here = {**asdict(plan), "temperatures": list(plan.temperatures), "prompts": prompts}, join_processes()
    path.parent.mkdir(parents=True, exist_ok=True)
    if here.is_main_process and not path.exists():
        write_json(path, settings)
    here.wait_for_everyone()
    found = json.loads(path.read_text(encoding="utf-8"))
    for key, value in settings.items():
        if found.get(key) != value:
            raise ValueError(
                f"{path.parent} holds text written with {key} {found.get(key)}, not {value}: delete it or choose another folder"
            )


def _settings(plan: Writing, temperature: float, first: int) -> dict[str, Any]:
    stopping = {"max_new_tokens": plan.new, "seed": plan.seed + first}
    return {"temperature": temperature, "top_k": plan.top_k, "top_p": plan.top_p, **stopping}


def _write(model: Any, tokenizer: Any, chunk: list[list[int]], plan: Writing, temperature: float, first: int) -> tuple[Tensor, Tensor]:
    batch = tokenizer.pad({"input_ids": chunk}, return_tensors="pt").to(model.device)
    out = generate(model, batch, **_settings(plan, temperature, first))
    ids = torch.full((len(chunk), plan.opening + plan.new), tokenizer.pad_token_id or 0)
    own = torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, new, size) in enumerate(zip(chunk, out.sequences.cpu(), out.lengths.tolist(), strict=True)):
        end = len(prompt) + size
        ids[row, : len(prompt)] = torch.tensor(prompt)
        ids[row, len(prompt) : end] = new[:size]
        own[row, len(prompt) : end] = True
    return ids, own
