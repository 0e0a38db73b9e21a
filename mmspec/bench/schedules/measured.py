"""Reads acceptance, seconds and latencies from JSON that was measured."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.simulation import MeasuredLatencies


@dataclass(frozen=True)
class MeasuredPair:
    """What a file holds of a target and its drafter; None for what it leaves out.

    Attributes:
        rates: acceptance by position in the draft.
        machine: seconds by columns.
        latencies: seconds of single calls.
    """

    rates: tuple[float, ...] | None = None
    machine: PlannedMachine | None = None
    latencies: MeasuredLatencies | None = None


def read_measured(path: str | Path) -> MeasuredPair:
    """Read a file of measurements.

    Two forms are read. What `mmspec explain --output` writes: its acceptance by position, its seconds by columns at its batch size, and
    its latencies. Or an object with any of the entries "acceptance" (chances by position), "target" and "draft" (lists of seconds of
    successive calls, the latter for one draft token each); "acceptance_by_position", alone or inside "stats", is read as the first.

    Args:
        path: the file.

    Returns:
        What it holds.

    Raises:
        ValueError: for a file that is not JSON, holds none of this, or holds numbers out of range, and for a file that cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"{path}: not JSON; mmspec explain --output writes such a file") from None
    try:
        found = _explained(data) if isinstance(data, Mapping) and isinstance(data.get("costs"), Mapping) else _plain(data)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None
    if found == MeasuredPair():
        raise ValueError(f"{path}: holds neither acceptance nor latencies; mmspec explain --output writes such a file")
    return found


def _explained(data: Mapping[str, Any]) -> MeasuredPair:
    positions = [each for each in data["acceptance"]["positions"] if each["judged"]]
    costs, rows = data["costs"], int(data.get("batch_size", 1))
    latencies = costs.get("latencies")
    return MeasuredPair(
        checked_rates([each["accepted"] / each["judged"] for each in positions]) if positions else None,
        fitted_machine({int(size): float(seconds) for size, seconds in costs["columns"].items()}, float(costs["step"]), rows),
        None if latencies is None else MeasuredLatencies(tuple(latencies["target"]), tuple(latencies["draft"])),
    )


def _plain(data: Any) -> MeasuredPair:
    if not isinstance(data, Mapping):
        raise ValueError("no JSON object")
    stats = data.get("stats", data)
    rates = data.get("acceptance", stats.get("acceptance_by_position") if isinstance(stats, Mapping) else None)
    given = [name for name in ("target", "draft") if name in data]
    if len(given) == 1:
        raise ValueError(f"holds latencies of {given[0]!r} alone: give both lists, 'target' and 'draft'")
    latencies = MeasuredLatencies(*(tuple(map(float, data[name])) for name in given)) if given else None
    return MeasuredPair(None if rates is None else checked_rates(rates), None, latencies)


def checked_rates(rates: Sequence[float] | float) -> tuple[float, ...]:
    """Check chances of acceptance.

    Args:
        rates: chances by position in the draft, or one chance.

    Returns:
        The chances.

    Raises:
        ValueError: unless there are some, all from 0 to 1.
    """
    found = tuple(map(float, [rates] if isinstance(rates, (int, float)) else rates))
    if not found or not all(0 <= rate <= 1 for rate in found):
        raise ValueError(f"acceptance is {', '.join(map(str, found)) or 'empty'}: give chances from 0 to 1, one or one for each position")
    return found


def fitted_machine(columns: Mapping[int, float], step: float, rows: int = 1) -> PlannedMachine:
    """Describe measured seconds by a straight line through the smallest and the largest number of columns.

    Args:
        columns: seconds of a forward of the target, by the columns that each row scores; holds 1.
        step: seconds of the drafter for one draft token of all rows.
        rows: rows of the batch that was measured.

    Returns:
        The machine, whose `score(1)` is the measured one.

    Raises:
        ValueError: without a measurement of one column.
    """
    if columns.get(1, 0.0) <= 0:
        raise ValueError("costs.columns has no seconds of 1 column")
    most = max(columns)
    slope = max(0.0, (columns[most] - columns[1]) / (rows * (most - 1))) if most > 1 else 0.0
    return PlannedMachine(columns[1], step, slope, free=rows, rows=rows)
