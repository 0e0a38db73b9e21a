"""What the endpoints share: the state of the application, and streams of server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from mmspec.serving.http.bodies import SMALL, BodyBound, Lanes, check_type, parsed
from mmspec.serving.http.choices import Choices, TextChoice
from mmspec.serving.http.errors import ApiError, api_error, timed_out
from mmspec.serving.http.gate import CLIENT
from mmspec.serving.http.metrics import ServerMetrics
from mmspec.serving.http.models import ServedModels, WorkerServed
from mmspec.serving.http.options import ServerLimits
from mmspec.serving.http.waiting import Changes, answer, job_result
from mmspec.serving.http.worker import SharedCall, WorkerJob

EVENTS = "text/event-stream"
QUIET = 10.0
"""Seconds without an event after which a stream gets a comment, so that proxies and clients do not take it for dead."""
KEEP_ALIVE = b": keep-alive\n\n"
T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True)
class ServerState:
    """What endpoints work with.

    Args:
        models: the models.
        limits: bounds of requests.
        metrics: where work is counted.
        bounds: what bodies may hold, by path.
        lanes: threads that read requests.
    """

    models: ServedModels
    limits: ServerLimits
    metrics: ServerMetrics
    bounds: Mapping[str, BodyBound]
    lanes: Lanes

    def stop(self) -> None:
        """Cancel all requests, and end all threads. Blocks until they have ended."""
        self.lanes.close()
        self.models.close()


def server_state(request: Request) -> ServerState:
    """Return the state of the application that a request was sent to.

    Args:
        request: the request.
    """
    return request.app.state.server


def client_of(request: Request) -> str:
    """Return the name of a request's client: of its API key if keys are asked for, else its address.

    Args:
        request: the request.
    """
    return request.scope.get(CLIENT, "")


async def in_lane(request: Request, large: bool, work: Callable[[Callable[[], None]], T], undo: Callable[[T], Any] | None = None) -> T:
    """Run some work on a request in a thread, until its client leaves; see `Lanes.run`.

    Args:
        request: the request.
        large, work, undo: as in `Lanes.run`.

    Returns:
        What `work` returns.

    Raises:
        ApiError: for every failure, with its status.
    """
    state = server_state(request)
    return await state.lanes.run(request, state.limits.timeout, large, work, undo)


async def read_body(request: Request, kind: type[Body]) -> tuple[Body, bool]:
    """Read and check the body of a request.

    Args:
        request: the request.
        kind: what the body is.

    Returns:
        The body, and whether it is a large one.

    Raises:
        ApiError: for what is wrong with it.
    """
    check_type(request)
    content, bound = await request.body(), server_state(request).bounds[request.url.path]
    request._body = b""  # read, and kept by nobody
    large = len(content) > SMALL
    return await in_lane(request, large, lambda _: parsed(content, kind, bound)), large


def check_count(state: ServerState, count: int) -> None:
    """Check how many outputs a request asks for.

    Args:
        state: the server's.
        count: the outputs.

    Raises:
        ApiError: 400, for none, or more than the server makes at a time.
    """
    most = min(state.limits.max_inputs, state.limits.max_rows + state.limits.max_queue)
    if not 1 <= count <= most:
        raise ApiError(400, f"the request asks for {count} outputs: this server makes 1 to {most} at a time", "n")


def submitted(request: Request, served: WorkerServed, run: Callable[[WorkerJob], Any] | SharedCall) -> WorkerJob:
    """Queue a job of a model.

    Args:
        request: the request.
        served: the model.
        run: as in `WorkerJob`.

    Returns:
        The job.

    Raises:
        ApiError: 429, for a full queue; 503, while the server is being stopped.
    """
    try:
        return served.worker.submit(run, client_of(request))
    except Exception as error:
        raise api_error(error) from error


async def worked(request: Request, served: WorkerServed, run: Callable[[WorkerJob], Any] | SharedCall) -> Any:
    """Queue a job of a model and wait for it.

    Args:
        request: the request; the job is cancelled when its client leaves or the time is over.
        served: the model.
        run: as in `WorkerJob`.

    Returns:
        What `run` returns.

    Raises:
        ApiError: for every failure, with its status.
    """
    return await answer(request, job_result(submitted(request, served, run)), server_state(request).limits.timeout)


def event(data: dict[str, Any] | str) -> bytes:
    """Return a server-sent event.

    Args:
        data: an object, sent as JSON, or a word.
    """
    text = data if isinstance(data, str) else json.dumps(data)  # in ASCII: some clients break lines at U+2028 and the like
    return f"data: {text}\n\n".encode()


Chunk = Callable[[TextChoice | None, str, str | None], dict[str, Any]]
"""(the output, or None for the usage; its new text; its finish reason or None) -> the chunk."""


async def text_events(
    state: ServerState, choices: Choices, chunk: Chunk, opening: Callable[[TextChoice], dict[str, Any]] | None, usage: bool
) -> AsyncIterator[bytes]:
    """Stream the outputs of a text request as they grow. They are cancelled when the client leaves or the time is over.

    Args:
        state: the server's.
        choices: the outputs.
        chunk: makes the chunks.
        opening: makes a first chunk of each output, if there is one.
        usage: send the token counts in a last chunk.

    Yields:
        Server-sent events, [DONE] last; after an error an event with it, and nothing more.
    """
    until = asyncio.get_running_loop().time() + state.limits.timeout
    try:
        changes, left = Changes(choices.handles), list(choices.all)
        for choice in left if opening is not None else ():
            yield event(opening(choice))  # type: ignore[misc]
        while left:
            now = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout_at(min(until, now + QUIET)):
                    await changes.wait()
            except TimeoutError:
                if now + QUIET >= until:
                    raise timed_out(state.limits.timeout) from None
                yield KEEP_ALIVE
                continue
            for choice in left:
                if text := choice.read():
                    yield event(chunk(choice, text, None))
                if choice.told:
                    yield event(chunk(choice, "", choice.finish_reason))
            left = [choice for choice in left if not choice.told]
        if usage:
            yield event(chunk(None, "", None) | {"usage": choices.usage(), "mmspec": choices.facts()})
        yield event("[DONE]")
    except Exception as error:  # the status has been sent
        yield event(api_error(error).content)
    finally:
        choices.cancel()
        state.metrics.add(choices.served.id, choices.stats)
