"""`/v1/completions` and `/v1/chat/completions`."""

import json
import secrets
from collections.abc import Callable
from time import time
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from torch import Tensor

from mmspec.serving.http.chat import chat_inputs
from mmspec.serving.http.choices import Choices, TextChoice, checked_ids, most_tokens, seed_of
from mmspec.serving.http.endpoints.shared import EVENTS, ServerState, check_count, client_of, in_lane, read_body, server_state, text_events
from mmspec.serving.http.errors import ApiError
from mmspec.serving.http.logprobs import chat_logprobs, completion_logprobs
from mmspec.serving.http.models import TextServed
from mmspec.serving.http.schemas.text import ChatBody, CompletionBody, TextBody
from mmspec.serving.http.waiting import all_ended, answer

router = APIRouter()
COMPLETION_TOKENS = 16
"""New tokens of a completion that does not say how many, as OpenAI's."""


@router.post("/v1/completions")
async def complete(request: Request) -> Response:
    """Continue prompts.

    Args:
        request: the request; its body is `CompletionBody`.

    Returns:
        The completions, or a stream of them.

    Raises:
        ApiError: for what is wrong with the request.
    """
    state = server_state(request)
    body, large = await read_body(request, CompletionBody)
    served: TextServed = state.models.find("text", body.model)
    head = _head("cmpl", "text_completion", served.id)

    def row(choice: TextChoice, text: str, reason: str | None) -> dict[str, Any]:
        logprobs = None if body.reported is None else completion_logprobs(choice.logprobs())
        return {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def start(check: Callable[[], None]) -> Choices:
        check_count(state, len(body.prompts) * body.n)
        prompts = [_completion_inputs(served, prompt, check) for prompt in body.prompts]
        most = [most_tokens(served, inputs, body.max_tokens, COMPLETION_TOKENS, state.limits) for inputs in prompts]
        return Choices(served, prompts, body, most, seed_of(body.seed), client_of(request), check)

    return await _respond(request, body, large, start, head, head, row, None)


@router.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    """Answer a chat, through the chat template of the model's tokenizer, or of its processor if it reads pictures.

    Args:
        request: the request; its body is `ChatBody`.

    Returns:
        The answers, or a stream of them.

    Raises:
        ApiError: for what is wrong with the request.
    """
    state = server_state(request)
    body, large = await read_body(request, ChatBody)
    served: TextServed = state.models.find("text", body.model)
    head = _head("chatcmpl", "chat.completion", served.id)
    chunks = head | {"object": "chat.completion.chunk"}

    def row(choice: TextChoice, text: str, reason: str | None) -> dict[str, Any]:
        logprobs = None if body.reported is None else chat_logprobs(choice.logprobs())
        shared = {"index": choice.index, "logprobs": logprobs, "finish_reason": reason}
        if body.stream:
            return shared | {"delta": {"content": text} if text else {}}
        return shared | {"message": {"role": "assistant", "content": text}}

    def opening(choice: TextChoice) -> dict[str, Any]:
        first = {"index": choice.index, "logprobs": None, "finish_reason": None, "delta": {"role": "assistant", "content": ""}}
        return chunks | {"choices": [first]}

    def start(check: Callable[[], None]) -> Choices:
        check_count(state, body.n)
        inputs = chat_inputs(served, body.messages, state.limits.max_inputs, check)
        asked, name = _asked_tokens(body)
        most = most_tokens(served, inputs, asked, state.limits.max_tokens, state.limits, name)
        return Choices(served, [inputs], body, [most], seed_of(body.seed), client_of(request), check)

    large = large or any(message.pictures for message in body.messages)  # small files may be large pictures
    return await _respond(request, body, large, start, head, chunks, row, opening)


async def _respond(
    request: Request,
    body: TextBody,
    large: bool,
    start: Callable[[Callable[[], None]], Choices],
    head: dict[str, Any],
    chunk_head: dict[str, Any],
    row: Callable[[TextChoice, str, str | None], dict[str, Any]],
    opening: Callable[[TextChoice], dict[str, Any]] | None,
) -> Response:
    """Submit the outputs, and return the response or the stream."""
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options is for streams: leave it out, or send stream true", "stream_options")
    state = server_state(request)
    choices = await in_lane(request, large, start, Choices.cancel)
    if not body.stream:
        return await _whole(request, state, choices, head, row)
    usage = body.stream_options is not None and body.stream_options.include_usage

    def chunk(choice: TextChoice | None, text: str, reason: str | None) -> dict[str, Any]:
        return chunk_head | {"choices": [] if choice is None else [row(choice, text, reason)]}

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(text_events(state, choices, chunk, opening, usage), media_type=EVENTS, headers=headers)


async def _whole(request: Request, state: ServerState, choices: Choices, head: dict[str, Any], row: Callable[..., Any]) -> Response:
    try:
        await answer(request, all_ended(choices.handles), state.limits.timeout)
        rows = [row(choice, choice.read(), choice.finish_reason) for choice in choices.all]
    finally:
        choices.cancel()
        state.metrics.add(choices.served.id, choices.stats)
    found = head | {"choices": rows, "usage": choices.usage(), "mmspec": choices.facts()}
    return Response(json.dumps(found, ensure_ascii=False), media_type="application/json")


def _head(kind: str, name: str, model: str) -> dict[str, Any]:
    return {"id": f"{kind}-{secrets.token_hex(12)}", "object": name, "created": int(time()), "model": model}


def _completion_inputs(served: TextServed, prompt: str | list[int], check: Callable[[], None]) -> dict[str, Tensor]:
    if not isinstance(prompt, str):
        return checked_ids(served, prompt)
    ids = served.ids_of(prompt, check, "prompt")
    if not ids:
        raise ApiError(400, "the prompt is empty: it needs at least one token", "prompt")
    return checked_ids(served, ids)


def _asked_tokens(body: ChatBody) -> tuple[int | None, str]:
    """The number of new tokens that a chat asks for, and the field it is in."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ApiError(400, "max_tokens and max_completion_tokens were both sent: send one of them", "max_tokens")
    if body.max_completion_tokens is not None:
        return body.max_completion_tokens, "max_completion_tokens"
    return body.max_tokens, "max_tokens"
