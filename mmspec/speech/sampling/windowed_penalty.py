"""Windowed repetition penalty (OuteTTS): CTRL's penalty on recent tokens only."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from mmspec.core.processors.history import History, tally
from mmspec.core.processors.pipeline import penalised


@dataclass(frozen=True)
class WindowedPenalty:
    """Penalise, once, every value among the last `window` ids of the node's path; without `prompt`, among its last outputs only.

    OuteTTS penalises by 1.1 over 64 ids, prompt included. A speech token comes back soon and rightly so: over the whole path a
    penalty would have ruled out most of the codebook after some seconds.
    """

    penalty: float | Sequence[float] = 1.1
    window: int = 64
    prompt: bool = True

    def __post_init__(self):
        strengths = [self.penalty] if isinstance(self.penalty, (int, float)) else self.penalty
        if not all(0 < one < float("inf") for one in strengths):
            raise ValueError(f"penalty is {self.penalty}: it must be above 0, and finite (1 is none)")
        if self.window < 1:
            raise ValueError(f"window is {self.window}: look back at 1 id or more")

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        recent = tally(*history.last(self.window, outputs=not self.prompt), scores.shape[-1])
        return penalised(scores, self.penalty, recent > 0)
