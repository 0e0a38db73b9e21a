"""The tables of docs/at-scale.md, computed by the functions that the page names.

python -m tests.docs.scale        # writes them into the page
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from mmspec.bench.schedules.at_scale import Capacity, batch_point, capacity
from mmspec.bench.schedules.chain import ChainSchedule
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.pearl import PearlSchedule
from mmspec.bench.schedules.planning import PlanRequest, plan_schedules
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "at-scale.md"
SHORT = PlannedMachine(target=7e-3, draft=0.5e-3, column=0.047e-3, free=150)
LONG = replace(SHORT, row=0.5e-3)
ROWS = (1, 8, 32, 60, 128, 256)
SPEEDS = (20, 50, 100, 140, 200, 300)
LOAD = 1_000_000
ACCEPTANCE = 0.8
FITTING = 60  # caches of long contexts that fit beside the weights
RATIOS = (2, 5, 10, 20, 50)
CHANCES = (0.6, 0.8, 0.9, 0.95, 0.99)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * lines[0].count(" | ") + "---|", *lines[1:]])


def by_rows() -> str:
    head = ("rows", "short: plain tok/s", "draft tokens", "x plain", "long: plain tok/s", "draft tokens", "x plain")
    return table(head, ([rows, *point_cells(SHORT, rows, 10**6), *point_cells(LONG, rows, FITTING)] for rows in ROWS))


def point_cells(machine: PlannedMachine, rows: int, most: int) -> tuple[str, ...]:
    if rows > most:
        return ("does not fit", "", "")
    point = batch_point(machine, ACCEPTANCE, rows)
    return (f"{point.plain:,.0f}", str(point.length), f"{point.speed:.2f}")


def by_speed() -> str:
    head = ("each row at least", "short: plain", "drafting", "long: plain", "drafting")
    return table(head, ([f"{least} tok/s", *load_cells(SHORT, least, 512), *load_cells(LONG, least, FITTING)] for least in SPEEDS))


def load_cells(machine: PlannedMachine, least: float, most: int) -> list[str]:
    return [shown(capacity(machine, ACCEPTANCE, LOAD, least, plain=plain, most=most)) for plain in (True, False)]


def shown(each: Capacity | None) -> str:
    if each is None:
        return "not possible"
    drafted = f", {each.length} draft token{'s' if each.length > 1 else ''}" if each.length else ""
    return f"{each.devices:,} GPUs ({each.rows} rows{drafted})"


def overlap() -> str:
    """The best PEARL against the best chain, columns free."""
    head = ("acceptance", *(f"T / d = {ratio}" for ratio in RATIOS))
    return table(head, ([chance, *(f"{gain(chance, ratio):.2f}" for ratio in RATIOS)] for chance in CHANCES))


def gain(chance: float, ratio: int) -> float:
    machine = PlannedMachine(1.0, 1.0 / ratio)
    pearl, chain = (
        max(make(n).expect(machine, (chance,)).tokens_per_second for n in lengths)
        for make, lengths in ((PearlSchedule, range(1, 65)), (ChainSchedule, range(65)))
    )
    return pearl / chain


def schedules() -> str:
    """One request on a target of 4 stages."""
    machine, request = replace(SHORT, target=28e-3, stages=4, handover=0.1e-3), PlanRequest(exits=(0.4, 0.6, 0.8))
    head = ("schedule", "setting", "GPUs", "tok/s", "x plain", "tok/s per GPU")
    found = plan_schedules(machine, ACCEPTANCE, request).schedules
    cells = ((e.name, e.setting, e.devices, f"{e.tokens_per_second:.0f}", f"{e.speed:.2f}", f"{e.per_device:.0f}") for e in found)
    return table(head, cells)


TABLES = {
    "Full batches": by_rows,
    "GPUs for a load": by_speed,
    "When an asynchronous pair pays": overlap,
    "One request over several GPUs": schedules,
}
"""Heading -> what computes the first table below it."""


def written(text: str) -> str:
    """The page with its tables as they should be."""
    for heading, make in TABLES.items():
        head, found, rest = text.partition(f"## {heading}\n")
        assert found, heading
        new = make()
        text = head + found + re.sub(r"(?:^\|.*\n)+", lambda _, new=new: new + "\n", rest, count=1, flags=re.M)
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
