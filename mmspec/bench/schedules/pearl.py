"""PEARL (Liu et al. 2024, 2408.11850): drafter and target run at the same time and meet at the end of every round.

Pre-verify: while the drafter drafts, the target scores the committed text alone and so verifies the first draft token. If it is accepted,
the next round is one of post-verify: the target scores the draft tokens of the round before while the drafter goes on behind them. When
the target's distribution behind the last of them is known, so is the first of the new ones, hence n columns verify n tokens. A rejection
discards what was drafted meanwhile, and the next round is pre-verify again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import floor

from mmspec.bench.schedules.cycles import ExpectedCycle, ExpectedRound, long_run
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.schedule import refuse_rows
from mmspec.bench.schedules.simulation import SimulatedCalls, SimulatedRun

_SLACK = 1e-9  # of a draft token, for the rounding of quotients
_MOST = 64  # draft tokens of a round of adaptive length


@dataclass(frozen=True)
class PearlSchedule:
    """Pre-verify and post-verify with rollback.

    With several rows, each is in one of the two states by itself; the target scores the draft tokens of a batch as soon as one of its rows
    has some to verify.

    Args:
        length: draft tokens a round; None drafts until the target's forward ends, at least one (PEARL's adaptive length; one row only).

    Raises:
        ValueError: for a length below 1.
    """

    length: int | None = None

    def __post_init__(self):
        if self.length is not None and self.length < 1:
            raise ValueError(f"length is {self.length}: give at least 1 draft token")

    @property
    def name(self) -> str:
        return "pearl"

    @property
    def setting(self) -> str:
        return "adaptive length" if self.length is None else f"{self.length} draft tokens"

    @property
    def paper(self) -> str:
        return "Liu et al. 2024 (PEARL)"

    def devices(self, machine: PlannedMachine) -> int:
        return machine.stages + 1

    def expect(self, machine: PlannedMachine, rates: Sequence[float]) -> ExpectedCycle:
        if self.length is None:
            refuse_rows(machine, "pearl with adaptive length")
        found = long_run(self._rounds(machine), rates)
        if machine.rows == 1:
            return found
        before = long_run(self._rounds(machine, counted=True), rates)  # its seconds count rounds of pre-verify
        alone = (before.seconds / before.calls) ** machine.rows  # all rows are in pre-verify
        length = self.length or 1
        seconds = alone * self._seconds(machine, 1, length) + (1 - alone) * self._seconds(machine, length, length)
        return ExpectedCycle(machine.rows * found.tokens / found.calls, seconds, rows=machine.rows)

    def _rounds(self, machine: PlannedMachine, counted: bool = False) -> Iterator[ExpectedRound]:
        """The rounds of a run; with `counted`, a round's seconds are 1 for pre-verify and 0 for post-verify."""
        drafted = self._drafted(machine, 1)
        yield ExpectedRound(0, 1, 1.0 if counted else self._seconds(machine, 1, drafted))
        first, waiting = 1, drafted
        while True:
            drafted = self._drafted(machine, waiting)
            yield ExpectedRound(first, waiting, 0.0 if counted else self._seconds(machine, waiting, drafted))
            first, waiting = first + waiting, drafted

    def _drafted(self, machine: PlannedMachine, columns: int) -> int:
        """Draft tokens made while the target scores `columns`."""
        if self.length is not None:
            return self.length
        return max(1, floor(min(_MOST, machine.score(columns) / max(machine.step(), _SLACK * machine.target)) + _SLACK))

    def _seconds(self, machine: PlannedMachine, columns: int, drafted: int) -> float:
        return max(drafted * machine.step(), machine.score(columns)) + machine.handover

    def simulate(self, calls: SimulatedCalls, tokens: int) -> SimulatedRun:
        rows = [_Row() for _ in range(calls.machine.rows)]
        while calls.tokens < tokens:
            columns = max(row.waiting or 1 for row in rows)
            scored = calls.score(columns)
            drafted, spent = self._draft(calls, scored)
            calls.seconds += max(scored, spent) + calls.machine.handover
            rows = [self._judged(calls, row, drafted) for row in rows]
        return calls.run()

    def _draft(self, calls: SimulatedCalls, scored: float) -> tuple[int, float]:
        """Draft tokens of a round in which the target takes `scored` seconds, and the drafter's seconds."""
        if self.length is not None:
            return self.length, calls.steps(self.length)
        count, spent = 1, calls.step()
        while count < _MOST and spent + (more := calls.step()) <= scored * (1 + _SLACK):
            count, spent = count + 1, spent + more
        return count, spent

    def _judged(self, calls: SimulatedCalls, row: "_Row", drafted: int) -> "_Row":
        verified = row.waiting or 1
        accepted = calls.accepted(verified, row.first)
        calls.tokens += min(accepted + 1, verified)
        return replace(row, first=row.first + verified, waiting=drafted) if accepted == verified else _Row()


@dataclass(frozen=True)
class _Row:
    """A row between two rounds: draft tokens that wait to be scored, 0 for pre-verify, and the position of the first to verify."""

    first: int = 0
    waiting: int = 0
