"""Seconds of a generation by phase and round."""

from time import perf_counter


class RoundClock:
    """Seconds by phase, see `core.stats.PHASES`. On a GPU, work is counted in the phase in which the host waits for it.

    Args:
        encoded: seconds that the target's encoder has already taken.
    """

    def __init__(self, encoded: float):
        self.last = perf_counter()
        self.start = self.last - encoded
        self.spent = {"encode": encoded}
        self.firsts = {"score": "prefill", "draft": "draft_prefill"}

    def lap(self, phase: str) -> None:
        """Count the seconds since the last call as those of a phase.

        Args:
            phase: name of the phase.
        """
        now = perf_counter()
        phase = self.firsts.get(phase, phase)
        self.spent[phase] = self.spent.get(phase, 0.0) + now - self.last
        self.last = now

    def draft_tokens(self, made: bool) -> bool:
        """Note whether a round has draft tokens; a drafter's work after its first ones is not counted as prefill.

        Args:
            made: the round has draft tokens.

        Returns:
            True for the first ones.
        """
        return made and self.firsts.pop("draft", None) is not None

    def round(self) -> dict[str, float]:
        """End a round.

        Returns:
            Its seconds by phase.
        """
        now = perf_counter()
        total = now - self.start
        spent = self.spent | {"other": max(0.0, total - sum(self.spent.values())), "total": total}
        self.start = self.last = now
        self.spent = {}
        self.firsts.pop("score", None)
        return spent
