"""The handle of a submitted request: its tokens as they are committed, its result, and its end."""

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import fields, replace
from threading import Condition
from time import monotonic
from typing import Any

from mmspec.core.processors.reported import TokenLogprob
from mmspec.core.records import Committed, Step
from mmspec.core.stats import Stats
from mmspec.core.stopping import STOP
from mmspec.serving.model_thread import check_process, check_wait
from mmspec.serving.models.base import EngineWork


class RequestHandle:
    """A request in an engine. Safe under threads.

    Args:
        work: the request.
        priority: larger ones start first.
        exactness: of the engine's accept rule.
        client: who asked for it.
    """

    def __init__(self, work: EngineWork, priority: int, exactness: str, client: Hashable = None):
        self.work, self.priority, self.client = work, priority, client
        self.stats = Stats(exactness=exactness)
        self.cancelled = False  # asked for; the row leaves before the next round
        self._output = work.output()
        self._tokens: list[Any] = []
        self._pieces: list[Any] = []  # what `stream` yields
        self._logprobs: list[TokenLogprob] = []  # as many as tokens where they are asked for
        self._seen = 0  # tokens of the run under way, which may be a second one
        self._state = Condition()
        self.submitted = monotonic()
        self._latency: float | None = None
        self._watchers: list[Callable[[], object]] = []
        self._ended = False
        self._process = os.getpid()
        self._reason: str | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True once the request has finished, failed or been cancelled."""
        return self._ended

    @property
    def finish_reason(self) -> str | None:
        """Why the output ended: "stop" at its end, "length" at the longest length that the request allows; None before."""
        return self._reason

    @property
    def latency(self) -> float | None:
        """Seconds from submission to the end; None before it."""
        return self._latency

    @property
    def tokens(self) -> list[Any]:
        """The tokens committed so far: ids, or frames of ids."""
        with self._state:
            return list(self._tokens)

    @property
    def pieces(self) -> list[Any]:
        """What `stream` has to yield so far: tokens, or pieces of sound."""
        with self._state:
            return list(self._pieces)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """The log-probabilities of the tokens committed so far; none if they were not asked for."""
        with self._state:
            return list(self._logprobs)

    def cancel(self) -> None:
        """End the request before the next round. Nothing happens if it has ended."""
        self.cancelled = True

    def watch(self, changed: Callable[[], object]) -> None:
        """Have a function called when there are new tokens and at the end, such as to wake a coroutine.

        Args:
            changed: called without arguments in the engine's thread, so it should return at once and raise nothing; and once by this
                method, as there may be tokens already.
        """
        with self._state:
            self._watchers.append(changed)
        changed()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end of the request.

        Args:
            timeout: seconds to wait; None for no limit.

        Returns:
            What the modality's own call returns for this request alone, such as `mmspec.text.generate`: `tokens`, `lengths` and the
            request's own `stats`. The seconds of `stats` are those of the rounds that it took part in.

        Raises:
            ValueError: for a timeout that is no number from 0 on.
            TimeoutError: if it has not ended by then.
            RuntimeError: if it has not ended, in a process that was forked from the engine's.
            concurrent.futures.CancelledError: if it was cancelled.
            Exception: what ended it, such as FloatingPointError for logits that are not finite.
        """
        timeout = check_wait("timeout", timeout)
        if not self._ended:
            check_process(self._process, "request")
            with self._state:
                if not self._state.wait_for(lambda: self._ended, timeout):
                    raise TimeoutError(f"the request has not ended after {timeout} s")
        if self._error is not None:
            raise self._error
        return replace(self._output.result(self._tokens, self.stats), finish_reasons=(self._reason,))

    def stream(self, decode: Callable[[list[int]], str] | None = None) -> Iterator[Any]:
        """Return an iterator over what is committed, from the first token on, as it comes.

        Args:
            decode: maps ids to text, such as a tokenizer's `decode`. Then pieces of text are yielded, which end between characters.

        Returns:
            An iterator over token ids, or over pieces of text; of a speech model over pieces of sound, float [samples], which are final.

        Raises:
            ValueError: for `decode` where the tokens are no text.
            concurrent.futures.CancelledError: after the last token, if the request was cancelled.
            Exception: after the last token, what ended the request.
        """
        return self._output.stream(self._each(), decode)

    def _each(self) -> Iterator[Any]:
        if not self._ended:
            check_process(self._process, "request")
        place = 0
        while True:
            with self._state:
                self._state.wait_for(lambda: self._ended or len(self._pieces) > place)  # noqa: B023
                new = self._pieces[place:]
            yield from new
            place += len(new)
            if not new:
                break
        if self._error is not None:
            raise self._error

    # --- for the engine -----------------------------------------------------------------------------------------------

    def add(self, step: Step, row: int) -> None:
        """Take in a row of a round; the tokens of a second run that were there before are left out.

        Args:
            step: the round.
            row: the request's row.
        """
        values = step.committed.values[row]
        own = replace(step, committed=_row_of(step.committed, row))
        new = max(0, len(self._tokens) - self._seen)
        pieces = self._output.add(values[new:], step.committed.ended[row])
        if step.committed.ended[row]:
            self._output.end(own.committed)
            self._reason = STOP if own.committed.finish_reasons is None else own.committed.finish_reasons[0]
        with self._state:
            self.stats.add(own)
            self._tokens += values[new:]
            self._pieces += pieces
            self._logprobs += [] if step.logprobs is None else step.logprobs[row][new:]
            self._seen += len(values)
            self._state.notify_all()
        self._tell()

    def restart(self) -> None:
        """Begin a second run, which commits the same tokens: noise depends on the seed and output positions alone."""
        self._seen, self.stats = 0, Stats(exactness=self.stats.exactness)

    def end(self, error: BaseException | None = None) -> None:
        """End the request.

        Args:
            error: what ended it; None where it finished.
        """
        with self._state:
            if not self._ended:
                self._ended, self._error, self._latency = True, error, monotonic() - self.submitted
                self._state.notify_all()
        self._tell()

    def drop(self) -> None:
        """End the request as cancelled."""
        self.end(CancelledError("the request was cancelled"))

    def _tell(self) -> None:
        with self._state:
            watchers = list(self._watchers)
        for changed in watchers:
            changed()


def _row_of(committed: Committed, row: int) -> Committed:
    parts: dict[str, Any] = {each.name: getattr(committed, each.name) for each in fields(Committed)}
    return Committed(**{name: [part[row]] if isinstance(part, Sequence) else part for name, part in parts.items()})
