"""DSBD's rule gives K independent draws from P on every level, whatever Q its draft tokens came from; three published or likely bugs do
not."""

from dataclasses import dataclass, replace

import pytest
import torch

from mmspec.core.beams.dsbd import IndependentBeams
from mmspec.core.noise import Noise
from mmspec.core.records import PAD
from mmspec.drafters.model.beam_draws import IndependentDraws
from tests.oracles.enumerate import TapeNoise, explore
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.pair_world import TRIE, Toy, code, codes_distribution, distance, with_replacement

TINY, SEEN = 1e-9, 1e-3


class FromP(IndependentBeams):
    """The released code: what is missing after a last refusal is drawn from P."""

    def judge(self, p, level, noise):
        taken, _, refused = super().judge(p, level, noise)
        return taken, p, refused


class WrongPairs(IndependentBeams):
    """Judges by what Q says of the drafter's nodes in the drafter's order, not of the target's beams in theirs."""

    def pick(self, level, noise):
        return super().pick(level if level.log_q is None else replace(level, log_q=level.log_q.roll(1, 1)), noise)


def dropped_as(value, level):
    return (
        level
        if level.draft_tokens is None
        else replace(level, draft_tokens=level.draft_tokens.masked_fill(level.draft_tokens == -1, value))
    )


class Skips(IndependentBeams):
    """Draft tokens on dropped nodes are no event: the mass Q has there is refused, but never made up for."""

    def pick(self, level, noise):
        return super().pick(dropped_as(PAD, level), noise)


class Misplaces(IndependentBeams):
    """Draft tokens on dropped nodes are taken for children of the first beam."""

    def pick(self, level, noise):
        return super().pick(dropped_as(0, level), noise)


MUTANTS = [FromP, WrongPairs, Skips, Misplaces]


def error(rule, toy: Toy, k: int, width: int) -> float:
    """How far the distribution of the winners, over every outcome of the code, is from that of k independent draws."""
    spread = Spread(k, width, 1.0)

    def run(tape):
        return code(toy.winners(rule(TRIE, k), spread, TapeNoise(tape, 2), tape.rows))

    found = explore(run)
    return distance(found.distribution(found.values, 64), codes_distribution(with_replacement(toy.distribution, k), 6))


@dataclass(frozen=True)
class Spread(IndependentDraws):
    """With any number of draft tokens."""

    def __post_init__(self) -> None:
        pass


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("k", "width"), [(1, 1), (1, 4), (2, 1), (2, 2), (2, 3), (3, 2)])
def test_every_outcome_of_one_level(seed, k, width):
    assert error(IndependentBeams, Toy.random(seed), k, width) < TINY


@pytest.mark.parametrize("kept", [(2,), (2, 3, 1)], ids=["most of Q dropped", "nothing dropped"])
def test_any_share_of_the_draft_tokens_may_hang_on_dropped_nodes(kept):
    assert error(IndependentBeams, Toy.random(3, kept), 2, 2) < TINY


def test_distributions_that_share_little_or_all():
    toy = Toy(torch.tensor([0.0, 0.2, 0.3, 0.0, 0.5, 0.0]), torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0, 0.1]), (3, 1, 2))
    assert error(IndependentBeams, Toy(toy.p.double(), toy.q.double(), toy.kept), 2, 2) < TINY
    assert error(IndependentBeams, Toy(toy.p.double(), toy.p.double(), toy.kept), 2, 3) < TINY


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_show_in_the_enumeration(mutant):
    assert error(mutant, Toy.random(0), 2, 3) > SEEN


@pytest.mark.parametrize("rule", [IndependentBeams, *MUTANTS])
def test_one_level_with_real_numbers(rule):
    toy, rows = Toy.random(1), 150_000
    found = code(toy.winners(rule(TRIE, 2), IndependentDraws(2, 3, 1.0), Noise.from_seed(5, rows), rows))
    p = chi_square(found, codes_distribution(with_replacement(toy.distribution, 2), 6))
    assert p > PASS if rule is IndependentBeams else p < FAIL
