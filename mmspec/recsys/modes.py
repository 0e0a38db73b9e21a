"""The modes of `recommend` by name: how winners are chosen, and how guesses are chosen for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmspec.core.beams import BeamRule, TopK
from mmspec.core.trie import Trie
from mmspec.drafters.beams import Anchored


@dataclass(frozen=True)
class Mode:
    """A rule over the trie, k beams and a temperature; and the spread of guesses over k beams, a width and a temperature."""

    rule: Callable[[Trie, int, float], BeamRule]
    spread: Callable[[int, int, float], Any]
    about: str
    plain: bool = False  # never drafts


MODES: dict[str, Mode] = {
    "plain": Mode(lambda trie, k, _: TopK(trie, k), lambda k, width, _: Anchored(k, width), "beam search, nothing drafted", plain=True),
    "strict": Mode(lambda trie, k, _: TopK(trie, k), lambda k, width, _: Anchored(k, width), "beam search's very items (AtSpeed-S)"),
}


def mode_of(name: str) -> Mode:
    """The mode called `name`. ValueError lists the names there are."""
    if name not in MODES:
        raise ValueError(f"unknown mode {name!r}; valid: {', '.join(MODES)}")
    return MODES[name]
