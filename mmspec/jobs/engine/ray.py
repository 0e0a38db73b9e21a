"""The Ray engine: Ray Data assigns shards to workers on several machines. Optional: pip install 'mmspec[ray]'.

Only shard numbers are moved. A worker reads its records from the source and writes its shards as the local engine does, so outputs,
markers and resuming are the same; all machines must see the same input, model and output folder. A worker is a Ray actor: it is built once
and has a GPU where the cluster has any, else one CPU.
"""

import logging
import os
import shutil
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from mmspec.jobs.engine.folder import JobFolder, Stopped
from mmspec.jobs.engine.job import Job, finish
from mmspec.jobs.engine.processes import Processes

Tick = Callable[[int], None]
_KNOWN = (Stopped, FileNotFoundError, ValueError)  # errors that are one line for people; others come with their traceback
_TRIES = 4  # of a shard whose worker dies over it: Ray itself would go on for ever


@contextmanager
def ray_engine(job: Job | Callable[[], Job], processes: Processes) -> Iterator[tuple[Job, Callable[..., None]]]:
    """Engine on the cluster that RAY_ADDRESS names or that is running, else on a local one."""
    if processes.world > 1:
        raise ValueError("the ray engine distributes the work itself: start it once, not under torchrun or accelerate launch")
    with _quiet():
        yield from _engine(_imported(), job)


def _engine(ray: Any, job: Job | Callable[[], Job]) -> Iterator[tuple[Job, Callable[..., None]]]:
    begun = not ray.is_initialized()
    if begun:
        _start(ray)
    try:
        with _one_line():
            resources = ray.cluster_resources()
            gpus = int(resources.get("GPU", 0))
            most, need = (gpus or max(1, int(resources.get("CPU", 1)))), {"num_cpus": 1, "num_gpus": 1 if gpus else 0}
            if isinstance(job, Job):
                known, make = replace(job, work=None, check=None, measures=dict), ray.put(job)
            else:  # built and described where the devices are, so that this process needs neither them nor the memory
                known, make = _value(ray.get(ray.remote(max_calls=1, **need)(_describe).remote(job, os.getcwd()))), ray.put(job)
        yield known, partial(_place, make, most, need)
    finally:
        if begun:
            ray.shutdown()


def _start(ray: Any) -> None:
    """Start or join a cluster. Ray raises bare exceptions where a node is not up in time, as on a busy machine."""
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        ray.shutdown()
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Stopped(f"ray did not start: {first}; nothing is lost, and the same command may be given again") from None


def _place(make: Any, most: int, need: dict[str, int], folder: JobFolder, todo: Sequence[int], records: int, tick: Tick) -> None:
    """Assign every shard of `todo` to one of at most `most` workers."""
    import ray.data

    if not todo:
        return
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    shutil.rmtree(_tries(folder), ignore_errors=True)
    with _one_line():
        shards = ray.data.from_items(list(todo), override_num_blocks=min(len(todo), 10_000))
        done = shards.map_batches(
            _Worker,
            fn_constructor_args=(make, os.getcwd(), records),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(most, len(todo)), initial_size=min(most, len(todo))),
            num_cpus=need["num_cpus"],
            num_gpus=need["num_gpus"],
        )
        for row in done.iter_rows():
            tick(_value((row["records"], row["kind"], row["message"])))


class _Worker:
    """An actor. Its errors are returned as rows, so that they can be raised in one line."""

    def __init__(self, make: Any, home: str, records: int) -> None:
        import ray

        self._job, *self._failed = _guarded(_built, ray.get(make), home)
        self._records, self._run = records, uuid.uuid4().hex[:8]

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        shard = int(batch["item"][0])
        done, kind, message = (0, *self._failed) if self._failed[0] else _guarded(self._finish, shard)
        return {"records": [done or 0], "kind": [kind], "message": [message]}

    def _finish(self, shard: int) -> int:
        job, length = self._job, self._job.length(shard, self._records)
        if not hasattr(self, "_pass"):
            self._pass = _Pass(job)
        folder = JobFolder(job.out, f"ray-{self._run}")
        _try(folder, shard)
        where = {"process": os.getpid(), "processes": "ray", "host": os.uname().nodename}
        finish(job, folder, shard, self._pass.records(shard, length), length, where, lambda amount: None)
        return length


def _tries(folder: JobFolder) -> Path:
    """Folder that counts how often each shard was started; removed at the end."""
    return folder.path / ".unfinished-ray"


def _try(folder: JobFolder, shard: int) -> None:
    _tries(folder).mkdir(exist_ok=True)
    with (_tries(folder) / str(shard)).open("ab") as file:
        if file.tell() >= _TRIES:
            raise Stopped(
                f"the worker of shard {shard} died {_TRIES} times (out of memory?): ray's logs tell how; finished shards stay, and the "
                "same command goes on from them"
            )
        file.write(b".")


class _Pass:
    """One pass over a job's source for ascending shards; restarted for an earlier one."""

    def __init__(self, job: Job) -> None:
        self._job, self._shard, self._stream = job, -1, iter(())

    def records(self, shard: int, length: int) -> Iterator[tuple[int, Any]]:
        if shard <= self._shard or self._shard < 0:
            self._stream = self._job.source.read(lambda index: index // self._job.shard_size == self._shard)
        self._shard = shard
        return islice(self._stream, length)


def _built(job: Job | Callable[[], Job], home: str) -> Job:
    """The job, built in the folder that the command was started in, so that paths mean the same everywhere."""
    if not Path(home).is_dir():
        raise ValueError(f"{home} is not there on {os.uname().nodename}: run the job in a folder that all machines of the cluster share")
    os.chdir(home)
    return job if isinstance(job, Job) else job()


def _describe(make: Callable[[], Job], home: str) -> tuple[Any, str, str]:
    """The job without its worker."""
    return _guarded(lambda: replace(_built(make, home), work=None, check=None, measures=dict))


def _guarded(do: Callable[..., Any], *args: Any) -> tuple[Any, str, str]:
    """(what it gives, "", ""), or (None, kind of error, message)."""
    try:
        return do(*args), "", ""
    except _KNOWN as error:
        return None, next(kind.__name__ for kind in _KNOWN if isinstance(error, kind)), str(error)
    except Exception:
        return None, "RuntimeError", f"a worker failed:\n{traceback.format_exc()}"


def _value(given: tuple[Any, str, str]) -> Any:
    """The result of a worker, or the error it raised."""
    value, kind, message = given
    if kind:
        raise {known.__name__: known for known in _KNOWN}.get(kind, RuntimeError)(message) from None
    return value


@contextmanager
def _one_line() -> Iterator[None]:
    """Turns Ray's own errors (dead workers, jobs that cannot be pickled) into one line."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        first = str(error).strip().splitlines()[0]
        raise Stopped(
            f"ray stopped: {first} ({type(error).__name__}); finished shards stay, and the same command goes on from them"
        ) from None
    except TypeError as error:
        if "serialize" not in str(error) and "pickle" not in str(error):
            raise
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"the job cannot be sent to ray's workers ({first}): give `run` a function that builds it") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Context in which Ray reports no usage and its data library logs nothing."""
    logger, asked = logging.getLogger("ray.data"), "RAY_USAGE_STATS_ENABLED" in os.environ
    level = logger.level
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        if not asked:
            os.environ.pop("RAY_USAGE_STATS_ENABLED", None)


def _imported() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise ValueError("engine 'ray' needs Ray Data, which is not installed: pip install 'mmspec[ray]'") from None
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # again: its import sets a level of its own
    return ray
