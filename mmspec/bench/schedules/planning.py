"""Compares published schedules on given hardware: the best setting of each, its expected speed, and a simulated one."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mmspec.bench.schedules.amusd import AmusdSchedule
from mmspec.bench.schedules.chain import ChainSchedule
from mmspec.bench.schedules.early_exit import PpdSchedule, exit_rates
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.measured import checked_rates
from mmspec.bench.schedules.pearl import PearlSchedule
from mmspec.bench.schedules.pipeinfer import PipeInferSchedule
from mmspec.bench.schedules.schedule import Schedule
from mmspec.bench.schedules.simulation import MeasuredLatencies, SimulatedCalls
from mmspec.bench.schedules.speed import SpeedSchedule
from mmspec.bench.schedules.tree import TreeSchedule

LENGTHS = (*range(1, 13), 14, 16, 20, 24, 32)
"""Draft lengths that are compared."""


@dataclass(frozen=True)
class PlannedSchedule:
    """The best setting of one schedule.

    Attributes:
        name: "plain", "chain", "tree", "pearl", "amusd", "pipeinfer", "ppd" or "speed".
        setting: its parameters, in words.
        paper: where it was published.
        devices: devices in use.
        tokens_per_call: tokens that a row commits a forward of the target.
        tokens_per_second: tokens a second of all rows, prompts left out.
        speed: how many times faster a request is than with plain decoding, prompts included.
        per_device: tokens a second for each device, prompts left out.
        simulated: tokens a second of a simulation with fixed seeds; it replays measured latencies where there are some.
    """

    name: str
    setting: str
    paper: str
    devices: int
    tokens_per_call: float
    tokens_per_second: float
    speed: float
    per_device: float
    simulated: float


@dataclass(frozen=True)
class SchedulePlan:
    """A comparison of schedules.

    Attributes:
        schedules: the best setting of each, the fastest first.
        omitted: what was not compared, with the reason.
    """

    schedules: tuple[PlannedSchedule, ...]
    omitted: tuple[str, ...] = ()

    @property
    def best(self) -> PlannedSchedule:
        """The fastest schedule."""
        return self.schedules[0]

    @property
    def most_for_the_devices(self) -> PlannedSchedule:
        """The schedule with most tokens a second for each device."""
        return max(self.schedules, key=lambda each: each.per_device)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        names = {"best": self.best.name, "most_for_the_devices": self.most_for_the_devices.name}
        return names | {"schedules": [asdict(each) for each in self.schedules], "omitted": list(self.omitted)}


@dataclass(frozen=True)
class PlanRequest:
    """What requests look like, and what is compared.

    Args:
        tokens: new tokens of each row.
        prompt: tokens of each row's prompt; 0 for cached prompts.
        nodes: largest draft tree.
        retry: how the acceptance of siblings falls, see `TreeSchedule`.
        exits: chance that an early prediction is right, see `exit_rates`; empty to leave out early exits.
        candidates: tokens that an early exit tries.
        simulated: tokens of a row that are simulated.
        seed: of the simulation.

    Raises:
        ValueError: for counts out of range.
    """

    tokens: int = 256
    prompt: int = 0
    nodes: int = 64
    retry: float = 0.5
    exits: tuple[float, ...] = ()
    candidates: int = 1
    simulated: int = 4000
    seed: int = 0

    def __post_init__(self):
        if min(self.tokens, self.nodes, self.candidates, self.simulated) < 1 or self.prompt < 0:
            raise ValueError("tokens, nodes, candidates and simulated are at least 1, and prompt at least 0")


def plan_schedules(
    machine: PlannedMachine,
    acceptance: float | Sequence[float],
    request: PlanRequest | None = None,
    *,
    latencies: MeasuredLatencies | None = None,
) -> SchedulePlan:
    """Predict which schedule of drafting and verifying is fastest.

    Compared are plain decoding, synchronous chains (Leviathan et al. 2023) and trees (Chen et al. 2024), asynchronous pairs (PEARL, Liu et
    al. 2024; AMUSD, McDanel 2024), and for targets of several stages PipeInfer (Butler et al. 2024), PPD (Yang et al. 2023) and SPEED
    (Hooper et al. 2023).

    Args:
        machine: seconds of target and drafter, rows and stages.
        acceptance: chance that a draft token is accepted when those before it were: one, or one for each position.
        request: lengths of requests, and what is compared.
        latencies: measured seconds that the simulations replay.

    Returns:
        The best setting of each schedule, the fastest first.

    Raises:
        ValueError: for numbers out of range.
    """
    request, rates = request or PlanRequest(), checked_rates(acceptance)
    omitted = list(_omitted(machine, request, rates))
    plain = ChainSchedule(0)
    groups: dict[str, list[Schedule]] = {"plain": [plain]}
    for each in _candidates(machine, request, rates):
        groups.setdefault(each.name, []).append(each)
    base = _seconds(plain, machine, rates, request)
    found = []
    for group in groups.values():
        best = min(group, key=lambda each: _seconds(each, machine, rates, request))
        found.append(_planned(best, machine, rates, request, base, latencies))
    return SchedulePlan(tuple(sorted(found, key=lambda each: -each.speed)), tuple(omitted))


def _candidates(machine: PlannedMachine, request: PlanRequest, rates: Sequence[float]) -> Iterator[Schedule]:
    yield from map(ChainSchedule, LENGTHS)
    if rates[0] > 0:
        yield TreeSchedule(request.nodes, retry=request.retry).planned(machine, rates)
    yield from map(PearlSchedule, LENGTHS)
    if machine.rows > 1:
        return
    yield PearlSchedule()
    yield from map(AmusdSchedule, (1, 2, 4, 8, 16, 32, 64))
    if machine.stages > 1:
        yield from map(PipeInferSchedule, LENGTHS)
        for after, match in exit_rates(request.exits, machine.stages).items():
            yield PpdSchedule(after, match, request.candidates)
            yield SpeedSchedule(after, match, request.candidates)


def _omitted(machine: PlannedMachine, request: PlanRequest, rates: Sequence[float]) -> Iterator[str]:
    if rates[0] == 0:
        yield "tree: no draft token is accepted"
    if machine.rows > 1:
        yield "amusd, pipeinfer, ppd, speed: modelled for one row"
    elif machine.stages == 1:
        yield "pipeinfer, ppd, speed: for a target of several stages"
    elif not request.exits:
        yield "ppd, speed: the chance that an early prediction is right was not given"


def _seconds(schedule: Schedule, machine: PlannedMachine, rates: Sequence[float], request: PlanRequest) -> float:
    """Seconds of a request: its prompt, then its tokens."""
    target, drafter = machine.prompt(request.prompt)
    if schedule.name in ("plain", "ppd", "speed"):  # no model of its own drafts
        drafter = 0.0
    alone = schedule.devices(machine) > machine.stages  # the drafter reads the prompt on its own device
    begun = max(target, drafter) if alone else target + drafter
    return begun + machine.rows * request.tokens / schedule.expect(machine, rates).tokens_per_second


def _planned(
    schedule: Schedule,
    machine: PlannedMachine,
    rates: Sequence[float],
    request: PlanRequest,
    base: float,
    latencies: MeasuredLatencies | None,
) -> PlannedSchedule:
    expected, devices = schedule.expect(machine, rates), schedule.devices(machine)
    run = schedule.simulate(SimulatedCalls(machine, rates, request.seed, latencies), request.simulated * machine.rows)
    return PlannedSchedule(
        schedule.name,
        schedule.setting,
        schedule.paper,
        devices,
        expected.tokens_per_call,
        expected.tokens_per_second,
        base / _seconds(schedule, machine, rates, request),
        expected.tokens_per_second / devices,
        run.tokens_per_second,
    )
