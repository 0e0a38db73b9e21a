"""Synchronous rounds: the drafter drafts a chain, then the target verifies it (Leviathan et al. 2023; Chen et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass

from mmspec.bench.schedules.cycles import ExpectedCycle, tokens_a_round
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.simulation import SimulatedCalls, SimulatedRun


@dataclass(frozen=True)
class ChainSchedule:
    """Draft `length` tokens one after another, verify them in one forward, commit the accepted ones and one of the target's own.

    Args:
        length: draft tokens a round; 0 is plain decoding.

    Raises:
        ValueError: for a negative length.
    """

    length: int

    def __post_init__(self):
        if self.length < 0:
            raise ValueError(f"length is {self.length}: give 0 or more draft tokens")

    @property
    def name(self) -> str:
        return "chain" if self.length else "plain"

    @property
    def setting(self) -> str:
        return f"{self.length} draft tokens" if self.length else ""

    @property
    def paper(self) -> str:
        return "Leviathan et al. 2023" if self.length else ""

    def devices(self, machine: PlannedMachine) -> int:
        return machine.stages

    def expect(self, machine: PlannedMachine, rates: Sequence[float]) -> ExpectedCycle:
        seconds = self.length * machine.step() + machine.score(self.length + 1)
        return ExpectedCycle(machine.rows * tokens_a_round(rates, self.length), seconds, rows=machine.rows)

    def simulate(self, calls: SimulatedCalls, tokens: int) -> SimulatedRun:
        while calls.tokens < tokens:
            calls.seconds += calls.steps(self.length) + calls.score(self.length + 1)
            calls.tokens += sum(calls.accepted(self.length) + 1 for _ in range(calls.machine.rows))
        return calls.run()
