"""Jacobi decoding of texts (Santilli et al. 2023): the target's last distributions draft, afresh in every round."""

from dataclasses import dataclass
from typing import Any

from mmspec.core.decode import TargetSession
from mmspec.drafters.jacobi.couplers import Independent
from mmspec.drafters.jacobi.initialisers import Initialiser, uniform
from mmspec.drafters.jacobi.initialisers import left as repeat
from mmspec.drafters.jacobi.windows import Window, WindowSession
from mmspec.drafters.shapes import Draw, best

__all__ = ["Jacobi", "repeat", "uniform"]


@dataclass(frozen=True)
class Jacobi:
    """Draft tokens at most `window` values from the distributions the target gave in the round before, given draft tokens that have since
    been judged.

    `draw` is one of shapes' draws: `best` is greedy Jacobi; `sampled` is speculative Jacobi decoding, whose q is the distribution of the
    round before, for rules that read q; `drawn` leaves q out, for coupled and match. `fill` is the initialiser of the window's end, where
    no
    distribution has been seen: `repeat` the value before, or `uniform`.
    """

    window: int = 8
    draw: Draw = best
    fill: Initialiser = repeat

    def __post_init__(self):
        if self.window < 1:
            raise ValueError(f"window is {self.window}: give at least 1 draft token")

    def begin(self, prompt: Any, session: TargetSession) -> WindowSession:
        """Open the drafting session of one generation."""
        return Window(None, Independent(self.draw), self.fill, self.window + 1).begin(prompt, session)
