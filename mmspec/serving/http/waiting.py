"""Waiting for engines and workers in coroutines: until the end, the client's leaving, or the time limit."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from starlette.requests import Request

from mmspec.core.result import DecodeError
from mmspec.serving.handle import RequestHandle
from mmspec.serving.http.errors import GONE, ApiError, api_error, timed_out
from mmspec.serving.http.worker import WorkerJob

T = TypeVar("T")


class Changes:
    """Wakes a coroutine when one of several requests of an engine has changed.

    Args:
        handles: the requests.
        ends_only: wake at ends only, not at every round.
    """

    def __init__(self, handles: Iterable[RequestHandle], ends_only: bool = False):
        self._event = asyncio.Event()
        loop = asyncio.get_running_loop()
        for handle in handles:
            handle.watch(_waker(loop, self._event, handle if ends_only else None))

    async def wait(self) -> None:
        """Return after the next change, or at once if there was one since the last call."""
        await self._event.wait()
        self._event.clear()


def _waker(loop: asyncio.AbstractEventLoop, event: asyncio.Event, ending: RequestHandle | None) -> Callable[[], None]:
    def changed() -> None:
        if ending is None or ending.done:
            wake(loop, event.set)

    return changed


def wake(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> None:
    """Call a function in a loop, from any thread. Nothing happens if the loop has been closed.

    Args:
        loop: the loop.
        function: called with `args`.
        args: its arguments.
    """
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


def raise_failure(handle: RequestHandle) -> None:
    """Raise what ended a request of an engine; nothing if it finished.

    Args:
        handle: a request that has ended.

    Raises:
        DecodeError: for a ValueError: the request's arguments were valid.
        Exception: any other.
    """
    try:
        handle.result(0)
    except DecodeError:
        raise
    except ValueError as error:
        raise DecodeError(str(error)) from error


async def all_ended(handles: list[RequestHandle]) -> None:
    """Wait until all requests of an engine have ended; if this coroutine is cancelled, they are.

    Args:
        handles: the requests.

    Raises:
        Exception: what ended the first one that failed.
    """
    try:
        changes = Changes(handles, ends_only=True)
        while not all(handle.done for handle in handles):
            await changes.wait()
        for handle in handles:
            raise_failure(handle)
    finally:
        for handle in handles:
            handle.cancel()


async def job_result(job: WorkerJob) -> Any:
    """Wait for what a job returns; if this coroutine is cancelled, the job is.

    Args:
        job: a job of a worker.

    Raises:
        Exception: what the job raised.
    """
    try:
        return await asyncio.wrap_future(job.future)
    finally:
        job.cancel()


async def answer(request: Request, work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Wait for a coroutine. It is cancelled when the client leaves, and when the time is over.

    Args:
        request: whose body has been read.
        work: what makes the answer.
        seconds: the time limit.

    Returns:
        What `work` returns.

    Raises:
        ApiError: for every failure, with its status.
    """
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        done, _ = await asyncio.wait({task, left}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        raise ApiError(GONE, "the client has left") if left in done else timed_out(seconds)
    except (CancelledError, asyncio.CancelledError):
        if task.done():  # the engine or worker is being closed
            raise ApiError(503, "the server is being stopped", code="stopping") from None
        raise
    except Exception as error:
        raise api_error(error) from error
    finally:
        for each in (task, left):
            each.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def _left(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
