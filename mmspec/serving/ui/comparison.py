"""Plain and speculative decoding of one request, in turns on one model, and what a page shows of them."""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError
from threading import Thread
from time import perf_counter, sleep
from typing import Any, Protocol

import torch

from mmspec.core.decode import OnStep
from mmspec.core.records import Step
from mmspec.core.stats import Stats
from mmspec.serving.http.worker import WorkerJob
from mmspec.serving.ui.turns import Turns

_WARM_UP = 3  # rounds
_SLICE = 0.05  # seconds


class LiveView(Protocol):
    """What is seen of one generation. Filled by the generation's thread, read by others."""

    def add(self, step: Step) -> None:
        """Take in a round.

        Args:
            step: the round.
        """
        ...

    def finish(self, out: Any) -> None:
        """Take in the result.

        Args:
            out: what the public call returned.
        """
        ...


class LiveGeneration:
    """One generation of a comparison.

    Args:
        name: "plain" or "speculative".
        generate: calls the public call with a view, for callbacks of its own, and an `on_step`; returns the result.
        make_view: makes an empty view.
        key: what must have run once before its seconds are those of later runs: the model, the drafter, the method.

    Attributes:
        view: what is seen of it.
        stats: counts so far.
        out: the result; None before the end.
        seconds: seconds that it has run.
        state: "waiting", "running", "done" or "stopped".
    """

    def __init__(self, name: str, generate: Callable[[Any, OnStep], Any], make_view: Callable[[], Any], key: Hashable):
        self.name, self.generate, self.make_view, self.key = name, generate, make_view, key
        self.view: Any = make_view()
        self.stats = Stats()
        self.out: Any = None
        self.seconds = 0.0
        self.state = "waiting"


class LiveComparison:
    """Generations of one request in turns.

    Args:
        generations: the generations; the first is plain decoding.
        slow: how many times longer a round is made to take for a viewer; the waiting is not counted as seconds of a generation.
    """

    def __init__(self, generations: Sequence[LiveGeneration], slow: float = 1.0):
        self.generations, self.slow = tuple(generations), slow
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """True once all generations have ended."""
        return all(generation.state == "done" for generation in self.generations)

    def run(self, job: WorkerJob, warm: set[Hashable]) -> None:
        """Run all generations to their ends.

        Args:
            job: ends the generations before their next rounds if it is cancelled.
            warm: keys of generations that have run before; those of others are added after a few rounds that are not shown, so that
                allocations and the self-test of an architecture are not counted as seconds of the first run.

        Raises:
            CancelledError: of `concurrent.futures`, if the job was cancelled.
            Exception: what one of the generations raised.
        """
        for generation in self.generations:
            if generation.key not in warm:
                _warm_up(generation, job)
                warm.add(generation.key)
        turns = Turns(len(self.generations))
        threads = [Thread(target=self._run, args=(number, turns, job), daemon=True) for number in range(len(self.generations))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def mark_stopped(self) -> None:
        """Give generations that have not ended, and will not, the state "stopped"."""
        for generation in self.generations:
            if generation.state != "done":
                generation.state = "stopped"

    def _run(self, number: int, turns: Turns, job: WorkerJob) -> None:
        generation = self.generations[number]
        turns.enter(number)

        def watch(step: Step) -> None:
            spent = turns.pause(number)
            generation.seconds = turns.seconds[number]
            generation.stats.add(step)
            generation.view.add(step)
            _wait((self.slow - 1) * spent, job)
            turns.resume(number)
            self._check(job)

        try:
            self._check(job)
            generation.state = "running"
            with torch.no_grad():
                out = generation.generate(generation.view, watch)
            turns.pause(number)
            generation.seconds = turns.seconds[number]
            generation.view.finish(out)
            generation.out, generation.state = out, "done"
        except BaseException as error:
            self._error = self._error or error
        finally:
            turns.leave(number)

    def _check(self, job: WorkerJob) -> None:
        """Raise CancelledError if the job was cancelled or another generation has failed."""
        job.on_step()
        if self._error is not None:
            raise CancelledError("another generation of the comparison has failed")


def _wait(seconds: float, job: WorkerJob) -> None:
    """Wait, unless the job is cancelled, which raises CancelledError."""
    end = perf_counter() + seconds
    while (left := end - perf_counter()) > 0:
        sleep(min(left, _SLICE))
        job.on_step()


class _WarmedUp(Exception):
    """Ends the rounds before a comparison."""


def _warm_up(generation: LiveGeneration, job: WorkerJob) -> None:
    rounds = 0

    def count(step: Step) -> None:
        nonlocal rounds
        job.on_step()
        rounds += 1
        if rounds >= _WARM_UP:
            raise _WarmedUp

    try:
        with torch.no_grad():
            generation.generate(generation.make_view(), count)
    except _WarmedUp:
        pass
