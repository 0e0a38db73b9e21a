"""Data parallel training: the processes of one launch, what each of them makes of the data, and a mean over all of them.

Processes are started by `torchrun` or `accelerate launch`; without either there is one, and every function here does the plain thing.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather, get_int_from_env, parse_flag_from_env
from torch import Tensor, distributed

_PATIENCE = timedelta(days=2)  # for what one process does alone, such as a validation; a launcher ends the others of one that died
_SIZES = ["WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"]  # of torchrun, and of launchers for MPI

Item = TypeVar("Item")


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


def computed_in_shares(function: Callable[[Tensor], Tensor], items: Tensor, rows: int) -> Iterator[Tensor]:
    """Yield what a function gives for items, of which every process computes a part and receives all.

    Args:
        function: of items [M, ...]; gives a tensor [M, ...] on the device of this process.
        items: [N, ...], the same in all processes.
        rows: most items that a process takes at once.

    Yields:
        Results of consecutive items, in their order.
    """
    here = join_processes()
    for part in items.split(rows * here.num_processes):
        share = -(-len(part) // here.num_processes)
        places = torch.arange(share * here.num_processes).clamp(max=len(part) - 1)  # all parts are of one size
        own = places[here.process_index * share :][:share]
        yield gather(function(part[own]))[: len(part)]  # pyright: ignore[reportIndexIssue, reportReturnType]


def refuse_several_processes() -> None:
    """End a recipe that trains in one process, with one line and exit code 2, if it was started with several.

    Call it before any work: every process would make the data of its own and write the same files.
    """
    count = (_asked_for() or "several") if _alone_instead_of_several() else _started()
    if count != 1:
        recipe = Path(sys.argv[0]).name
        print(f"{recipe}: {count} processes were started, but it trains in one: start it with python {recipe}", file=sys.stderr)
        raise SystemExit(2)


# --- losses -----------------------------------------------------------------------------------------------------------


def shared_counts(counts: Tensor) -> Tensor:
    """Return how many places count, on average over the processes: the divisors of sums whose gradients are averaged.

    A sum over places divided by this has the gradients of one process with the windows of all, however the places are spread. Without
    gradients, as in validation, only the own places count and no other process is waited for.

    Args:
        counts: LongTensor [L], places of this process by level.

    Returns:
        FloatTensor [L]; over all processes together at least 1 each.
    """
    counts, processes = counts.clone(), 1
    if torch.is_grad_enabled() and distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(counts)
        processes = distributed.get_world_size()
    return counts.clamp_min(1) / processes
