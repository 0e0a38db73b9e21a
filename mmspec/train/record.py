"""A target's hidden states on text it wrote, recorded on disk and read window by window in training."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.drafters.features.reading import sight_of
from mmspec.models.families.registry import family_of
from mmspec.models.module_copy import own_copy, refresh
from mmspec.models.stack import numbered, stack, tapped
from mmspec.models.target import HFTarget
from mmspec.train.distillation import RecordedWindow
from mmspec.train.parallel import fill_arrays, join_processes

_IN_MEMORY = 4 << 30  # bytes; larger recordings are memory-mapped
Ask = Callable[[int, int], Mapping[str, Any]]
"""(first, end) -> what the processor returned for requests first to end - 1: prompts padded on either side, pictures with them."""


@dataclass(frozen=True)
class Recorded:
    """A recording: ids, whether the target wrote them, hidden states in half precision, and the pictures among them if there are any."""

    ids: Any  # [N, W] int32
    own: Any  # [N, W] bool
    hidden: Any  # [N, W, F + H] the states asked for, then the last
    width: int  # F
    embeds: Any = None  # [N, W, H] as `RecordedWindow` has them
    pictures: Any = None  # [N, W] int16

    def __len__(self) -> int:
        return len(self.ids)

    def window(self, rows: Sequence[int], device: torch.device | str = "cpu") -> RecordedWindow:
        """Windows `rows`, in float32 on `device`."""

        def of(kept: Any, dtype: Any) -> Tensor:
            return torch.from_numpy(np.asarray(kept[rows], dtype=dtype)).to(device)

        hidden = of(self.hidden, np.float32)
        parts = of(self.ids, np.int64), hidden[..., : self.width], hidden[..., self.width :], of(self.own, np.bool_)
        return (
            RecordedWindow(*parts)
            if self.pictures is None
            else RecordedWindow(*parts, of(self.embeds, np.float32), of(self.pictures, np.int64))
        )

    def draw(self, turn: int, rows: int, first: int = 0, device: torch.device | str = "cpu", processes: int = 1) -> RecordedWindow:
        """`rows` windows from number `first` on, a function of `turn` alone so that a resumed run sees the same ones.

        Several processes, which `fit` gives turns of their own, draw parts of the windows that one process draws at the same step.
        """
        if rows < processes:
            raise ValueError(f"rows is {rows} for {processes} processes: give every process a window")
        step, part = divmod(turn, processes)
        chosen = torch.randint(first, len(self), (rows,), generator=torch.Generator().manual_seed(step))
        return self.window(chosen.sort().values[part::processes].tolist(), device)


@torch.no_grad()
def record(target: Any, ids: Tensor, own: Tensor, states: Sequence[int], folder: Path, rows: int = 16) -> Recorded:
    """Run `target` over windows `ids` [N, W] and store hidden states `states` and the last; `own` [N, W] bool marks its own text.

    The folder is written atomically; an existing recording of the same states is read instead, and one that was stopped is finished.
    Several processes share the work.
    """
    layers = len(stack(target))
    wanted = [*numbered(states, layers), layers]
    refresh(target)
    own_target = own_copy(target)

    def windows(first: int, end: int) -> RecordedWindow:
        batch = ids[first:end].to(target.device)
        with tapped(own_target, wanted) as found:
            own_target(batch, logits_to_keep=1)
        features = torch.cat([found[state] for state in wanted[:-1]], -1) if states else found[layers][..., :0]
        return RecordedWindow(batch, features, found[layers], own[first:end])

    return _recorded(folder, wanted, ids, rows, windows)


def record_answers(
    target: Any, ask: Ask, answers: Tensor, lengths: Tensor, states: Sequence[int], folder: Path, opening: int, rows: int = 16
) -> Recorded:
    """The same over requests with pictures or sound and what `target` answered, `answers` [N, L] of `lengths` [N].

    Windows have room for prompts of `opening` positions, pictures included; ValueError for a longer one.
    """
    wanted = [*numbered(states, len(stack(target))), len(stack(target))]
    width = opening + answers.shape[1]

    def windows(first: int, end: int) -> RecordedWindow:
        found = record_window(target, ask(first, end), answers[first:end], lengths[first:end], states)
        longest = found.ids.shape[1] - answers.shape[1]
        if longest > opening:
            raise ValueError(f"a prompt has {longest} positions, but windows have room for {opening}: raise opening")
        return found.widened(width)

    return _recorded(folder, wanted, answers, rows, windows)


@torch.no_grad()
def record_window(target: Any, inputs: Mapping[str, Any], answers: Tensor, lengths: Tensor, states: Sequence[int]) -> RecordedWindow:
    """Windows of prompts and the `answers` [B, L] of `lengths` [B] behind them, packed to the left, run just as in a generation."""
    session, pending = HFTarget(target, family_of(target)).begin({key: value.to(target.device) for key, value in inputs.items()})
    session.watch([*states, -1])
    draft = pending.extend_chain(answers.to(target.device), lengths.to(target.device))
    scored = session.score(draft)
    assert scored.context is not None
    assert scored.hidden is not None
    before = scored.context.lengths[:, None]  # the last value of a prompt is the first node
    prompt, place = scored.context.ids.shape[1], torch.arange(scored.context.ids.shape[1] + draft.size, device=before.device)
    real = place <= before + lengths.to(before.device)[:, None]
    source = torch.where(place < before, place, place + prompt - before).clamp(max=len(place) - 1)
    ids = torch.cat([scored.context.ids, draft.nodes], 1).gather(1, source).masked_fill(~real, 0)
    hidden = torch.cat([scored.context.hidden, scored.hidden], 1)
    hidden = hidden.gather(1, source[..., None].expand(-1, -1, hidden.shape[-1])) * real[..., None]
    wide = hidden.shape[-1] // (len(states) + 1) * len(states)
    vision = sight_of(session, ids[:, : prompt + 1], before[:, 0] + 1)
    size = target.config.get_text_config(decoder=True).vocab_size  # placeholders may lie beyond the vocabulary
    found = RecordedWindow(ids.clamp(max=size - 1), hidden[..., :wide], hidden[..., wide:], real & (place > before))
    return found if vision is None else replace(found, embeds=vision.embeds, pictures=vision.pictures).widened(len(place))


def _recorded(folder: Path, wanted: list[int], values: Tensor, rows: int, windows: Callable[[int, int], RecordedWindow]) -> Recorded:
    """The recording of `values` [N, L] in `folder`, made of `windows` where it is not there yet; every process records its share."""
    if not folder.exists():
        here, temporary = join_processes(), folder.with_name(folder.name + ".tmp")
        key = {"states": wanted, "values": sha256(values.cpu().numpy().tobytes()).hexdigest()}
        fill_arrays(temporary, key, len(values), rows, lambda first, end: _parts(windows(first, end)))
        if here.is_main_process:
            (temporary / "states.json").write_text(json.dumps(wanted), encoding="utf-8")
            os.replace(temporary, folder)
        here.wait_for_everyone()
    return read_recording(folder, wanted)


def _parts(window: RecordedWindow) -> Iterator[tuple[str, np.ndarray]]:
    yield "ids", window.ids.to(torch.int32).cpu().numpy()
    yield "own", window.own.cpu().numpy()
    yield "hidden", torch.cat([window.features, window.last], -1).to(torch.float16).cpu().numpy()
    if window.pictures is not None and window.embeds is not None:
        yield "embeds", window.embeds.to(torch.float16).cpu().numpy()
        yield "pictures", window.pictures.to(torch.int16).cpu().numpy()


def read_recording(folder: Path, wanted: Sequence[int]) -> Recorded:
    """Return the recording in `folder`. ValueError if it holds states other than `wanted`."""
    found = json.loads((folder / "states.json").read_text(encoding="utf-8"))
    if list(found) != list(wanted):
        raise ValueError(f"{folder} holds hidden states {found}, but {list(wanted)} are needed: delete it or choose another folder")

    def kept(name: str) -> Any:
        path = folder / f"{name}.npy"
        return np.load(path, mmap_mode="r" if path.stat().st_size > _IN_MEMORY else None) if path.exists() else None

    hidden = kept("hidden")
    return Recorded(kept("ids"), kept("own"), hidden, hidden.shape[-1] // len(found) * (len(found) - 1), kept("embeds"), kept("pictures"))
