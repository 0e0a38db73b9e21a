"""Streaming text to the terminal, and a summary line."""

import sys
from collections.abc import Callable

from mmspec.core.records import Step
from mmspec.core.stats import Stats
from mmspec.text.pieces import Pieces

_UNDERLINED, _PLAIN = "\033[4m", "\033[24m"


class Flow:
    """Writes every committed run to stdout immediately; with `marked`, accepted draft tokens are underlined."""

    def __init__(self, decode: Callable[[list[int]], str], marked: bool):
        self.pieces, self.marked = Pieces(decode), marked

    def __enter__(self) -> "Flow":
        return self

    def __call__(self, step: Step) -> None:
        """Write what a round committed in row 0."""
        values, accepted = step.committed.values[0], step.committed.accepted[0]
        if self.marked:
            drafted = self.pieces.push(values[:accepted])
            sys.stdout.write(f"{_UNDERLINED}{drafted}{_PLAIN}" if drafted else "")
            values = values[accepted:]
        sys.stdout.write(self.pieces.push(values))
        sys.stdout.flush()

    def __exit__(self, *error: object) -> None:
        if self.pieces.ids:  # an error before the first token leaves nothing behind
            sys.stdout.write(self.pieces.rest() + "\n")
            sys.stdout.flush()


def summary(stats: Stats) -> str:
    """Return tokens per call, acceptance, exactness and speed in one line."""
    parts = [f"{stats.tokens} tokens in {stats.row_calls} calls: {stats.tokens_per_call:.2f} tokens per call"]
    if stats.drafted:
        parts.append(f"{stats.accepted} of {stats.drafted} draft tokens accepted ({stats.accepted / stats.drafted:.0%})")
    drift = "" if stats.drift is None else f", drift {stats.drift:.3g}"
    parts.append(stats.exactness + drift)
    parts.append(f"{stats.tokens / max(stats.seconds['total'], 1e-9):.1f} tok/s")
    return "; ".join(parts)
