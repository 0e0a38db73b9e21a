"""Outputs of a text request: submitted to the engine, read as they grow, cut before stop strings."""

import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmspec.core.processors.reported import TokenLogprob
from mmspec.core.stats import Stats
from mmspec.core.stopping import STOP
from mmspec.run.settings.processors import StopStrings
from mmspec.serving.handle import RequestHandle
from mmspec.serving.http.errors import ApiError
from mmspec.serving.http.logprobs import LogprobEntries
from mmspec.serving.http.models import TextServed
from mmspec.serving.http.options import ServerLimits
from mmspec.serving.http.schemas.text import TextBody
from mmspec.serving.http.waiting import raise_failure
from mmspec.text.pieces import Pieces

SEEDS = 2**31
"""Seeds that are drawn at random are below it."""


class StopCutter:
    """Passes text on up to the stop string that is complete first; holds back what may be the beginning of one.

    Args:
        stops: the stop strings; none passes all text on.
    """

    def __init__(self, stops: Sequence[str]):
        self.stops, self.held, self.found = tuple(stops), "", False

    def add(self, text: str) -> str:
        """Add text.

        Args:
            text: what follows.

        Returns:
            What can be passed on.
        """
        if self.found:
            return ""
        self.held += text
        places = [(place + len(stop), place) for stop in self.stops if (place := self.held.find(stop)) >= 0]
        if places:  # the first one that is complete, so that it does not matter in which pieces the text comes
            self.found = True
            return self._release(min(places)[1], keep=False)
        return self._release(len(self.held) - self._beginning())

    def rest(self) -> str:
        """Return what was held back, at the end."""
        return self._release(len(self.held))

    def _release(self, count: int, keep: bool = True) -> str:
        passed, self.held = self.held[:count], self.held[count:] if keep else ""
        return passed

    def _beginning(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        most = min(len(self.held), max(map(len, self.stops), default=1) - 1)
        return next((size for size in range(most, 0, -1) if any(stop.startswith(self.held[-size:]) for stop in self.stops)), 0)


class TextChoice:
    """One output of a request.

    Args:
        index: its number in the response.
        handle: the request in the engine.
        served: the model.
        stops: stop strings.
    """

    def __init__(self, index: int, handle: RequestHandle, served: TextServed, stops: Sequence[str]):
        self.index, self.handle = index, handle
        self._pieces, self._cutter = Pieces(served.pair.decode), StopCutter(stops)
        self._read = self._told = 0  # tokens read, and characters of their text
        self._given = 0  # characters of the text that were given out
        self._entries = LogprobEntries(served.pair.decode)
        self.told = False  # its end was read

    def read(self) -> str:
        """Return the text since the last call. After the last token `told` is True.

        Raises:
            Exception: what ended the request, if it failed.
        """
        done, tokens, logprobs = self.handle.done, self.handle.tokens, self.handle.logprobs
        new = range(self._read, len(tokens))
        text = "".join([self._cutter.add(self._piece(tokens[place], logprobs[place : place + 1])) for place in new])
        self._read = len(tokens)
        if done and not self.told:
            raise_failure(self.handle)
            text += self._cutter.add(self._pieces.rest()) + self._cutter.rest()
            self.told = True
        self._given += len(text)
        return text

    def logprobs(self) -> list[dict[str, Any]]:
        """Return the entries of `LogprobEntries` that belong to the text read so far and were not returned before."""
        return self._entries.take(self._given)

    def _piece(self, token: int, logprobs: Sequence[TokenLogprob]) -> str:
        """The text that is complete with a token, whose log-probabilities, if they are asked for, are noted."""
        for found in logprobs:
            self._entries.add(self._pieces.context, token, self._told, found)
        piece = self._pieces.push([token])
        self._told += len(piece)
        return piece

    @property
    def finish_reason(self) -> str:
        """ "length" if the output was cut at its `max_tokens`, else "stop"; to be read after the end."""
        return STOP if self._cutter.found else self.handle.finish_reason or STOP


class Choices:
    """All outputs of a request: `n` for each prompt.

    Args:
        served: the model.
        prompts: what the target takes for one row each: `input_ids`, LongTensor [1, P], and what stands for pictures.
        body: the request.
        max_tokens: the most new tokens of each output.
        seed: of the first output of each prompt; output i draws with seed + i.
        client: who asks.
        check: called between outputs; raises where the work is to be abandoned.

    Raises:
        ValueError: for invalid arguments.
        Full: of `queue`, if the queue has no place for all outputs.
    """

    def __init__(
        self,
        served: TextServed,
        prompts: Sequence[Mapping[str, Tensor]],
        body: TextBody,
        max_tokens: Sequence[int],
        seed: int,
        client: Hashable,
        check: Callable[[], None],
    ):
        self.served, self.seed, self.all = served, seed, []
        self.prompt_tokens = sum(inputs["input_ids"].shape[1] for inputs in prompts)
        stops = (StopStrings(body.stops, served.pair.decode),) if body.stops else ()
        options: dict[str, Any] = {
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "top_k": body.top_k,
            "top_p": None if body.top_p == 1 else body.top_p,
            "repetition_penalty": body.repetition_penalty,
            "stops": stops,
            "logprobs": body.reported,
        }
        try:
            for inputs, most in zip(prompts, max_tokens, strict=True):
                for number in range(body.n):
                    check()
                    handle = served.engine.submit(inputs, seed=seed + number, max_new_tokens=most, client=client, **options)
                    self.all.append(TextChoice(len(self.all), handle, served, body.stops))
        except BaseException:
            self.cancel()
            raise

    @property
    def handles(self) -> list[RequestHandle]:
        """The requests in the engine."""
        return [choice.handle for choice in self.all]

    @property
    def stats(self) -> list[Stats]:
        """Statistics of every output."""
        return [handle.stats for handle in self.handles]

    def cancel(self) -> None:
        """End all outputs before the next round."""
        for handle in self.handles:
            handle.cancel()

    def usage(self) -> dict[str, int]:
        """Return the token counts in OpenAI's shape."""
        made = sum(len(handle.tokens) for handle in self.handles)
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": made, "total_tokens": self.prompt_tokens + made}

    def facts(self) -> dict[str, Any]:
        """Return what mmspec adds to a response: the seed, and the counts of speculative decoding."""
        return drafting_facts(self.seed, self.stats)


def drafting_facts(seed: int | None, all_stats: Sequence[Stats]) -> dict[str, Any]:
    """Return the seed and the counts of speculative decoding of a response.

    Args:
        seed: of the first output; None where nothing is drawn.
        all_stats: statistics of all outputs.
    """
    counts = {name: sum(getattr(stats, name) for stats in all_stats) for name in ("tokens", "row_calls", "drafted", "accepted")}
    exactness = next((stats.exactness for stats in all_stats), "")
    per_call = counts["tokens"] / max(1, counts["row_calls"])
    return ({} if seed is None else {"seed": seed}) | {"exactness": exactness, "tokens_per_call": round(per_call, 4)} | counts


def seed_of(given: int | None) -> int:
    """Return the seed of a request, drawn at random if it gave none.

    Args:
        given: the seed in the request.
    """
    return secrets.randbelow(SEEDS) if given is None else given


def most_tokens(
    served: TextServed, inputs: Mapping[str, Tensor], asked: int | None, default: int, limits: ServerLimits, name: str = "max_tokens"
) -> int:
    """Return the most new tokens of an output.

    Args:
        served: the model.
        inputs: the prompt, as in `Choices`.
        asked: what the request asks for, or None.
        default: what it gets where it does not ask, if the model has room for it.
        limits: bounds of the server.
        name: the field.

    Returns:
        The number.

    Raises:
        ApiError: 400, above the server's limit.
    """
    if asked is not None:
        if asked > limits.max_tokens:
            raise ApiError(400, f"{name} is {asked}: this server makes at most {limits.max_tokens} tokens", name)
        return asked
    room = served.engine.model.max_length
    least = min(default, limits.max_tokens)
    return least if room is None else max(1, min(least, room - inputs["input_ids"].shape[1]))


def checked_ids(served: TextServed, ids: Sequence[int]) -> dict[str, Tensor]:
    """Return token ids as a prompt of one row.

    Args:
        served: the model.
        ids: the ids.

    Returns:
        `input_ids`, LongTensor [1, P], on the target's device.

    Raises:
        ApiError: 400, for no ids, and for ids that the model does not have.
    """
    room = served.engine.model.max_length
    if room is not None and len(ids) > room:
        message = f"the prompt has {len(ids)} tokens: the model has {room} positions"
        raise ApiError(400, message, "prompt", "context_length_exceeded")
    size = served.pair.target.config.get_text_config(decoder=True).vocab_size
    if not ids or not 0 <= min(ids) <= max(ids) < size:
        raise ApiError(400, f"the prompt has no ids or ids out of range: the model has tokens 0 to {size - 1}", "prompt")
    return {"input_ids": torch.tensor([ids], dtype=torch.long, device=served.pair.target.device)}
