"""AMUSD (McDanel 2024, 2410.17375): the drafter never waits; the target verifies whatever has been drafted as soon as it is free.

A rejection rolls the drafter back. The drafter notices at the end of its step. The target needs at least one draft token to start.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmspec.bench.schedules.cycles import ExpectedCycle, ExpectedRound, long_run
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.schedule import refuse_rows
from mmspec.bench.schedules.simulation import SimulatedCalls, SimulatedRun

_SLACK = 1e-9


@dataclass(frozen=True)
class AmusdSchedule:
    """Continuous drafting and continuous verification on two devices. One row.

    Args:
        most: draft tokens that may wait for the target; the drafter pauses there.

    Raises:
        ValueError: if `most` is below 1.
    """

    most: int = 64

    def __post_init__(self):
        if self.most < 1:
            raise ValueError(f"most is {self.most}: give at least 1 draft token")

    @property
    def name(self) -> str:
        return "amusd"

    @property
    def setting(self) -> str:
        return f"up to {self.most} ahead"

    @property
    def paper(self) -> str:
        return "McDanel 2024 (AMUSD)"

    def devices(self, machine: PlannedMachine) -> int:
        return machine.stages + 1

    def expect(self, machine: PlannedMachine, rates: Sequence[float]) -> ExpectedCycle:
        refuse_rows(machine, "amusd")
        return long_run(self._rounds(SimulatedCalls(machine, rates)), rates)

    def simulate(self, calls: SimulatedCalls, tokens: int) -> SimulatedRun:
        refuse_rows(calls.machine, "amusd")
        while calls.tokens < tokens:
            for each in self._rounds(calls):
                accepted = calls.accepted(each.verified, each.first)
                calls.tokens += min(accepted + 1, each.verified)
                calls.seconds += each.seconds
                if accepted < each.verified:
                    calls.seconds += each.lost
                    break
                if calls.tokens >= tokens:
                    break
        return calls.run()

    def _rounds(self, calls: SimulatedCalls) -> Iterator[ExpectedRound]:
        """The target's calls since a rollback, as long as nothing is rejected."""
        drafter, verified, ended = _Drafting(calls), 0, 0.0
        while True:
            start = max(ended, drafter.finished(verified + 1))
            count = min(drafter.made(start, verified + self.most) - verified, self.most)
            end = start + calls.score(count) + calls.machine.handover
            drafter.made(end, verified + self.most)
            yield ExpectedRound(verified, count, end - ended, drafter.rest(end))
            verified, ended = verified + count, end
            drafter.resume(end)


class _Drafting:
    """When the drafter finishes its draft tokens; the times are those since a rollback."""

    def __init__(self, calls: SimulatedCalls):
        self.calls, self.count = calls, 0
        self.began = 0.0  # when the token in work was begun
        self.next: float | None = calls.step()  # when the token in work is finished; None while the drafter pauses

    def finished(self, number: int) -> float:
        """When draft token `number` is finished, which is made already or in work."""
        return 0.0 if self.next is None or number <= self.count else self.next

    def made(self, now: float, limit: int) -> int:
        """Draft tokens finished at `now`; the drafter pauses when it has made `limit`."""
        while self.next is not None and self.next <= now * (1 + _SLACK):
            self.count, self.began = self.count + 1, self.next
            self.next = self.next + self.calls.step() if self.count < limit else None
        return self.count

    def rest(self, now: float) -> float:
        """Seconds until the step in work ends; a step that would begin just now is not begun."""
        return 0.0 if self.next is None or self.began >= now * (1 - _SLACK) else max(0.0, self.next - now)

    def resume(self, now: float) -> None:
        """End a pause."""
        if self.next is None:
            self.began, self.next = now, now + self.calls.step()
