"""Several generations that run in turns, and the seconds of each."""

from threading import Condition
from time import perf_counter

from mmspec.serving.openmp import release_threads


class Turns:
    """Lets one of several generations run at a time: after every round, the one that has run for the fewest seconds goes on.

    So each runs undisturbed, and its seconds are those of its own rounds. Safe under threads; every generation has a thread of its own.

    Args:
        count: number of generations.

    Attributes:
        seconds: seconds that each generation has run.
    """

    def __init__(self, count: int):
        self.seconds = [0.0] * count
        self._open = set(range(count))
        self._turn = 0
        self._since = 0.0
        self._changed = Condition()

    def enter(self, generation: int) -> None:
        """Wait for the first turn and start the clock.

        Args:
            generation: its number.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._turn == generation)
        self._since = perf_counter()

    def pause(self, generation: int) -> float:
        """Stop the clock; the turn is kept.

        Args:
            generation: its number, whose turn it is.

        Returns:
            Seconds since the clock was started.
        """
        spent = perf_counter() - self._since
        self.seconds[generation] += spent
        return spent

    def resume(self, generation: int) -> None:
        """Let the generation that is behind run, wait for the next turn, and start the clock.

        Args:
            generation: its number, whose turn it was.
        """
        with self._changed:
            self._pass_on()
            if self._turn != generation:
                release_threads()
            self._changed.wait_for(lambda: self._turn == generation)
        self._since = perf_counter()

    def leave(self, generation: int) -> None:
        """End a generation, with its clock stopped.

        Args:
            generation: its number, whose turn it is.
        """
        release_threads()
        with self._changed:
            self._open.discard(generation)
            self._pass_on()

    def _pass_on(self) -> None:
        if self._open:
            self._turn = min(self._open, key=lambda each: self.seconds[each])
            self._changed.notify_all()
