"""The protocol of schedules."""

from collections.abc import Sequence
from typing import Protocol

from mmspec.bench.schedules.cycles import ExpectedCycle
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.simulation import SimulatedCalls, SimulatedRun


class Schedule(Protocol):
    """In which order drafter and target run, and what is verified when."""

    @property
    def name(self) -> str:
        """Its name in tables."""
        ...

    @property
    def setting(self) -> str:
        """Its parameters, in words."""
        ...

    @property
    def paper(self) -> str:
        """Where it was published."""
        ...

    def devices(self, machine: PlannedMachine) -> int:
        """Return how many devices are in use.

        Args:
            machine: the hardware.

        Returns:
            Devices of target and drafter together.
        """
        ...

    def expect(self, machine: PlannedMachine, rates: Sequence[float]) -> ExpectedCycle:
        """Compute the expected tokens and seconds.

        Args:
            machine: the hardware.
            rates: acceptance by position in the draft; the last holds for all later positions.

        Returns:
            Their ratio is the rate in the long run.
        """
        ...

    def simulate(self, calls: SimulatedCalls, tokens: int) -> SimulatedRun:
        """Simulate until `tokens` are committed.

        Args:
            calls: seconds of calls, and acceptance.
            tokens: committed tokens at which the simulation ends, at the end of a round.

        Returns:
            What was done.
        """
        ...


def refuse_rows(machine: PlannedMachine, name: str) -> None:
    """Refuse several rows.

    Args:
        machine: the hardware.
        name: the schedule.

    Raises:
        ValueError: if `machine` has more than one row.
    """
    if machine.rows > 1:
        raise ValueError(f"{name} is modelled for one row, and there are {machine.rows}")
