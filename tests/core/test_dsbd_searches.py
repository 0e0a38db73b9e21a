"""Whole searches under DSBD's rule have the distribution of independent draws level by level; its mutants have not."""

import pytest

from mmspec.core.beams.dsbd import IndependentBeams
from mmspec.core.noise import Noise
from mmspec.drafters.model.beam_draws import IndependentDraws
from tests.core.test_dsbd import FromP, Misplaces, Skips, WrongPairs
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.pair_world import TRIE, Shop, Toy, code, codes_distribution, with_replacement


@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_whole_searches(temperature):
    """Drafted by two levels, by one, and not at all, a search has one distribution; draft tokens spare calls."""
    shop, rows, k = Shop.random(), 100_000, 2
    expected = codes_distribution(shop.distribution(k, temperature), shop.trie.size)
    spent = []
    for number, (spread, length) in enumerate(
        [(IndependentDraws(k, 6, temperature), 2), (IndependentDraws(k, 3, temperature), 1), (None, 0)]
    ):
        rule = IndependentBeams(shop.trie, k, temperature)
        found, calls = shop.search(rule, spread, Noise.from_seed(rows * number, rows), rows, length)
        assert chi_square(code(found), expected) > PASS
        spent.append(calls)
    assert spent[0] < spent[1] < spent[2] == shop.trie.levels * rows


@pytest.mark.parametrize("mutant", [FromP, WrongPairs, Skips, Misplaces])
def test_mutants_show_in_whole_searches(mutant):
    shop, rows, k = Shop.random(near=0.0), 20_000, 2  # a fifth of what the right rule passes with
    found, _ = shop.search(mutant(shop.trie, k), IndependentDraws(k, 4, 1.0), Noise.from_seed(0, rows), rows)
    assert chi_square(code(found), codes_distribution(shop.distribution(k), shop.trie.size)) < FAIL


def test_draft_tokens_of_no_known_distribution_are_not_judged():
    """All is drawn from P, so it does not matter what they were."""
    toy, rows = Toy.random(1), 50_000
    found = code(toy.winners(IndependentBeams(TRIE, 2), None, Noise.from_seed(5, rows), rows))
    assert chi_square(found, codes_distribution(with_replacement(toy.distribution, 2), 6)) > PASS
