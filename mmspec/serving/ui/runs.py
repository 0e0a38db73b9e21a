"""Runs of the page: frames of a comparison while it runs, and their end."""

import asyncio
import queue
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError
from html import escape
from typing import Any, Protocol

from mmspec.serving.http.worker import WorkerJob
from mmspec.serving.model_thread import EngineClosed
from mmspec.serving.ui.comparison import LiveComparison
from mmspec.serving.ui.models import UiModel

PERIOD = 0.1
"""Seconds between two frames."""
_EXPECTED = (ValueError, FloatingPointError, EngineClosed)


class Side(Protocol):
    """A model of the page with what its tab shows."""

    model: UiModel
    compare: Callable[..., LiveComparison]
    board: Callable[[LiveComparison, str], str]


class Runs:
    """The runs of all sessions: at most one for a session and kind of model. Safe under one event loop."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], WorkerJob] = {}

    async def play(self, session: str, kind: str, side: Any, prompt: Any, *settings: Any) -> AsyncIterator[tuple[str, str]]:
        """Run a comparison. It ends before its next round when this generator is closed or `stop` is called.

        Args:
            session: who asks.
            kind: kind of model.
            side: a `Side`.
            prompt: its first argument of `compare`.
            settings: the others.

        Yields:
            (status, both panes) as HTML, about ten times a second. What is wrong with a request is the status, in one line.
        """
        self.stop(session, kind)
        try:
            comparison = await asyncio.to_thread(side.compare, prompt, *settings)
            worker, warm = side.model.served.worker, side.model.warm
            job = worker.submit(lambda job: comparison.run(job, warm))
        except Exception as error:
            yield failed(error), ""
            return
        self._jobs[session, kind] = job
        ended = asyncio.wrap_future(job.future)
        ended.add_done_callback(lambda future: future.cancelled() or future.exception())  # read below, or left with the generator
        try:
            while not ended.done():
                yield _waiting(comparison, worker), await asyncio.to_thread(side.board, comparison, prompt)
                await asyncio.wait([ended], timeout=PERIOD)
            yield await asyncio.to_thread(_last, job, side, comparison, prompt)
        finally:
            job.cancel()
            if self._jobs.get((session, kind)) is job:
                del self._jobs[session, kind]

    def stop(self, session: str, kind: str) -> None:
        """End a session's run before its next round, if there is one.

        Args:
            session: who asks.
            kind: kind of model.
        """
        if (job := self._jobs.get((session, kind))) is not None:
            job.cancel()


def failed(error: BaseException) -> str:
    """Return the status of a run that could not begin or go on.

    Args:
        error: an exception of the library; a ValueError is a wrong setting, in one line.

    Returns:
        HTML.
    """
    words = "too many runs are waiting: try again later" if isinstance(error, queue.Full) else " ".join(str(error).split())
    if not isinstance(error, (*_EXPECTED, queue.Full)):
        words = f"the run failed ({type(error).__name__}): {words}"
    return f'<p class="mm-message" role="alert">{escape(words)}</p>'


def _waiting(comparison: LiveComparison, worker: Any) -> str:
    if all(each.state == "waiting" for each in comparison.generations) and worker.queued:
        return f'<p class="mm-note">waiting; {worker.queued} in the queue</p>'
    return '<p class="mm-note">running</p>'


def _last(job: WorkerJob, side: Any, comparison: LiveComparison, prompt: Any) -> tuple[str, str]:
    try:
        job.future.result()
    except CancelledError:
        comparison.mark_stopped()
        return '<p class="mm-note">stopped</p>', side.board(comparison, prompt)
    except BaseException as error:
        return failed(error), ""
    return "", side.board(comparison, prompt)
