"""ZipAR (He et al. 2024, arXiv 2412.04062): a row starts once the row above has a few tokens, and all rows under way advance together.

With windows of s tokens a picture of H rows of W takes W + (H - 1) s forwards, and what comes before the first cell. Row ends and tails
are known, so they cost none.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rules.base import LOSSY, commit
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import ratio
from mmspec.drafters.none import NoDraft
from mmspec.vision.codes.row_streams import Front, RasterRows, deferred
from mmspec.vision.codes.rows import RowMethod


@dataclass(frozen=True)
class ZipAR:
    """ZipAR (He et al. 2024, arXiv 2412.04062): a row starts when the row above has `window` tokens.

    With a window of the full width, pictures equal plain decoding's.

    Args:
        window: tokens of the row above that a row needs.
        adaptive: `window` is the minimum: the row's first token is drawn then, and judged again with every further token of the row above
            until it is accepted or that row is complete. Not metered.
        meter: measure the drift of fixed windows, at the cost of one plain forward over the finished picture.

    Raises:
        ValueError: for a window below 1.
    """

    window: int = 8
    adaptive: bool = False
    meter: bool = True

    def __post_init__(self):
        if self.window < 1:
            raise ValueError(f"window is {self.window}: a row needs at least 1 token of the row above")

    def way(self, lines: RasterRows) -> RowMethod:
        """The decoding method as the engine runs it."""
        width, height = lines.raster.width, lines.raster.height
        window = min(self.window, width)
        busy = width + (window < width or lines.ended)  # rounds a row is under way for, that of its last cell included
        lanes = min(height, -(-busy // window))
        if self.adaptive and window < width:
            return RowMethod(window, lanes, Opening(), Reopen())
        return RowMethod(window, lanes, NoDraft(), Match(), drawn=True)


@dataclass(frozen=True, slots=True)
class Candidate:
    """First tokens of rows that are not accepted yet."""

    front: Front
    value: Tensor  # [L]
    distribution: Categorical | None  # [L, 1] what each was drawn from
    there: Tensor  # [L] bool: does a token wait in this lane?


@dataclass(frozen=True)
class Opening:
    """Keeps the first tokens of rows that widen their window, and their distributions. Proposes no draft tokens."""

    def begin(self, prompt: Any, session: Any) -> "OpeningSession":
        """Open the drafting session of one generation."""
        return OpeningSession()


class OpeningSession:
    """Drafting session of one generation; keeps the first tokens of rows and proposes none."""

    def __init__(self):
        self.waiting: tuple[Tensor, Categorical, Tensor] | None = None

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        if self.waiting is None:
            return replace(pending, aux=Candidate(pending.aux, pending.nodes[:, 0], None, torch.zeros_like(pending.aux.opening)))
        return replace(pending, aux=Candidate(pending.aux, *self.waiting))

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        waits = draft.aux.front.opening & draft.valid[:, 0] & (verdict.count == 0)
        self.waiting = verdict.values[:, 0], scored.p, waits


@dataclass(frozen=True)
class Reopen:
    """The adaptive window: a row's first token is kept with min(1, p / p_old), else drawn from norm((p - p_old)+) and judged again.

    All other tokens, and first tokens with nothing missing above them, are draws from the target. It judges no draft tokens.
    """

    exactness = LOSSY
    coupled, uses_q, trees = False, False, False

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        waiting: Candidate = draft.aux
        front, p, position = waiting.front, scored.p, draft.position()
        value = p.sample(noise.value(position))
        kept = torch.zeros_like(value, dtype=torch.bool)
        if waiting.distribution is not None:
            old = waiting.value[:, None]
            chance = ratio(p, waiting.distribution, old).clamp(max=1)
            kept = waiting.there[:, None] & noise.accept(position, front.above).below(chance)
            again = p.residual(waiting.distribution, old).sample(noise.residual(position, front.above))
            value = torch.where(waiting.there[:, None], torch.where(kept, old, again), value)
        verdict = commit(draft, torch.zeros_like(draft.start), value[:, 0])
        return deferred(verdict, front.opening & ~front.complete & ~kept[:, 0])

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        """Return the distribution of committed tokens: the target's."""
        return p
