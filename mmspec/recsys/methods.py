"""The modes of `recommend` by name: how beams are selected, and how draft tokens are selected for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.core.beams.atspeed_r import RelaxedBeams
from mmspec.core.beams.dsbd import IndependentBeams
from mmspec.core.beams.search import BeamRule, TopKBeams
from mmspec.core.beams.stochastic import SharedNoise, StochasticBeams
from mmspec.core.beams.trie import Trie
from mmspec.drafters.model.beam_draws import Distinct, IndependentDraws
from mmspec.drafters.model.beams import Anchored
from mmspec.utils.names import unknown

Temperature = float | Tensor
"""One for all rows, or float64 [B, 1]."""


@dataclass(frozen=True)
class BeamMethod:
    """A mode of `recommend`: a rule made of the trie, k beams and a temperature, and a spread of draft tokens made of k, a width and a
    temperature.
    """

    rule: Callable[[Trie, int, Temperature], BeamRule]
    spread: Callable[[int, int, Temperature], Any]
    about: str
    plain: bool = False  # never drafts
    samples: bool = False  # reads temperature and seed


def _best(trie: Trie, k: int, temperature: Temperature) -> BeamRule:
    return TopKBeams(trie, k)


def _anchored(k: int, width: int, temperature: Temperature) -> Anchored:
    return Anchored(k, width)


def _anchored_in_noise(k: int, width: int, temperature: Temperature) -> Anchored:
    return Anchored(k, width, SharedNoise(temperature))


METHODS: dict[str, BeamMethod] = {
    "plain": BeamMethod(_best, _anchored, "beam search, nothing drafted", plain=True),
    "strict": BeamMethod(_best, _anchored, "beam search's very items (AtSpeed-S)"),
    "coupled": BeamMethod(StochasticBeams, _anchored_in_noise, "beam sampling's very items for a seed (Gumbel top-k)", samples=True),
    "sample": BeamMethod(IndependentBeams, IndependentDraws, "beam sampling with replacement, exact in distribution (DSBD)", samples=True),
    "relaxed": BeamMethod(RelaxedBeams, Distinct, "beam sampling, approximate by an unknown amount (AtSpeed-R)", samples=True),
}


def method_of(name: str) -> BeamMethod:
    """Return the method called `name`. ValueError suggests the nearest name and lists all."""
    if not isinstance(name, str) or name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
