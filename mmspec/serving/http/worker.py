"""One thread a model that runs jobs in order of arrival, behind a bounded queue; jobs that may share a call run together."""

import queue
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from threading import Condition
from typing import Any

import torch

from mmspec.serving.admission import Places
from mmspec.serving.model_thread import EngineClosed, ModelThread, check_process, check_wait
from mmspec.serving.openmp import release_threads


@dataclass(frozen=True)
class SharedCall:
    """How a job runs in one call with others.

    Args:
        key: jobs of equal keys may run together.
        rows: rows of the call that are this job's.
        inputs: what it adds to the call.
        run: makes the outputs of several jobs, one each; called in the worker's thread.
    """

    key: Hashable
    rows: int
    inputs: Any
    run: Callable[[Sequence["WorkerJob"]], Sequence[Any]]


class WorkerJob:
    """A request of a worker.

    Args:
        run: what makes the output; called with the job in the worker's thread. It should call `on_step` often. Or how the job runs
            together with others.
        client: who asked for it.
    """

    def __init__(self, run: "Callable[[WorkerJob], Any] | SharedCall", client: Hashable = None):
        self.client = client
        self.shared = run if isinstance(run, SharedCall) else None
        self.run: Callable[[WorkerJob], Any] = (lambda job: run.run([job])[0]) if isinstance(run, SharedCall) else run
        self.future: Future[Any] = Future()
        self.cancelled = False

    def cancel(self) -> None:
        """End the job before its next round. Nothing happens if it has ended."""
        self.cancelled = True
        self.future.cancel()

    def on_step(self, step: Any = None) -> None:
        """Raise CancelledError if the job was cancelled. For the `on_step` of the public calls.

        Args:
            step: the round; not read.

        Raises:
            CancelledError: of `concurrent.futures`.
        """
        if self.cancelled:
            raise CancelledError("the request was cancelled")


class ModelWorker:
    """A thread that runs the jobs of one model: those of clients in turn, those of a client in order of arrival.

    A job that may share a call takes with it those waiting ones that have its key.

    Args:
        name: name of the thread.
        max_queue: most jobs that wait beside those that run: one, or as many as share a call.
        max_rows: most rows of a call that several jobs share.
        clients: those that places are kept for, see `Places`.
    """

    def __init__(self, name: str, max_queue: int, max_rows: int = 1, clients: Collection[Hashable] = ()):
        self.max_queue, self.max_rows = max_queue, max_rows
        self._places = Places(max_queue + 1, clients)
        self._jobs: deque[WorkerJob] = deque()
        self._current: list[WorkerJob] = []
        self._last: Hashable = None  # the client of the last call
        self._changed = Condition()
        self._closed = False
        self._thread = ModelThread(name, self._work, self._cancel_all)

    def submit(self, run: Callable[[WorkerJob], Any] | SharedCall, client: Hashable = None) -> WorkerJob:
        """Queue a job. Safe under threads.

        Args:
            run: as in `WorkerJob`.
            client: who asks.

        Returns:
            The job; its `future` has what `run` returns or raises.

        Raises:
            Full: of `queue`, if as many jobs wait as may.
            EngineClosed: after `close`.
            RuntimeError: in a process that was forked from the worker's.
        """
        check_process(self._thread.process, "worker")
        job = WorkerJob(run, client)
        with self._changed:
            if self._closed:
                raise EngineClosed("the worker is closed")
            self._jobs = deque(each for each in self._jobs if not each.cancelled)
            most = self.max_queue + (1 if job.shared is None else self.max_rows)
            if not self._places.free([each.client for each in (*self._current, *self._jobs) if not each.future.done()], client, most):
                raise queue.Full(f"{len(self._jobs)} requests are waiting")
            self._jobs.append(job)
            self._changed.notify()
        return job

    @property
    def queued(self) -> int:
        """Jobs that wait."""
        with self._changed:
            return sum(not job.cancelled for job in self._jobs)

    @property
    def busy(self) -> int:
        """Jobs that run: at most 1, but for those that share a call."""
        return len(self._current)

    @property
    def alive(self) -> bool:
        """True while jobs are taken."""
        return self._thread.is_alive() and not self._closed

    def close(self, wait: float | None = None) -> None:
        """Cancel all jobs and end the thread.

        Args:
            wait: seconds to wait for the end of the thread; None for no limit.

        Raises:
            RuntimeError: in a process that was forked from the worker's.
        """
        check_process(self._thread.process, "worker")
        wait = check_wait("wait", wait)
        self._cancel_all()
        self._thread.join(wait)

    def _cancel_all(self) -> int:
        """Have the thread cancel all jobs and end. Returns how many have not ended."""
        with self._changed:
            self._closed = True
            jobs = (*self._jobs, *self._current)
            for job in jobs:
                job.cancel()
            self._jobs.clear()
            self._changed.notify()
            return len(jobs)

    def _work(self) -> None:
        while jobs := self._next():
            _finish([job for job in jobs if job.future.set_running_or_notify_cancel()])
            self._current = jobs = []  # nothing of a request is kept

    def _next(self) -> list[WorkerJob]:
        """The first job with those that share its call; none when the worker is closed."""
        with self._changed:
            if not self._jobs:
                release_threads()
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if self._closed:
                return []
            first = self._first()
            self._jobs.remove(first)
            self._last, self._current = first.client, [first]
            self._take_sharing()
            return self._current

    def _first(self) -> WorkerJob:
        """The first job of another client than the last one; else the first one."""
        return next((job for job in self._jobs if job.client != self._last), self._jobs[0])

    def _take_sharing(self) -> None:
        """Move waiting jobs to those that run, as long as there are rows left for them."""
        shared = self._current[0].shared
        if shared is None:
            return
        rows, left = shared.rows, deque[WorkerJob]()
        for job in self._jobs:
            if job.shared is not None and job.shared.key == shared.key and rows + job.shared.rows <= self.max_rows and not job.cancelled:
                self._current.append(job)
                rows += job.shared.rows
            else:
                left.append(job)
        self._jobs = left


def _finish(jobs: Sequence[WorkerJob]) -> None:
    """Run jobs and set their futures. If a call of several jobs fails, each is run again, alone."""
    if len(jobs) > 1 and _finish_together(jobs):
        return
    for job in jobs:
        try:
            with torch.no_grad():
                found = job.run(job)
        except BaseException as error:
            job.future.set_exception(error)
        else:
            job.future.set_result(found)


def _finish_together(jobs: Sequence[WorkerJob]) -> bool:
    """Run jobs in one call. False if it fails."""
    shared = jobs[0].shared
    assert shared is not None
    try:
        with torch.no_grad():
            outputs = shared.run(jobs)
    except BaseException:  # that of the job that fails alone is told
        return False
    for job, output in zip(jobs, outputs, strict=True):
        job.future.set_result(output)
    return True
