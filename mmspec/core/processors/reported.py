"""Log-probabilities of committed tokens, for requests that ask for them, from the scores of the verification forward."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mmspec.core.processors.pipeline import Pipeline, Temperature

if TYPE_CHECKING:
    from mmspec.core.records import Committed, Draft, Verdict


@dataclass(frozen=True)
class TokenLogprob:
    """The log-probability of a committed token.

    Args:
        logprob: under the target's distribution.
        top: ids and log-probabilities of the most likely tokens, best first; those of no probability are left out.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class ReportingPipeline(Pipeline):
    """A pipeline whose committed tokens are reported with their log-probabilities.

    Args:
        count: how many of the most likely tokens are reported beside each.
    """

    count: int = 0

    @property
    def reported(self) -> Pipeline:
        """What forms the distribution that is reported: these steps; at temperature 0, which leaves one value, those before it."""
        return Pipeline(tuple(takewhile(lambda step: not (isinstance(step, Temperature) and step.temperature == 0), self.steps)))


@dataclass(frozen=True, slots=True)
class ReportedScores:
    """The target's scores after every node, of the rows that are reported.

    Args:
        rows: numbers of these rows.
        counts: of each, how many of the most likely tokens are reported.
        scores: unnormalised log-probabilities [R, N, V].
    """

    rows: Sequence[int]
    counts: Sequence[int]
    scores: Tensor

    def of(self, draft: "Draft", verdict: "Verdict", committed: "Committed") -> list[list[TokenLogprob]]:
        """Read off what was committed. One host synchronisation.

        Args:
            draft: the draft that was scored.
            verdict: its outcome on the device.
            committed: its outcome on the host.

        Returns:
            For every row of the batch one entry a committed token; none for rows that are not reported.
        """
        rows = torch.tensor(list(self.rows), device=self.scores.device)
        path = torch.cat([torch.full_like(verdict.keep[:, :1], draft.roots - 1), verdict.keep[:, draft.roots :]], 1)[rows].clamp(min=0)
        values = verdict.values[rows, : path.shape[1]]
        chosen = self.scores.gather(1, path[..., None].expand(*path.shape, self.scores.shape[-1])).log_softmax(-1)
        top = chosen.topk(min(max(self.counts), chosen.shape[-1]), -1)
        own = chosen.gather(-1, values[..., None])
        told = torch.cat([own.double(), top.values.double(), top.indices.double()], -1).tolist()  # ids are exact in double precision
        found: list[list[TokenLogprob]] = [[] for _ in committed.values]
        for row, count, line in zip(self.rows, self.counts, told, strict=True):
            found[row] = [_entry(figures, count) for figures in line[: len(committed.values[row])]]
        return found


def _entry(figures: list[float], count: int) -> TokenLogprob:
    """Of the token's own log-probability, those of the most likely tokens, and their ids."""
    own, *rest = figures
    middle = len(rest) // 2
    best = zip(rest[middle:], rest[:middle], strict=True)
    return TokenLogprob(own, tuple((int(token), value) for token, value in list(best)[:count] if value > -torch.inf))
