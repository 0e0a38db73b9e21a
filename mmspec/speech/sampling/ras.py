"""Repetition-aware sampling (VALL-E 2, Chen et al. 2024, arXiv 2406.05370), as the distribution it is.

Speech models draw a value from a nucleus n and, where it stands too often in the last few outputs, draw again from a flatter distribution
b. Implementations sample, look and sample again; what comes out is, in closed form,

    p(t) = n(t) [t is not repeated] + (sum of n(y) over repeated y) b(t).

It depends on the path alone, so it is computed after every drafted node with that node's own history, for the target and the
drafter alike, and every exact rule is then exact for it.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.processors.history import History, tally
from mmspec.core.processors.pipeline import Pipeline, Processor, TopK, TopP, ban, pipeline

NUCLEUS = Pipeline((TopP(0.8), TopK(25)))
"""CosyVoice's: a nucleus of the whole distribution, of which no more than 25 values."""
PLAIN = Pipeline()


@dataclass(frozen=True)
class RepetitionAware:
    """Draw by `usual`; a value that stands `limit` times or more among the last `window` outputs is drawn again, by `again`.

    Both are processors of the raw scores, and what is returned are log-probabilities: it takes the place of temperature and
    truncation at a pipeline's end. The prompt is not counted, and ids in `exclude` (ends, say) are never repeated.

    `count` "runs" counts a run of equal values once: held sounds repeat a code for many frames, and are no loop. With `limit` 2 a
    run may then go on, and a value may not come back a second time within the window. `strike` leaves the value drawn first out
    of the second draw, as later releases of CosyVoice do, unless nothing else is possible.
    """

    usual: Processor = NUCLEUS
    again: Processor = PLAIN
    window: int = 10
    limit: int = 1
    exclude: tuple[int, ...] = ()
    count: Literal["tokens", "runs"] = "tokens"
    strike: bool = False

    def __post_init__(self):
        if self.window < 1:
            raise ValueError(f"window is {self.window}: look back at 1 output or more")
        if self.limit < 1:
            raise ValueError(f"limit is {self.limit}: a value is repeated when it stands there once or more often, so at least 1")
        if self.count not in ("tokens", "runs"):
            raise ValueError(f"count is {self.count!r}: valid: tokens, runs")

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        usual, again = (draw(scores, history).log_softmax(-1) for draw in (self.usual, self.again))
        repeated = self.repeated(history, scores.shape[-1])
        kept, refused = ban(usual, repeated), ban(usual, ~repeated)
        back = _struck(refused, again) if self.strike else again + refused.logsumexp(-1, keepdim=True)
        return torch.logaddexp(kept, back)

    def repeated(self, history: History, size: int) -> Tensor:
        """[B, N, V] bool: does the value stand too often among the last outputs?"""
        ids, real = history.last(self.window, outputs=True)
        if self.count == "runs":
            goes_on = (ids[..., 1:] == ids[..., :-1]) & real[..., :-1]
            real = torch.cat([real[..., :1], real[..., 1:] & ~goes_on], -1)
        found = tally(ids, real, size) >= self.limit
        found[..., [i for i in self.exclude if i < size]] = False
        return found


def _struck(refused: Tensor, again: Tensor) -> Tensor:
    """Log of the sum over y of refused(y) again(t) / (1 - again(y)), y other than t; a y that is all there is comes back itself."""
    first, second = refused.double().exp(), again.double().exp()
    rest = _others(second)
    share = torch.where(rest > 0, first / rest, 0)
    return (second * _others(share) + torch.where(rest > 0, 0, first)).log().to(again.dtype)


def _others(amounts: Tensor) -> Tensor:
    """What all but each one sum to, [..., V]. Where one is nearly all, taking it off the sum would leave rounding."""
    most = amounts.argmax(-1, keepdim=True)
    rest = amounts.scatter(-1, most, 0).sum(-1, keepdim=True)
    return (amounts.sum(-1, keepdim=True) - amounts).scatter(-1, most, rest)


def repetition_aware(
    window: int = 10,
    ratio: float | None = 0.1,
    *,
    limit: int | None = None,
    temperature: float = 1.0,
    top_k: int = 25,
    top_p: float = 0.8,
    exclude: tuple[int, ...] = (),
    count: Literal["tokens", "runs"] = "tokens",
    fallback: Processor = PLAIN,
    strike: bool = False,
) -> RepetitionAware:
    """By the usual numbers: repeated is what makes up `ratio` of the window or more, or stands there `limit` times if that is given.

    The nucleus is of the whole distribution at `temperature`, cut to `top_k` values. `fallback` draws again: by default the plain softmax.
    """
    if limit is None:
        if ratio is None or not 0 < ratio <= 1:
            raise ValueError(f"ratio is {ratio}: the share of the window is above 0 and at most 1; or give limit, a count")
        limit = math.ceil(ratio * window)  # the least count that is >= ratio * window
    nucleus = pipeline(temperature=temperature, top_p=top_p).steps + pipeline(top_k=top_k).steps
    return RepetitionAware(Pipeline(nucleus), fallback, window, limit, exclude, count, strike)


def higgs(window: int, limit: int, exclude: tuple[int, ...], usual: Pipeline) -> RepetitionAware:
    """Higgs Audio's: drawn again from the softmax of the raw scores, temperature and truncation left out; ends are in `exclude`."""
    return RepetitionAware(usual, PLAIN, window, limit, exclude)


def fish(usual: Pipeline, exclude: tuple[int, ...], top_k: int = 30) -> RepetitionAware:
    """Fish Audio S2's: what stands among the last 10 semantic codes is drawn again at temperature 1 with top-p 0.9."""
    return RepetitionAware(usual, pipeline(temperature=1.0, top_k=top_k, top_p=0.9), 10, 1, exclude)
