"""SPEED (Hooper et al. 2023, 2310.12072): the next tokens start from early predictions inside one decoder whose layers share weights."""

from dataclasses import dataclass

from mmspec.bench.schedules.early_exit import PpdSchedule, tokens_in_work


@dataclass(frozen=True)
class SpeedSchedule(PpdSchedule):
    """Pipelined early predictions over cyclic shared layers: tokens in work at the same time are columns of the same forward.

    The stages are passes through the same weights, so that one device runs all of them, and every pass scores as many columns as there are
    tokens in work.

    Args:
        after, match, candidates: as in `PpdSchedule`.

    Raises:
        ValueError: as `PpdSchedule`.
    """

    @property
    def name(self) -> str:
        return "speed"

    @property
    def paper(self) -> str:
        return "Hooper et al. 2023 (SPEED)"

    def columns(self, stages: int) -> int:
        return self.candidates * tokens_in_work(self.after, stages)
