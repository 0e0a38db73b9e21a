"""Synchronous rounds of trees, planned by Sequoia's dynamic programme (Chen et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass

from mmspec.bench.schedules.cycles import ExpectedCycle, rate_at
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.simulation import SimulatedCalls, SimulatedRun
from mmspec.drafters.trees.planners import expected_length, sequoia
from mmspec.drafters.trees.static import Template

_RANKS = 8  # siblings that are considered


@dataclass(frozen=True)
class TreeSchedule:
    """Draft the tree of at most `nodes` draft tokens that commits most tokens a second; one drafter step a level.

    The first sibling is accepted with the chance of a chain's draft token. Each later one, if those before it were rejected, is accepted
    with `retry` times the chance of the one before.

    Args:
        nodes: largest number of draft tokens.
        depth: largest number of levels.
        retry: how the chances of siblings fall, 0 to 1.
        template: the tree; None for the best one.

    Raises:
        ValueError: for numbers out of range.
    """

    nodes: int
    depth: int = 16
    retry: float = 0.5
    template: Template | None = None

    def __post_init__(self):
        if min(self.nodes, self.depth) < 1 or not 0 <= self.retry <= 1:
            text = f"nodes, depth and retry are {self.nodes}, {self.depth} and {self.retry}"
            raise ValueError(f"{text}: give 1 or more nodes and levels, and a factor from 0 to 1")

    @property
    def name(self) -> str:
        return "tree"

    @property
    def setting(self) -> str:
        if self.template is None:
            return f"up to {self.nodes} nodes"
        return f"{len(self.template.paths)} nodes, {self.template.depth} levels"

    @property
    def paper(self) -> str:
        return "Chen et al. 2024 (Sequoia)"

    def devices(self, machine: PlannedMachine) -> int:
        return machine.stages

    def accuracy(self, rates: Sequence[float]) -> list[list[float]]:
        """Compute the chance that a node is kept when its parent was, by level and rank.

        Args:
            rates: acceptance by position in a chain.

        Returns:
            [level][rank].
        """
        table = []
        for level in range(self.depth):
            left, chance, row = 1.0, rate_at(rates, level), []
            for _ in range(_RANKS):
                row.append(left * chance)
                left, chance = left * (1 - chance), self.retry * chance
            table.append(row)
        return table

    def planned(self, machine: PlannedMachine, rates: Sequence[float]) -> "TreeSchedule":
        """Find the best tree.

        Args:
            machine: the hardware.
            rates: acceptance by position in a chain.

        Returns:
            The schedule with its template.

        Raises:
            ValueError: if no draft token is ever accepted.
        """
        if self.template is not None:
            return self
        template, _ = sequoia(self.accuracy(rates), self.nodes, self.depth, machine.step(), lambda nodes: machine.score(nodes + 1))
        return TreeSchedule(self.nodes, self.depth, self.retry, template)

    def expect(self, machine: PlannedMachine, rates: Sequence[float]) -> ExpectedCycle:
        template = self.planned(machine, rates).template
        assert template is not None
        seconds = template.depth * machine.step() + machine.score(len(template.paths) + 1)
        return ExpectedCycle(machine.rows * expected_length(template, self.accuracy(rates)), seconds, rows=machine.rows)

    def simulate(self, calls: SimulatedCalls, tokens: int) -> SimulatedRun:
        template = self.planned(calls.machine, calls.rates).template
        assert template is not None
        paths = frozenset(template.paths)
        while calls.tokens < tokens:
            calls.seconds += calls.steps(template.depth) + calls.score(len(paths) + 1)
            calls.tokens += sum(self._kept(calls, paths) + 1 for _ in range(calls.machine.rows))
        return calls.run()

    def _kept(self, calls: SimulatedCalls, paths: frozenset[tuple[int, ...]]) -> int:
        """Walk down the tree: at every level the siblings are tried in turn."""
        path: tuple[int, ...] = ()
        while True:
            chance, rank = rate_at(calls.rates, len(path)), 0
            while (*path, rank) in paths and calls.random.random() >= chance:
                chance, rank = self.retry * chance, rank + 1
            if (*path, rank) not in paths:
                return len(path)
            path = (*path, rank)
