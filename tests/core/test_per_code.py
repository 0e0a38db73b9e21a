"""Frames judged code by code: exact by enumeration through the loop, and metered where books are relaxed."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.rules import per_code
from mmspec.core.rules.base import DISTRIBUTION_EXACT, LOSSY
from mmspec.core.rules.block import Block
from mmspec.core.rules.lossy.ensemble import Ensemble
from mmspec.core.rules.lossy.lenience import Lenience
from mmspec.core.rules.lossy.ssd import SSD
from mmspec.core.rules.match import Match
from mmspec.core.rules.per_code import PerCode
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, Comb, most_likely, sampled
from tests.oracles.frames import frame_pair, frames_loop_distribution, frames_round, frames_round_distribution, frames_run
from tests.oracles.tables import TableTarget, pair, run_loop

TINY, SEEN = 1e-9, 1e-3
SIZES = [(2, 2, 2, 2), (2, 2, 3, 2), (2, 3, 2, 1), (3, 2, 2, 1), (4, 2, 2, 1)]  # books, codes, frames, draft tokens a round


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("draw", [sampled, most_likely])
def test_one_round_is_exact(sizes, hangs, draw):
    books, size, most, length = sizes
    target, drafter = frame_pair(books, size, most, 1, hangs=hangs, zeros=0.1)
    distribution = frames_round_distribution(target, ModelDrafter(drafter, Chain(draw)), PerCode(), most=most, length=length)
    assert (distribution - target.frames.table.joint(most)).abs().max() < TINY


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("length", [0, 1, 2])
def test_whole_runs_are_exact(hangs, length):
    target, drafter = frame_pair(2, 2, 2, 1, hangs=hangs)
    distribution = frames_loop_distribution(target, ModelDrafter(drafter) if length else NoDraft(), PerCode(), most=2, length=length)
    assert (distribution - target.frames.table.joint(2)).abs().max() < TINY


@pytest.mark.parametrize("hangs", [False, True])
def test_a_frame_survives_with_the_product_of_its_codes_chances(hangs):
    target, drafter = frame_pair(3, 2, 2, 1, hangs=hangs)
    outcomes = frames_round(target, ModelDrafter(drafter), PerCode(), most=2, length=1)
    x, one = target.frames.all()[:, None], torch.ones(8, 1, dtype=torch.long)
    p, q = target.distribution(one), drafter.distribution(one)
    chances = (p.codes(x).log_prob(x) - q.codes(x).log_prob(x)).exp().clamp(max=1).prod(-1)
    accepted, refused = (outcomes.weights * outcomes.extra["accepted"]).sum(), (outcomes.weights * outcomes.extra["expected"]).sum()
    assert abs(accepted - (q.prob(x) * chances).sum()) < TINY
    distance = 0.5 * (p.prob(x) - q.prob(x)).abs().sum()
    assert abs(refused - distance) < TINY  # the meter says what whole frames would be refused
    assert accepted < 1 - distance - SEEN


# --- mutants ----------------------------------------------------------------------------------------------------------


def error(rule, hangs: bool, books: int = 3, tamper=lambda distribution: distribution) -> float:
    target, drafter = frame_pair(books, 2, 2, 1, hangs=hangs)
    distribution = frames_round_distribution(target, ModelDrafter(drafter), rule, most=2, length=1)
    return (distribution - target.frames.table.joint(2)).abs().max().item()


class ReusedStreams:
    """Keys of which every book gets the first stream."""

    def __init__(self, keys):
        self.keys = keys

    def branch(self, count: int):
        first = self.keys.branch(count)
        return replace(first, words=first.words[..., :1].expand(first.words.shape))


class Reusing(PerCode):
    """The acceptance test of every book by one number."""

    def __call__(self, draft, scored, noise):
        class Mutant:
            value, residual = noise.value, noise.residual

            @staticmethod
            def accept(position, start):
                return ReusedStreams(noise.accept(position, start))

        return super().__call__(draft, scored, Mutant())  # pyright: ignore[reportArgumentType]


class KeepsLaterCodes(PerCode):
    """Codes drafted behind a refused one stay, though they hang on it."""

    def __call__(self, draft, scored, noise):
        return super().__call__(draft, replace(scored, p=Loose(scored.p)), noise)


class Loose:
    """A distribution of frames that says no code hangs on another."""

    autoregressive = False

    def __init__(self, distribution):
        self.distribution = distribution

    def at(self, index: Tensor):
        return Loose(self.distribution.at(index))

    def __getattr__(self, name: str):
        return getattr(self.distribution, name)


class Unmended(PerCode):
    """A refused code is drawn from p, not from what is left of it."""

    def _rule(self, book: int):
        class Plain(Token):
            def replacement(self, p, q, x):
                return p

        return Plain()


@pytest.mark.parametrize(
    ("mutant", "hangs"), [(Reusing(), False), (Reusing(), True), (KeepsLaterCodes(), True), (Unmended(), False), (Unmended(), True)]
)
def test_planted_bugs_show(mutant, hangs):
    assert error(PerCode(), hangs) < TINY
    assert error(mutant, hangs) > SEEN


# --- relaxed books ----------------------------------------------------------------------------------------------------

RELAXED = [(Token(), Ensemble(0.5)), (Token(), SSD(0.3)), (Ensemble(0.7), Token()), (Ensemble(0.6),), (Token(), Token(), SSD(0.2))]


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("rules", RELAXED, ids=lambda rules: "-".join(type(rule).__name__ for rule in rules))
def test_drift_bounds_the_distance_of_a_frame(rules, hangs):
    """And is the very sum of the books' distances where no code hangs on another."""
    target, drafter = frame_pair(3, 2, 2, 1, hangs=hangs)
    outcomes = frames_round(target, ModelDrafter(drafter), PerCode(rules), most=2, length=1)
    distribution = outcomes.distribution(outcomes.values[:, 0], 8)
    drift = (outcomes.weights * outcomes.extra["drift"]).sum()
    goal = target.frames.table.joint(1)
    distance = 0.5 * (distribution - goal).abs().sum()
    assert SEEN < distance < drift + TINY
    first = distribution.view(2, 4).sum(1) - goal.view(2, 4).sum(1)
    assert (first.abs().max() < TINY) == (rules[0].exactness == DISTRIBUTION_EXACT)
    if not hangs:
        books = [0.5 * (a - b).abs().sum() for a, b in zip(_marginals(distribution), _marginals(goal), strict=True)]
        assert abs(sum(books) - drift) < TINY


def _marginals(distribution: Tensor) -> list[Tensor]:
    cube = distribution.view(2, 2, 2)
    return [cube.sum((1, 2)), cube.sum((0, 2)), cube.sum((0, 1))]


def test_drift_of_codes_behind_a_refused_one_is_counted(monkeypatch):
    """Where they keep their own outcomes."""
    target, drafter = frame_pair(3, 2, 2, 1, hangs=False)

    def drift() -> float:
        outcomes = frames_round(target, ModelDrafter(drafter), PerCode((Ensemble(0.6),)), most=2, length=1)
        return (outcomes.weights * outcomes.extra["drift"]).sum().item()

    right = drift()
    monkeypatch.setattr(
        per_code, "_tried", lambda p, passes: torch.cat([passes[..., :1] | True, passes[..., :-1]], -1).long().cumprod(-1).bool()
    )
    assert drift() < right - SEEN


def test_exactness_is_that_of_the_loosest_book():
    assert PerCode().exactness == PerCode((Token(), Token())).exactness == DISTRIBUTION_EXACT
    assert PerCode((Token(), SSD())).exactness == LOSSY


def test_what_it_cannot_judge_is_refused():
    for rules, said in (((), "rules is empty"), ((Token(), Match()), "Match does not judge"), ((Block(),), "Block does not judge")):
        with pytest.raises(ValueError, match=said):
            PerCode(rules)
    with pytest.raises(ValueError, match=r"SSD has a budget of 0\.5"):
        PerCode((Token(), SSD(budget=0.5)))
    target, drafter = pair(2, 5, 1)
    assert isinstance(target, TableTarget)
    with pytest.raises(ValueError, match="single ids: take token"):
        run_loop(target, ModelDrafter(drafter), PerCode(), Noise.from_seed(0, 2), 2, 3, 2)
    with pytest.raises(ValueError, match="leave tree out"):
        run_loop(target, ModelDrafter(drafter, Comb(2)), PerCode(), Noise.from_seed(0, 2), 2, 3, 2)


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("rule", [PerCode(), PerCode((Token(), Lenience(0.7)))])
def test_a_row_is_the_same_alone_and_in_a_batch(rule, hangs):
    target, drafter = frame_pair(2, 2, 3, 1, hangs=hangs)

    def outputs(seeds):
        return frames_run(target, ModelDrafter(drafter), rule, Noise.from_seed(seeds, len(seeds)), len(seeds), most=8, length=3)[0]

    assert outputs(range(5)) == [outputs([seed])[0] for seed in range(5)]
