"""Bodies of requests: bounded by what an endpoint can use, and read in threads, large ones apart from small ones.

The event loop only collects bytes. Work on a request that takes time (JSON, checks, tokenizing, decoding of pictures and recordings) runs
in one of two lanes, so that small requests never wait for large ones, and ends when the client has left.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from mmspec.serving.http.errors import GONE, ApiError, invalid_fields
from mmspec.serving.http.models import ServedModels
from mmspec.serving.http.options import ServerLimits
from mmspec.serving.http.waiting import answer
from mmspec.serving.model_thread import EngineClosed

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)
ITEMS = 10_000
"""Most items of a list in a request for recommendations."""
SMALL = 64 * 2**10
"""Largest body in bytes that is read beside others."""
_TOKEN_BYTES = 16  # of a body, for every token that may be in it
_THREADS = 2  # that read small bodies
_MARKS = (b",", b"{", b"[")  # there is one of them before every value


@dataclass(frozen=True)
class BodyBound:
    """What a body may hold.

    Args:
        size: most bytes.
        values: most values in JSON.
    """

    size: int
    values: int = 1000

    def check(self, content: bytes) -> None:
        """Check a body of JSON.

        Args:
            content: the body.

        Raises:
            ApiError: 413, for too many values.
        """
        found = sum(content.count(mark) for mark in _MARKS)
        if found > self.values:
            message = f"the body has {found} commas and brackets: this endpoint reads at most {self.values}"
            raise ApiError(413, message, code="too_large", headers={"Connection": "close"})


def body_bounds(models: ServedModels, limits: ServerLimits) -> dict[str, BodyBound]:
    """Return what the bodies of the endpoints may hold, by path: as much as the longest valid requests need.

    Args:
        models: the models.
        limits: `max_body` holds for all.
    """
    positions = None if models.text is None else models.text.engine.model.max_length
    tokens = limits.max_body if positions is None else limits.max_inputs * positions
    items = (limits.max_inputs + 2) * ITEMS
    sees = models.text is not None and models.text.pair.sees
    texts = 2**20 + _TOKEN_BYTES * tokens
    sizes = {
        "/v1/completions": (texts, 2**16 + tokens),
        "/v1/chat/completions": (limits.max_body if sees else texts, 2**16 + tokens),
        "/v1/images/generations": (2**18, 2**16),  # a prompt has at most 32,000 characters
        "/v1/audio/speech": (SMALL, 2**13),
        "/v1/audio/transcriptions": (limits.max_body, limits.max_body),
        "/v1/recommendations": (2**16 + 64 * items, 2**16 + items),
    }
    return {path: BodyBound(min(size, limits.max_body), values) for path, (size, values) in sizes.items()}


class Lanes:
    """Threads that read requests: some for small ones, one for large ones."""

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(_THREADS, "mmspec-read")
        self._large = ThreadPoolExecutor(1, "mmspec-read-large")

    async def run(
        self, request: Request, seconds: float, large: bool, work: Callable[[Callable[[], None]], T], undo: Callable[[T], Any] | None = None
    ) -> T:
        """Return what some work returns that runs in a thread.

        Args:
            request: whose body has been read; the work is abandoned when its client leaves.
            seconds: the time limit.
            large: run it in the lane of large requests.
            work: called with a function that it calls often, and that raises where it is to be abandoned.
            undo: called with the result, if it comes after the work was abandoned.

        Raises:
            ApiError: for every failure, with its status.
        """
        return await answer(request, self._ran(large, work, undo), seconds)

    async def _ran(self, large: bool, work: Callable[[Callable[[], None]], T], undo: Callable[[T], Any] | None) -> T:
        abandoned = Event()

        def check() -> None:
            if abandoned.is_set():
                raise ApiError(GONE, "the client has left")

        def run() -> T:
            check()
            return work(check)

        def dispose(ended: Future[T]) -> None:
            if abandoned.is_set() and undo is not None and not ended.cancelled() and ended.exception() is None:
                undo(ended.result())

        try:
            future = (self._large if large else self._small).submit(run)
        except RuntimeError as error:  # after `close`
            raise EngineClosed(str(error)) from None
        done = False
        try:
            found = await asyncio.wrap_future(future)
            done = True
            return found
        finally:
            if not done:
                abandoned.set()
                future.add_done_callback(dispose)

    def close(self) -> None:
        """End the threads; work that waits is dropped."""
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)


def check_type(request: Request) -> None:
    """Check that a body is announced as JSON. Without that any page in a browser could send requests to a server on the user's machine.

    Args:
        request: the request.

    Raises:
        ApiError: 400, for another type, and for none.
    """
    sent = request.headers.get("content-type")
    kind = (sent or "").partition(";")[0].strip().lower()
    if not (kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))):
        found = "the header Content-Type is missing" if sent is None else f"the header Content-Type is {sent[:60]!r}"
        raise ApiError(400, f"{found}: send the body as JSON, with Content-Type: application/json")


def parsed(content: bytes, kind: type[Body], bound: BodyBound) -> Body:
    """Return a body of JSON.

    Args:
        content: the body.
        kind: what it is.
        bound: what it may hold.

    Raises:
        ApiError: 400 for what is not valid, 413 for too many values.
    """
    if not content.strip():
        raise ApiError(400, "the body is missing: send JSON")
    bound.check(content)
    try:
        given = from_json(content)
    except ValueError as error:
        hint = ": the text holds half of a surrogate pair" if "hex escape" in str(error) else ""
        raise ApiError(400, f"the body is not valid JSON: {error}{hint}") from None
    if not isinstance(given, dict):
        raise ApiError(400, "the body is no JSON object: send {...} with the fields of this endpoint")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise invalid_fields(error, given) from None
