"""Seconds of a target's forwards by the number of columns they score, and of a drafter's steps."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from mmspec.bench.compare.peers import synchronize
from mmspec.bench.explain.observed import DrafterTimes, target_of
from mmspec.bench.schedules.simulation import MeasuredLatencies
from mmspec.bench.suites.verify_step import call_seconds
from mmspec.core.records import Draft
from mmspec.loading.text import Pair

COLUMNS = (1, 2, 4, 8, 16)
"""Numbers of columns that are timed."""
_REPEATS, _WARM = 7, 2
_CALLS = 32  # over one column: these are also kept one by one


@dataclass(frozen=True)
class PairCosts:
    """Seconds of a target and its drafter on one machine, at one batch size.

    Attributes:
        columns: seconds of a forward of the target, by the columns that it scores a row; holds 1, a step of plain decoding.
        step: seconds of the drafter for one draft token.
        prefill: seconds of the target's forward over the prompt.
        draft_prefill: seconds of the drafter before its first draft token.
        latencies: seconds of single calls, for `mmspec plan`; None if none were measured.

    Raises:
        ValueError: for costs without one column, and for seconds that are not above 0 there.
    """

    columns: Mapping[int, float]
    step: float
    prefill: float = 0.0
    draft_prefill: float = 0.0
    latencies: MeasuredLatencies | None = None

    def __post_init__(self):
        if self.columns.get(1, 0.0) <= 0:
            raise ValueError(f"columns is {dict(self.columns)}: give the seconds of a forward over 1 column, above 0")

    def target(self, columns: int) -> float:
        """Return seconds of a forward over `columns` a row, on the line through the nearest sizes measured."""
        sizes = sorted(self.columns)
        seconds = [self.columns[size] for size in sizes]
        if columns <= sizes[-1] or len(sizes) < 2:
            return float(np.interp(columns, sizes, seconds))
        slope = max(0.0, (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))
        return seconds[-1] + slope * (columns - sizes[-1])

    def round(self, length: int) -> float:
        """Return seconds of a round of `length` draft tokens."""
        return self.target(length + 1) + length * self.step

    @property
    def share(self) -> float:
        """Seconds of a draft token relative to a step of plain decoding."""
        return self.step / self.columns[1]

    def growth(self, columns: int = 8) -> float:
        """Return seconds of a forward over `columns` relative to one over 1 column."""
        return self.target(columns) / self.columns[1]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self) | {"columns": {str(size): seconds for size, seconds in self.columns.items()}, "share": self.share}


@torch.no_grad()
def measure_pair_costs(pair: Pair, inputs: dict[str, Any], times: DrafterTimes) -> PairCosts:
    """Time the target's forwards behind a prompt; the drafter was timed while it was observed.

    Args:
        pair: target and settings.
        inputs: one batch, as `Pair.inputs` returns it.
        times: the drafter's seconds at this batch size.

    Returns:
        The costs.
    """
    target, device = target_of(pair, inputs), pair.target.device
    session, pending = target.begin(inputs)
    synchronize(device)
    start = perf_counter()
    session.score(pending)
    synchronize(device)
    prefill = perf_counter() - start
    rows = len(pending.nodes)
    session.commit(torch.zeros(rows, 1, dtype=torch.long, device=device), 1)
    token = pending.nodes[:, 0]
    pending = Draft.root(token, torch.ones(rows, dtype=torch.long, device=device))
    columns, calls = {}, []
    for count in COLUMNS:
        draft = pending
        if count > 1:
            budget = torch.full((rows,), count, device=device)
            draft = pending.extend_chain(token[:, None].expand(rows, count - 1), budget)
        nothing = torch.full((rows, count), -1, device=device)

        def step(draft: Draft = draft, nothing: torch.Tensor = nothing) -> None:
            session.score(draft)
            session.commit(nothing, 0)

        seconds = call_seconds(step, device, _CALLS if count == 1 else _REPEATS, _WARM)
        columns[count], calls = median(seconds), calls or seconds
    latencies = MeasuredLatencies(tuple(calls), tuple(max(each, 1e-9) for each in times.steps)) if times.steps else None
    return PairCosts(columns, times.step, prefill, times.prefill, latencies)
