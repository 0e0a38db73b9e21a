"""Seconds of a target and its drafter on planned hardware, by rows and columns."""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class PlannedMachine:
    """Seconds of calls, in which every row scores the same number of columns.

    A forward over n columns in all rows together reads for `target + row * rows` seconds and computes for `target + column * (n - free)`;
    the longer of both is what it takes. So columns cost nothing as long as the forward is limited by reading weights and caches. A
    drafter's step over all rows grows in the same proportion as the target's.

    Args:
        target: seconds of a forward of the target over one column of one row, the reading of its cache left out.
        draft: seconds of the drafter for one draft token of one row.
        column: seconds that each column after the first `free` ones adds to a forward of the target.
        free: columns of a forward that cost nothing more than one.
        row: seconds in which the cache of one row is read, whatever its columns.
        rows: rows that are generated together.
        stages: devices that hold the target's layers in turn; a forward passes them one after another.
        handover: seconds that drafter and target need to exchange tokens if they run on different devices.

    Raises:
        ValueError: for seconds that are negative or not finite, a target without seconds, and counts below 1.
    """

    target: float
    draft: float
    column: float = 0.0
    free: int = 1
    row: float = 0.0
    rows: int = 1
    stages: int = 1
    handover: float = 0.0

    def __post_init__(self):
        for name in ("target", "draft", "column", "row", "handover"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} is {value}: give seconds of 0 or more")
        if self.target == 0:
            raise ValueError("target is 0: a forward of the target takes more than 0 seconds")
        for name in ("free", "rows", "stages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least 1")

    def score(self, columns: int) -> float:
        """Compute the seconds of a forward of the target.

        Args:
            columns: columns that each row scores.

        Returns:
            Seconds.
        """
        return self.target + max(self.row * self.rows, self.column * (self.rows * columns - self.free), 0.0)

    def step(self) -> float:
        """Compute the seconds of one drafter step, which drafts a token in every row."""
        return self.draft * self.score(1) / replace(self, rows=1).score(1)

    def prompt(self, tokens: int) -> tuple[float, float]:
        """Compute the seconds that prompts take before the first token is drafted.

        Args:
            tokens: tokens of each row's prompt; 0 for cached prompts.

        Returns:
            Seconds of the target, and of the drafter.
        """
        target = self.score(tokens) if tokens else 0.0
        return target, target * self.draft / replace(self, rows=1).score(1)
