"""Data parallel training: the processes of one launch, what each of them makes of the data, and a mean over all of them.

Processes are started by `torchrun` or `accelerate launch`; without either there is one, and every function here does the plain thing.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import get_int_from_env, parse_flag_from_env
from rich.progress import track
from torch import Tensor, distributed

from mmspec.utils.files import write_json

_PATIENCE = timedelta(days=2)  # for what one process does alone, such as a validation; a launcher ends the others of one that died
_SIZES = ["WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"]  # of torchrun, and of launchers for MPI
_KEY, _DONE = "job.json", "done.npy"

Item = TypeVar("Item")
Parts = Callable[[int, int], Iterable[tuple[str, np.ndarray]]]
"""(first, end) -> the names of arrays and their rows first to end - 1."""


# --- the processes ----------------------------------------------------------------------------------------------------


def join_processes(device: str = "auto") -> PartialState:
    """Join the processes of this launch into one job: by nccl on GPUs, by gloo on CPUs.

    Without several GPUs `accelerate launch` starts one process, however many it was asked for. The process is then replaced by
    `torchrun` with as many, so call this before any work. Later calls return the same state.

    Args:
        device: "auto", or the name of the device of the model.

    Returns:
        accelerate's state, with `process_index`, `num_processes`, `is_main_process`, `device` and `wait_for_everyone()`.

    Raises:
        ValueError: if the processes that were started cannot train one model.
    """
    if _alone_instead_of_several():
        _start_the_others()
    started, kind = _started(), torch.accelerator.current_accelerator(check_available=True)
    cpu = device == "cpu" or parse_flag_from_env("ACCELERATE_USE_CPU") or kind is None or (started > 1 and kind.type == "mps")
    here, devices = int(os.environ.get("LOCAL_WORLD_SIZE", started)), torch.accelerator.device_count()
    if not cpu and here > devices:
        raise ValueError(
            f"{here} processes were started on a machine with {devices} device(s): start one for each, or set ACCELERATE_USE_CPU=1 to "
            "train on the CPU"
        )
    state = PartialState(cpu=bool(cpu), timeout=_PATIENCE)
    if state.num_processes != started:
        raise ValueError(f"{started} processes were started, but {state.num_processes} joined: start them with torchrun")
    return state


def _started() -> int:
    """The number of processes of this launch."""
    return get_int_from_env(_SIZES, 1)


def _alone_instead_of_several() -> bool:
    """True in the process that `accelerate launch` started where it was asked for several: it gives an address, but no number of them."""
    given = os.environ
    return "ACCELERATE_MIXED_PRECISION" in given and "MASTER_PORT" in given and not any(name in given for name in _SIZES)


def _start_the_others() -> None:
    """Replace this process by `torchrun` with as many processes as `accelerate launch` was asked for."""
    count = _asked_for()
    if count is None:
        raise ValueError(
            "accelerate launch started one process instead of several, as it does without several GPUs: "
            "start the recipe with torchrun --nproc-per-node N instead"
        )
    if count == 1:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    os.execv(sys.executable, [sys.executable, *launcher, *sys.argv])


@cache
def _asked_for() -> int | None:
    """The number of processes that the `accelerate launch` above this process was asked for; None where that cannot be told."""
    import psutil
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    above = psutil.Process().parent()
    line = [] if above is None else above.cmdline()
    launchers = ("launch", "accelerate-launch", "accelerate.commands.launch", "launch.py")
    at = next((place for place, word in enumerate(line) if Path(word).name in launchers), None)
    if at is None:
        return None
    asked = launch_command_parser().parse_args(line[at + 1 :])
    if (asked.num_machines or 1) > 1:
        return None
    try:
        return asked.num_processes or getattr(load_config_from_file(asked.config_file), "num_processes", None)
    except OSError:
        return None


def own_share(items: Sequence[Item]) -> Sequence[Item]:
    """Return the items that fall to this process, dealt in turn.

    Args:
        items: the same in all processes.

    Returns:
        Items r, r + W, r + 2 W, ... in process r of W.
    """
    here = join_processes()
    return items[here.process_index :: here.num_processes]


# --- arrays on disk ---------------------------------------------------------------------------------------------------


def fill_arrays(folder: Path, key: Mapping[str, Any], count: int, rows: int, parts: Parts, title: str = "record") -> None:
    """Fill arrays of `count` rows in `folder`, a file NAME.npy each, batch by batch; each process fills its share of the batches.

    Finished batches are kept: a stopped run goes on with what is missing, with any number of processes. A folder of another `key` is
    emptied first.

    Args:
        folder: shared by all processes.
        key: what the arrays depend on, as JSON data.
        count: number of rows.
        rows: rows of a batch.
        parts: makes the rows of a batch; called with its first row and the row after its last.
        title: of the progress bar.
    """
    here, starts = join_processes(), range(0, count, rows)
    key = {**key, "count": count, "rows": rows}
    if here.is_main_process and not _is_of(folder, key):
        _begin(folder, key, len(starts), parts(0, min(rows, count)))
    here.wait_for_everyone()
    done = np.load(folder / _DONE)
    for number in track(own_share(range(len(starts))), title, disable=not here.is_main_process):
        if not done[number]:
            first = starts[number]
            for name, part in parts(first, min(first + rows, count)):
                _put(folder / f"{name}.npy", first, part)
            _put(folder / _DONE, number, np.ones(1, dtype=np.bool_))
    here.wait_for_everyone()


def _is_of(folder: Path, key: dict[str, Any]) -> bool:
    """Whether `folder` holds arrays that were begun for `key`."""
    try:
        return json.loads((folder / _KEY).read_text(encoding="utf-8")) == key
    except (OSError, ValueError):
        return False


def _begin(folder: Path, key: dict[str, Any], batches: int, first: Iterable[tuple[str, np.ndarray]]) -> None:
    """Make the files in the shapes and dtypes of the `first` batch, and write that. The key comes last: without it nothing counts."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, part in first:
        shape = (key["count"], *part.shape[1:])
        np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=part.dtype, shape=shape)
        _put(folder / f"{name}.npy", 0, part)
    np.save(folder / _DONE, np.arange(batches) == 0)
    write_json(folder / _KEY, key)


def _put(path: Path, first: int, part: np.ndarray) -> None:
    """Write rows `first` and following of an array in a file. No mapped pages: processes of several machines write side by side."""
    kept = np.load(path, mmap_mode="r")
    with path.open("r+b") as file:
        file.seek(kept.offset + first * kept.strides[0])
        file.write(np.ascontiguousarray(part, dtype=kept.dtype).tobytes())


# --- losses -----------------------------------------------------------------------------------------------------------


def shared_count(counted: Tensor) -> Tensor:
    """Return how many places count, on average over the processes: the divisor of a sum whose gradients are averaged.

    A loss that is a sum over its places divided by this has the gradients of one process with the windows of all, however the places
    are spread. Without gradients, as in validation, only the own places count and no other process is waited for.

    Args:
        counted: bool, of any shape.

    Returns:
        A scalar; at least 1 over all processes together.
    """
    total, processes = counted.sum(), 1
    if torch.is_grad_enabled() and distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(total)
        processes = distributed.get_world_size()
    return total.clamp_min(1) / processes
