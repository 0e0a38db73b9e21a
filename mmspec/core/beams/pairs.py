"""Distributions over the pairs (beam, child) of a level and draws from them, for rules that sample beams.

A pair is identified by its child's trie node. Draws go by nodes and never by columns, whose number depends on a batch's widest row: a row
draws the same alone and in any batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.beams.search import BeamRule
from mmspec.core.noise import Keys


def check_temperature(temperature: float | Tensor) -> None:
    """ValueError for a temperature at which nothing can be sampled. Those by row are not read."""
    if isinstance(temperature, Tensor):
        return
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 < temperature < float("inf"):
        raise ValueError(f"temperature is {temperature!r}: give a number above 0, or mode 'strict' for the best paths without drawing")


@dataclass(frozen=True)
class SampledBeams(BeamRule):
    """Base of rules that draw a level's winners from softmax(score / temperature) over all pairs of a row's beams.

    That is the distribution of transformers' `num_beams=K, do_sample=True`: its temperature divides log-probabilities that are not
    normalised again, and forbidden paths are removed after the softmax over the vocabulary.
    """

    by_row = (*BeamRule.by_row, "temperature")

    temperature: float | Tensor = 1.0  # or by row, float64 [B, 1]

    def __post_init__(self) -> None:
        check_temperature(self.temperature)


def pair_distribution(score: Tensor, temperature: float | Tensor) -> Tensor:
    """log P [B, S] over the pairs whose path scores are `score` [B, S]; -inf where there is none, all over in rows that have none."""
    return (score.double() / temperature).log_softmax(-1).nan_to_num(-torch.inf, neginf=-torch.inf)


def draw_pairs(keys: Keys, weights: Tensor, state: Tensor) -> Tensor:
    """Draw indices [B, n] independently from the weights [B, S] of pairs at trie nodes `state` [B, S], one for each of n streams."""
    order = state.argsort(1)
    return order.gather(1, keys.draw(weights.gather(1, order)))


def draw_distinct(keys: Keys, log_distribution: Tensor, state: Tensor, count: int) -> Tensor:
    """Indices [B, count] drawn without replacement from `log_distribution` [B, S]; -1 when nothing is left. `keys` is [B, 1]."""
    index = keys.choose_distinct(log_distribution[:, None], min(count, log_distribution.shape[1]), state[:, None])[:, 0]
    index = torch.where(log_distribution.gather(1, index) > -torch.inf, index, -1)
    return torch.nn.functional.pad(index, (0, count - index.shape[1]), value=-1)


def repeated(index: Tensor) -> Tensor:
    """[B, M] bool: the same number occurs further left in `index` [B, M]."""
    return (index[:, :, None] == index[:, None, :]).tril(-1).any(-1)


def first_distinct(index: Tensor, count: int) -> Tensor:
    """The first `count` different, non-negative numbers of `index` [B, M], followed by -1: [B, count]."""
    fresh = ~repeated(index) & (index >= 0)
    order = (~fresh).long().argsort(dim=1, stable=True)
    found = torch.where(fresh, index, -1).gather(1, order)[:, :count]
    return torch.nn.functional.pad(found, (0, count - found.shape[1]), value=-1)


def left_over(p: Tensor, q: Tensor) -> Tensor:
    """norm((p - q)+), all [B, S]; p where rounding leaves nothing, since the two are equal there.

    Mass of q on other pairs has no effect: p has none there either.
    """
    rest = (p - q).clamp_min(0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, p)
