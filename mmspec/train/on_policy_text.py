"""On-policy training data: text that a target writes with the settings it will be used with."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmspec.models.model_checks import check_finite_weights
from mmspec.text.generation import generate
from mmspec.train.held_out import HeldOut, hold_out
from mmspec.train.parallel import join_processes, own_share
from mmspec.train.record import Ask
from mmspec.train.states.identity import checksum, claim_folder, target_identity, tokenizer_identity

_FLAGS = {
    "temperatures": "--temperature",
    "top_p": "--top-p",
    "opening": "--opening",
    "new": "--new",
    "chunk": "--chunk or --rows",
    "prompts": "--windows or --chunks",
    "target": "--model",
    "target config": "--model",
    "target weights": "--model",
    "dtype": "--dtype",
    "tokenizer": "--model",
    "prompt ids": "--prompts or --chat",
    "requests": "--prompts or --pictures",
}
"""The option of the recipes that sets an entry of the identity."""


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


def held_windows(prompts: Sequence[Sequence[int]], plan: Writing, count: int) -> HeldOut:
    """Return which windows of `write_own_text` are held out, by their prompts. ValueError if all prompts are the same one."""
    keys = [tuple(prompts[number][: plan.opening]) for number in _order(len(prompts), plan).tolist()]
    return hold_out(keys, count, "prompts")


def _order(count: int, plan: Writing) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(plan.seed))


def write_own_text(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], plan: Writing, folder: Path) -> tuple[Tensor, Tensor]:
    """Return windows [N, W] of ids, in a fixed random order, and which of them the target wrote [N, W] bool; padding comes last.

    One file a chunk is kept in `folder`, so that a stopped run resumes. Several processes share the chunks, and all return all windows.
    ValueError if the folder holds text of another model, tokenizer, prompts or settings, or a weight of `model` is not finite.
    """
    check_finite_weights(model)
    openings = [list(ids[: plan.opening]) for ids in prompts]
    identity = _identity(plan, len(prompts), model) | {"tokenizer": tokenizer_identity(tokenizer), "prompt ids": checksum(openings)}
    claim_folder(folder / "writing.json", identity, "text written with", _FLAGS, join_processes())

    def written(first: int, end: int, temperature: float) -> tuple[Tensor, Tensor]:
        return _write(model, tokenizer, openings[first:end], plan, temperature, first)

    ids, own = _in_chunks(written, "own", len(prompts), plan, folder)
    order = _order(len(ids), plan)
    return ids[order], own[order]


def write_own_answers(model: Any, ask: Ask, requests: int, plan: Writing, folder: Path) -> tuple[Tensor, Tensor]:
    """What the model answers to `requests` requests that may hold pictures or sound: ids [N, new], zeros behind, and lengths [N].

    In the order of the requests: `record_answers` asks for them once more. Files are kept as `write_own_text` keeps them. Requests are
    told apart by the first chunk of them.
    """
    check_finite_weights(model)
    begun = sorted(ask(0, min(plan.chunk, requests)).items())
    identity = _identity(plan, requests, model) | {"requests": checksum(value for _, value in begun)}
    del identity["opening"]  # prompts are not cut here: answers do not depend on it
    claim_folder(folder / "answering.json", identity, "text written with", _FLAGS, join_processes())

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


def _identity(plan: Writing, prompts: int, model: Any) -> dict[str, Any]:
    return {**asdict(plan), "temperatures": list(plan.temperatures), "prompts": prompts, **target_identity(model)}


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
