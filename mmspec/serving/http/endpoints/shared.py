"""What the endpoints share: the state of the application, and streams of server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from mmspec.serving.http.choices import Choices, TextChoice
from mmspec.serving.http.errors import ApiError, api_error, timed_out
from mmspec.serving.http.metrics import ServerMetrics
from mmspec.serving.http.models import ServedModels, WorkerServed
from mmspec.serving.http.options import ServerLimits
from mmspec.serving.http.waiting import Changes, answer, job_result
from mmspec.serving.http.worker import SharedCall, WorkerJob

EVENTS = "text/event-stream"


@dataclass(frozen=True)
class ServerState:
    """What endpoints work with.

    Args:
        models: the models.
        limits: bounds of requests.
        metrics: where work is counted.
    """

    models: ServedModels
    limits: ServerLimits
    metrics: ServerMetrics


def server_state(request: Request) -> ServerState:
    """Return the state of the application that a request was sent to.

    Args:
        request: the request.
    """
    return request.app.state.server


def check_count(state: ServerState, count: int) -> None:
    """Check how many outputs a request asks for.

    Args:
        state: the server's.
        count: the outputs.

    Raises:
        ApiError: 400, for none, or more than the server makes at a time.
    """
    if not 1 <= count <= state.limits.max_inputs:
        raise ApiError(400, f"the request asks for {count} outputs: this server makes 1 to {state.limits.max_inputs} at a time", "n")


def submitted(served: WorkerServed, run: Callable[[WorkerJob], Any] | SharedCall) -> WorkerJob:
    """Queue a job of a model.

    Args:
        served: the model.
        run: as in `WorkerJob`.

    Returns:
        The job.

    Raises:
        ApiError: 429, for a full queue; 503, while the server is being stopped.
    """
    try:
        return served.worker.submit(run)
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
    return await answer(request, job_result(submitted(served, run)), server_state(request).limits.timeout)


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
            try:
                async with asyncio.timeout_at(until):
                    await changes.wait()
            except TimeoutError:
                raise timed_out(state.limits.timeout) from None
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
