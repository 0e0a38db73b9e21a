"""Jacobi decoding of texts (Santilli et al. 2023): draft tokens from the target's distributions of the round before."""

from dataclasses import dataclass
from typing import Any

from mmspec.core.protocols import TargetSession
from mmspec.drafters.jacobi.couplers import Independent
from mmspec.drafters.jacobi.initialisers import Initialiser, uniform
from mmspec.drafters.jacobi.initialisers import left as repeat
from mmspec.drafters.jacobi.windows import Window, WindowSession
from mmspec.drafters.shapes import Draw, most_likely

__all__ = ["Jacobi", "repeat", "uniform"]


@dataclass(frozen=True)
class Jacobi:
    """Jacobi decoding: draft tokens drawn from the distributions that the target gave in the round before (Santilli et al. 2023).

    Args:
        window: most draft tokens a round, at least 1.
        draw: a draw of `mmspec.drafters.shapes`: `most_likely` for greedy Jacobi; `sampled` for speculative Jacobi decoding, whose
            recorded q is the distribution of the round before; `drawn` where the rule needs no q (coupled, match).
        fill: initialiser of the positions that no distribution has been seen for: `repeat` (the value before) or `uniform`.

    Raises:
        ValueError: if `window` is below 1.
    """

    window: int = 8
    draw: Draw = most_likely
    fill: Initialiser = repeat

    def __post_init__(self):
        if self.window < 1:
            raise ValueError(f"window is {self.window}: give at least 1 draft token")

    def begin(self, prompt: Any, session: TargetSession) -> WindowSession:
        """Open the drafting session of one generation."""
        return Window(None, Independent(self.draw), self.fill, self.window + 1).begin(prompt, session)
