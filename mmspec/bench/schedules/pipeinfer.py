"""PipeInfer (Butler et al. 2024, 2407.11798): draft tokens stream in small groups into a target whose layers are spread over devices.

After a rejection the target scores the committed token alone, and the drafter begins anew on a device of its own. Every `group` draft
tokens enter the target's first stage as soon as they are made and the stage is free, so several groups are in flight (continuous
asynchronous speculation). A rejection cancels all that are (early inference cancellation): their stages are free at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmspec.bench.schedules.cycles import ExpectedCycle, ExpectedRound, long_run
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.schedule import refuse_rows
from mmspec.bench.schedules.simulation import SimulatedCalls, SimulatedRun


@dataclass(frozen=True)
class PipeInferSchedule:
    """Continuous speculation into a pipeline of stages, with cancellation. One row.

    Args:
        group: draft tokens that enter the pipeline together.

    Raises:
        ValueError: if `group` is below 1.
    """

    group: int = 1

    def __post_init__(self):
        if self.group < 1:
            raise ValueError(f"group is {self.group}: give at least 1 draft token")

    @property
    def name(self) -> str:
        return "pipeinfer"

    @property
    def setting(self) -> str:
        return f"groups of {self.group}"

    @property
    def paper(self) -> str:
        return "Butler et al. 2024 (PipeInfer)"

    def devices(self, machine: PlannedMachine) -> int:
        return machine.stages + 1

    def expect(self, machine: PlannedMachine, rates: Sequence[float]) -> ExpectedCycle:
        refuse_rows(machine, "pipeinfer")
        return long_run(self._rounds(SimulatedCalls(machine, rates)), rates)

    def simulate(self, calls: SimulatedCalls, tokens: int) -> SimulatedRun:
        refuse_rows(calls.machine, "pipeinfer")
        while calls.tokens < tokens:
            for each in self._rounds(calls):
                accepted = calls.accepted(each.verified, each.first)
                calls.tokens += min(accepted + 1, each.verified)
                calls.seconds += each.seconds
                if accepted < each.verified or each.last or calls.tokens >= tokens:
                    break
        return calls.run()

    def _rounds(self, calls: SimulatedCalls) -> Iterator[ExpectedRound]:
        """The groups that leave the pipeline since a rejection, as long as nothing is rejected; the first holds the committed token."""
        free = [0.0] * calls.machine.stages  # when each stage is free
        verified = made = 0
        drafted = before = 0.0  # when the drafter has made `made` tokens; when the group before left the pipeline
        waiting = calls.step()  # of the token in work
        while True:
            count = self.group if verified else 1
            while verified and made < verified + count - 1:  # until the draft tokens that this group scores are made
                made, drafted, waiting = made + 1, drafted + waiting, calls.step()
            end = _through(free, drafted if verified else 0.0, calls.score(count)) + calls.machine.handover
            while made < verified + count and drafted + waiting <= end:  # until the last one that it verifies is made
                made, drafted, waiting = made + 1, drafted + waiting, calls.step()
            yield ExpectedRound(verified, count, end - before, last=made < verified + count)
            verified, before = verified + count, end


def _through(free: list[float], ready: float, seconds: float) -> float:
    """Pass a group through the stages, in order behind the groups before it; returns when it leaves the last one."""
    for stage, earliest in enumerate(free):
        ready = free[stage] = max(ready, earliest) + seconds / len(free)
    return ready
