"""Recordings on disk: one safetensors file a chunk of windows, written as they are made and memory-mapped when read.

A recording is a folder: `states.json` says what is recorded, `windows-N.safetensors` holds the windows from number N on. Chunks that are
missing are made by the next run, so a stopped recording continues.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.train.states.window import RecordedWindow
from mmspec.utils.weights import read_mapping, read_tensors

STATE_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
"""What hidden states can be recorded in. Both have float32's range: states of 1e5 and more overflow in float16."""
_SETTINGS = "states.json"
_COMPARED = {"dtype": "states in {}", "windows": "{} windows", "rows": "{} windows a file", "target": "states of a target with {}"}


@dataclass(frozen=True, kw_only=True)
class RecordingSettings:
    """What a recording holds.

    Args:
        states: numbers of the hidden states; the last is the one that the target's head reads.
        dtype: name of their dtype on disk, one of `STATE_DTYPES`.
        windows: number of windows.
        rows: windows a file.
        target: checksum of the weights whose states they are.

    Raises:
        ValueError: for another dtype.
    """

    states: tuple[int, ...]
    dtype: str
    windows: int
    rows: int
    target: str = ""

    def __post_init__(self):
        if self.dtype not in STATE_DTYPES:
            raise ValueError(f"states cannot be recorded in {self.dtype!r}; valid: {', '.join(STATE_DTYPES)}")

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Return the first window of every file, and the one after its last."""
        for first in range(0, self.windows, self.rows):
            yield first, min(first + self.rows, self.windows)


def open_recording(folder: Path, settings: RecordingSettings) -> None:
    """Begin a recording in `folder`, or check that the one there has these settings. ValueError if it has others."""
    path = folder / _SETTINGS
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".tmp-{os.getpid()}")
        temporary.write_text(json.dumps(asdict(settings)), encoding="utf-8")
        os.replace(temporary, path)
        return
    found = _read_settings(folder)
    if set(found.states) != set(settings.states):
        states = sorted(set(settings.states))
        raise ValueError(
            f"{folder} holds hidden states {sorted(set(found.states))}, but {states} are needed: delete it or choose another folder"
        )
    for name, unit in _COMPARED.items():
        ours, theirs = getattr(settings, name), getattr(found, name)
        if ours != theirs:
            raise ValueError(f"{folder} holds {unit.format(theirs or 'no checksum')}, not {ours}: delete it or choose another folder")


def chunk_file(folder: Path, first: int) -> Path:
    """Return the file in `folder` that holds the windows from number `first` on."""
    return folder / f"windows-{first}.safetensors"


def write_chunk(folder: Path, first: int, window: RecordedWindow, settings: RecordingSettings) -> None:
    """Write windows `first` and following to their file, under a temporary name first.

    Raises:
        ValueError: if a state is not finite, naming the state, the window and the position; nothing is written then.
    """
    parts = {name: part.cpu().contiguous() for name, part in _parts(window, settings)}
    _check_finite(parts, range(first, first + len(window.ids)), "check the target's weights, and load it in bfloat16 or float32")
    path = chunk_file(folder, first)
    temporary = path.with_suffix(f".tmp-{os.getpid()}")
    save_file(parts, temporary)
    os.replace(temporary, path)


def _parts(window: RecordedWindow, settings: RecordingSettings) -> Iterator[tuple[str, Tensor]]:
    dtype, width = STATE_DTYPES[settings.dtype], window.last.shape[-1]
    yield "ids", window.ids.to(torch.int32)
    yield "own", window.own
    states = [*window.features.split(width, -1), window.last] if window.features.shape[-1] else [window.last]
    yield from ((_name(number), state.to(dtype)) for number, state in dict(zip(settings.states, states, strict=True)).items())
    if window.pictures is not None and window.embeds is not None:
        yield "embeds", window.embeds.to(dtype)
        yield "pictures", window.pictures.to(torch.int16)
    if window.total is not None and window.best is not None:
        yield "total", window.total.to(torch.float32)
        yield "best", window.best.to(torch.int32)


def _name(state: int) -> str:
    return f"state-{state}"


def _check_finite(parts: Mapping[str, Tensor], windows: Sequence[int], remedy: str) -> None:
    """ValueError for the first value of `parts` [B, W, ...] that is not finite."""
    for name, part in parts.items():
        if part.is_floating_point() and not bool(torch.isfinite(part).all()):
            wrong = ~torch.isfinite(part.flatten(2) if part.dim() > 2 else part[..., None]).all(-1)
            row, position = wrong.nonzero()[0].tolist()
            unit = name.replace("state-", "hidden state ")
            raise ValueError(f"{unit} of window {windows[row]} holds NaN or infinity at position {position}: {remedy}")


@dataclass(frozen=True)
class Recorded:
    """A recording: windows of ids and the target's hidden states there, memory-mapped.

    Args:
        folder: where it is.
        settings: what it holds, its states in the order asked for.
        chunks: the tensors of every file by name.
    """

    folder: Path
    settings: RecordingSettings
    chunks: tuple[Mapping[str, Tensor], ...]

    def __len__(self) -> int:
        return self.settings.windows

    def window(self, rows: Sequence[int], device: torch.device | str = "cpu") -> RecordedWindow:
        """Return windows `rows`, states in float32, on `device`. ValueError if what is on disk is not finite."""
        places = [divmod(row, self.settings.rows) for row in rows]
        parts = {name: torch.stack([self.chunks[chunk][name][at] for chunk, at in places]) for name in self.chunks[0]}
        _check_finite(parts, list(rows), f"delete {self.folder} and record again")
        parts = {name: part.to(device, _dtype_in_memory(part)) for name, part in parts.items()}
        *reads, last = (parts[_name(state)] for state in self.settings.states)
        more: dict[str, Any] = {name: parts[name] for name in ("embeds", "pictures", "total", "best") if name in parts}
        return RecordedWindow(parts["ids"], torch.cat(reads, -1) if reads else last[..., :0], last, parts["own"], **more)

    def draw(self, turn: int, rows: int, first: int = 0, device: torch.device | str = "cpu", processes: int = 1) -> RecordedWindow:
        """`rows` windows from number `first` on, a function of `turn` alone so that a resumed run sees the same ones.

        Several processes, which `fit` gives turns of their own, draw parts of the windows that one process draws at the same step.
        ValueError if there are no windows from `first` on, or fewer rows than processes.
        """
        if first >= len(self):
            raise ValueError(f"{len(self)} windows leave none to train on beside the {first} that are held out: record more of them")
        if rows < processes:
            raise ValueError(f"rows is {rows} for {processes} processes: give every process a window")
        step, part = divmod(turn, processes)
        generator = torch.Generator().manual_seed(step)
        chosen, seeds = torch.randint(first, len(self), (rows,), generator=generator), torch.randint(2**31, (rows,), generator=generator)
        return replace(self.window(chosen.sort().values[part::processes].tolist(), device), seeds=seeds[part::processes].tolist())


def _dtype_in_memory(part: Tensor) -> torch.dtype:
    return torch.float32 if part.is_floating_point() else torch.bool if part.dtype == torch.bool else torch.int64


def read_recording(folder: Path, settings: RecordingSettings) -> Recorded:
    """Return the recording in `folder`. ValueError if it is not there, incomplete, broken, or has other settings."""
    open_recording(folder, settings)
    return Recorded(folder, settings, tuple(read_tensors(chunk_file(folder, first), mapped=True) for first, _ in settings.chunks()))


def _read_settings(folder: Path) -> RecordingSettings:
    path = folder / _SETTINGS
    try:
        listed = isinstance(json.loads(path.read_text(encoding="utf-8")), list)
    except ValueError:
        listed = False
    if listed:  # as mmspec 0.1 recorded
        raise ValueError(f"{folder} holds hidden states in float16, as mmspec 0.1 recorded them: delete it, they are recorded anew")
    found = read_mapping(path, "delete the folder")
    try:
        return RecordingSettings(**{**found, "states": tuple(found["states"])})
    except (TypeError, KeyError):
        raise ValueError(f"{path} does not describe a recording: delete {folder}") from None
