"""Stochastic beams draw K paths without replacement, and draw the very same whoever drafted."""

import pytest
import torch

from mmspec.core.beams.search import TopKBeams
from mmspec.core.beams.stochastic import SharedNoise, StochasticBeams
from mmspec.core.noise import Noise
from mmspec.drafters.model.beams import Anchored
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.pair_world import TRIE, Shop, Toy, as_sets, code, codes_distribution, in_turn, with_replacement


def ordered(winners):
    return winners[:, 0] * 6 + winners[:, 1]


def without(distribution, k):
    return as_sets(in_turn(distribution, k))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_one_level_is_drawn_without_replacement(temperature):
    """In the order drawn; independent draws, or those of another temperature, would show."""
    toy, rows = Toy.random(1), 100_000
    found = ordered(toy.winners(StochasticBeams(TRIE, 2, temperature), None, Noise.from_seed(3, rows), rows))
    for degree, passes in ((temperature, True), (temperature * 1.3, False)):
        distribution, total = torch.zeros(36, dtype=torch.float64), sum(mass ** (1 / degree) for mass in toy.distribution.values())
        for (one, other), chance in in_turn({leaf: mass ** (1 / degree) / total for leaf, mass in toy.distribution.items()}, 2).items():
            distribution[one * 6 + other] = chance
        p = chi_square(found, distribution)
        assert p > PASS if passes else p < FAIL


def test_all_pairs_where_there_are_fewer_than_k():
    winners = Toy.random(0).winners(StochasticBeams(TRIE, 9), None, Noise.from_seed(0, 50), 50)
    assert (code(winners) == 0b110011).all()
    assert (winners[:, 4:] == -1).all()


@pytest.mark.parametrize(("width", "length"), [(2, 1), (2, 2), (4, 2), (9, 2)])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_the_same_beams_whoever_drafts(width, length, temperature):
    rows, k = 400, 2
    for near in (0.0, 0.9, 1.0):
        shop = Shop.random(near=near)
        rule, noise = StochasticBeams(shop.trie, k, temperature), Noise.from_seed(0, rows)
        plain, calls = shop.search(rule, None, noise, rows)
        found, spent = shop.search(rule, Anchored(k, width, SharedNoise(temperature)), noise, rows, length)
        assert torch.equal(found, plain)
        assert spent < calls
        if near == 1.0:
            assert spent == -(-shop.trie.levels // (length + 1)) * rows


def test_whole_searches_have_the_distribution_of_beam_sampling():
    shop, rows, k = Shop.random(), 60_000, 2
    found, _ = shop.search(StochasticBeams(shop.trie, k), Anchored(k, 4, SharedNoise(1.0)), Noise.from_seed(0, rows), rows)
    assert chi_square(code(found), codes_distribution(shop.distribution(k, draws=without), shop.trie.size)) > PASS
    assert chi_square(code(found), codes_distribution(shop.distribution(k, draws=with_replacement), shop.trie.size)) < FAIL


def test_the_limit_at_temperature_0_is_beam_search():
    shop, rows = Shop.random(), 20
    noise = Noise.from_seed(0, rows)
    found, _ = shop.search(StochasticBeams(shop.trie, 3, 1e-7), None, noise, rows)
    best, _ = shop.search(TopKBeams(shop.trie, 3), None, noise, rows)
    assert torch.equal(found, best)


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf"), "warm", True])
def test_temperatures_no_distribution_has(temperature):
    for make in (lambda: StochasticBeams(TRIE, 2, temperature), lambda: SharedNoise(temperature)):
        with pytest.raises(ValueError, match="give a number above 0"):
            make()
