"""Decoding that starts the next token from an early layer's prediction of this one: PPD (Yang et al. 2023, 2307.05908)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from mmspec.bench.schedules.cycles import ExpectedCycle, rate_at
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.schedule import refuse_rows
from mmspec.bench.schedules.simulation import SimulatedCalls, SimulatedRun


@dataclass(frozen=True)
class PpdSchedule:
    """Predictive pipelined decoding over a target of stages: `candidates` likely tokens after stage `after` each start the next token.

    Where the token is among them, with chance `match`, the next one has begun when this one passed stage `after`; else it begins when this
    one is complete, and what was begun is discarded. So tokens are match * after / stages + 1 - match forwards apart. The drafter is the
    target's own early layers. One row.

    Args:
        after: stage behind which tokens are predicted, from 1.
        match: chance that the token is among the candidates.
        candidates: tokens that are tried, as columns of one forward.

    Raises:
        ValueError: for counts below 1, and a chance out of range.
    """

    after: int
    match: float
    candidates: int = 1

    def __post_init__(self):
        if min(self.after, self.candidates) < 1 or not 0 <= self.match <= 1:
            text = f"after, match and candidates are {self.after}, {self.match} and {self.candidates}"
            raise ValueError(f"{text}: give a stage and a count of at least 1, and a chance from 0 to 1")

    @property
    def name(self) -> str:
        return "ppd"

    @property
    def setting(self) -> str:
        return f"exit after stage {self.after}"

    @property
    def paper(self) -> str:
        return "Yang et al. 2023 (PPD)"

    def devices(self, machine: PlannedMachine) -> int:
        return machine.stages

    def columns(self, stages: int) -> int:
        """Return the columns of a stage's forward.

        Args:
            stages: stages of the target.

        Returns:
            The candidates: stages run different tokens at the same time, each on its own device.
        """
        return self.candidates

    def expect(self, machine: PlannedMachine, rates: Sequence[float]) -> ExpectedCycle:
        self._check(machine)
        whole = machine.score(self.columns(machine.stages))
        return ExpectedCycle(1.0, whole * (self.match * self.after / machine.stages + 1 - self.match))

    def simulate(self, calls: SimulatedCalls, tokens: int) -> SimulatedRun:
        self._check(calls.machine)
        share, begun = self.after / calls.machine.stages, 0.0
        while calls.tokens < tokens:
            whole = calls.score(self.columns(calls.machine.stages))
            calls.seconds, calls.tokens = max(calls.seconds, begun + whole), calls.tokens + 1
            begun += whole * (share if calls.random.random() < self.match else 1.0)
        return calls.run()

    def _check(self, machine: PlannedMachine) -> None:
        """ValueError for several rows, and for an exit behind the last stage."""
        refuse_rows(machine, self.name)
        if self.after >= machine.stages:
            raise ValueError(f"{self.name} exits after stage {self.after} of {machine.stages}: give an earlier stage")


def exit_rates(match: Sequence[float], stages: int) -> dict[int, float]:
    """Read the chance of a right early prediction by the stage behind which it is made.

    Args:
        match: one chance, which is taken to hold in the middle of the target, or one for each stage but the last.
        stages: stages of the target.

    Returns:
        Stage -> chance; empty for a target of one stage.

    Raises:
        ValueError: for another number of chances.
    """
    if stages < 2 or not match:
        return {}
    if len(match) == 1:
        return {max(1, stages // 2): rate_at(match, 0)}
    if len(match) != stages - 1:
        raise ValueError(f"there are {len(match)} chances of early exits for {stages} stages: give 1, or {stages - 1}")
    return dict(enumerate(match, start=1))


def tokens_in_work(after: int, stages: int) -> int:
    """Return how many tokens are in work at the same time, if all early predictions are right.

    Args:
        after: stage behind which the next token starts.
        stages: stages of the target.

    Returns:
        Tokens.
    """
    return ceil(stages / after)
