"""The modes of `recommend` by name: how winners are chosen, and how guesses are chosen for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmspec.core.atspeed_r import RelaxedBeams
from mmspec.core.beams import BeamRule, TopK
from mmspec.core.dsbd import IndependentBeams
from mmspec.core.stochastic_beams import SharedNoise, StochasticBeams
from mmspec.core.trie import Trie
from mmspec.drafters.beam_draws import Distinct, Independent
from mmspec.drafters.beams import Anchored


@dataclass(frozen=True)
class Mode:
    """A rule over the trie, k beams and a temperature; and the spread of guesses over k beams, a width and a temperature."""

    rule: Callable[[Trie, int, float], BeamRule]
    spread: Callable[[int, int, float], Any]
    about: str
    plain: bool = False  # never drafts


def _best(trie: Trie, k: int, temperature: float) -> BeamRule:
    return TopK(trie, k)


def _anchored(k: int, width: int, temperature: float) -> Anchored:
    return Anchored(k, width)


def _anchored_in_noise(k: int, width: int, temperature: float) -> Anchored:
    return Anchored(k, width, SharedNoise(temperature))


MODES: dict[str, Mode] = {
    "plain": Mode(_best, _anchored, "beam search, nothing drafted", plain=True),
    "strict": Mode(_best, _anchored, "beam search's very items (AtSpeed-S)"),
    "coupled": Mode(StochasticBeams, _anchored_in_noise, "beam sampling's very items for a seed (Gumbel top-k)"),
    "sample": Mode(IndependentBeams, Independent, "beam sampling with replacement, exact in law (DSBD)"),
    "relaxed": Mode(RelaxedBeams, Distinct, "beam sampling, approximate by an unknown amount (AtSpeed-R)"),
}


def mode_of(name: str) -> Mode:
    """The mode called `name`. ValueError lists the names there are."""
    if name not in MODES:
        raise ValueError(f"unknown mode {name!r}; valid: {', '.join(MODES)}")
    return MODES[name]
