"""One thread a model that runs jobs one by one, behind a bounded queue. An output is that of the request alone."""

import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from threading import Condition, Thread
from typing import Any

import torch

from mmspec.serving.closed import EngineClosed


class WorkerJob:
    """A request of a worker.

    Args:
        run: what makes the output; called with the job in the worker's thread. It should call `on_step` often.
    """

    def __init__(self, run: Callable[["WorkerJob"], Any]):
        self.run = run
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
    """A thread that runs the jobs of one model in order of arrival.

    Args:
        name: name of the thread.
        max_queue: most jobs that wait.
    """

    def __init__(self, name: str, max_queue: int):
        self.max_queue = max_queue
        self._jobs: deque[WorkerJob] = deque()
        self._current: WorkerJob | None = None
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[WorkerJob], Any]) -> WorkerJob:
        """Queue a job. Safe under threads.

        Args:
            run: as in `WorkerJob`.

        Returns:
            The job; its `future` has what `run` returns or raises.

        Raises:
            Full: of `queue`, if as many jobs wait as may.
            EngineClosed: after `close`.
        """
        job = WorkerJob(run)
        with self._changed:
            if self._closed:
                raise EngineClosed("the worker is closed")
            self._jobs = deque(each for each in self._jobs if not each.cancelled)
            if len(self._jobs) >= self.max_queue:
                raise queue.Full(f"{self.max_queue} requests are waiting")
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
        """Jobs that run: 1 or 0."""
        return int(self._current is not None)

    @property
    def alive(self) -> bool:
        """True while jobs are taken."""
        return self._thread.is_alive() and not self._closed

    def close(self, wait: float | None = None) -> None:
        """Cancel all jobs and end the thread.

        Args:
            wait: seconds to wait for the end of the thread; None for no limit.
        """
        with self._changed:
            self._closed = True
            current = [] if self._current is None else [self._current]
            for job in (*self._jobs, *current):
                job.cancel()
            self._jobs.clear()
            self._changed.notify()
        self._thread.join(wait)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            _finish(job)
            self._current = job = None  # nothing of a request is kept

    def _next(self) -> WorkerJob | None:
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if self._closed:
                return None
            self._current = self._jobs.popleft()
            return self._current


def _finish(job: WorkerJob) -> None:
    if not job.future.set_running_or_notify_cancel():
        return
    try:
        with torch.no_grad():
            found = job.run(job)
    except BaseException as error:
        job.future.set_exception(error)
    else:
        job.future.set_result(found)
