"""AtSpeed-R does what its description says, and how far that is from beam sampling is on record for one toy."""

import itertools
from dataclasses import dataclass

import pytest
import torch

from mmspec.core.beams.atspeed_r import RelaxedBeams
from mmspec.core.noise import Noise
from mmspec.core.rules.base import UNMETERED
from mmspec.drafters.model.beam_draws import Distinct
from tests.oracles.enumerate import TapeNoise, explore
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.pair_world import TRIE, Sets, Shop, Toy, as_sets, code, codes_distribution, distance, in_turn, with_replacement

TINY = 1e-9


@dataclass(frozen=True)
class Spread(Distinct):
    """With any number of draft tokens."""

    def __post_init__(self) -> None:
        pass


def described(toy: Toy, k: int, width: int) -> Sets:
    """The distribution of the winners, from the words of the description."""
    p, q, found = toy.distribution, toy.drafted, {}
    rest = {z: p[z] - q[z] for z in p if p[z] > q[z]}
    for draft_tokens, drawn in in_turn(q, width).items():
        chances = [min(1.0, p.get(z, 0.0) / q[z]) for z in draft_tokens]
        for passes in itertools.product((True, False), repeat=width):
            share = drawn
            for chance, hit in zip(chances, passes, strict=True):
                share *= chance if hit else 1 - chance
            if share == 0:
                continue
            kept = [z for z, hit in zip(draft_tokens, passes, strict=True) if hit]
            if len(kept) >= k:
                ways = [(frozenset(some), 1 / len(list(itertools.combinations(kept, k)))) for some in itertools.combinations(kept, k)]
            else:
                ways = list(filled(kept, rest, p, k))
            for winners, way in ways:
                found[winners] = found.get(winners, 0.0) + share * way
    return found


def filled(kept, rest, p, k):
    left = {z: mass for z, mass in rest.items() if z not in kept}
    for more, way in in_turn(left, k - len(kept)).items():
        have = [*kept, *more]
        for last, chance in in_turn({z: mass for z, mass in p.items() if z not in have}, k - len(have)).items():
            yield frozenset([*have, *last]), way * chance


def distribution_of(toy: Toy, k: int, width: int):
    def run(tape):
        return code(toy.winners(RelaxedBeams(TRIE, k), Spread(k, width, 1.0), TapeNoise(tape, 2), tape.rows))

    found = explore(run)
    return found.distribution(found.values, 64)


@pytest.mark.parametrize(("k", "width"), [(1, 1), (1, 3), (2, 1), (2, 2), (2, 3)])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_outcome_of_one_level(seed, k, width):
    toy = Toy.random(seed)
    assert distance(distribution_of(toy, k, width), codes_distribution(described(toy, k, width), 6)) < TINY


def test_its_distance_from_beam_sampling():
    """Not 0, whichever beam sampling is meant; one draft for one winner is the case that is proven."""
    toy = Toy.random(0)
    found = codes_distribution(described(toy, 2, 3), 6)
    for distribution in (as_sets(in_turn(toy.distribution, 2)), with_replacement(toy.distribution, 2)):
        assert 0.01 < distance(found, codes_distribution(distribution, 6)) < 0.6
    assert distance(codes_distribution(described(toy, 1, 1), 6), codes_distribution(with_replacement(toy.distribution, 1), 6)) < TINY


def test_real_numbers():
    toy, rows = Toy.random(1), 100_000
    found = code(toy.winners(RelaxedBeams(TRIE, 2), Distinct(2, 3, 1.0), Noise.from_seed(5, rows), rows))
    assert chi_square(found, codes_distribution(described(toy, 2, 3), 6)) > PASS
    assert chi_square(found, codes_distribution(as_sets(in_turn(toy.distribution, 2)), 6)) < FAIL


def test_a_target_that_drafts_for_itself_has_every_draft_token_pass():
    toy = Toy.random(2, kept=(1, 2, 3))
    same, rows = Toy(toy.p, toy.p, toy.kept), 500
    spread, noise = Distinct(3, 3, 1.0), Noise.from_seed(0, rows)
    drawn = same.winners(RelaxedBeams(TRIE, 3), spread, noise, rows)
    draft_tokens = same.draft_tokens(spread, noise, rows)
    assert torch.equal(drawn.sort(1).values, draft_tokens.sort(1).values)


def test_undrafted_it_is_beam_sampling():
    shop, rows, k = Shop.random(), 50_000, 2
    found, _ = shop.search(RelaxedBeams(shop.trie, k), None, Noise.from_seed(0, rows), rows)
    assert (
        chi_square(
            code(found),
            codes_distribution(shop.distribution(k, draws=lambda distribution, n: as_sets(in_turn(distribution, n))), shop.trie.size),
        )
        > PASS
    )


def test_it_is_never_advertised_as_lossless():
    assert RelaxedBeams(TRIE, 2).exactness == UNMETERED == "lossy (unmetered)"
