"""Whatever couples and starts a window, whole runs commit the target's distribution, or plain sampling's very tokens; published bugs do
not."""

from dataclasses import dataclass, replace
from itertools import product

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.raster import Raster
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.sibling_rules import without_replacement_rule
from mmspec.core.rules.token import Token, ratio
from mmspec.drafters.jacobi.couplers import (
    COUPLERS,
    Before,
    Independent,
    Maximal,
    check_pairing,
    fresh,
    greedy,
    gumbel,
    maximal,
    target_noise,
)
from mmspec.drafters.jacobi.initialisers import INITIALISERS, left, uniform
from mmspec.drafters.jacobi.windows import Window, WindowSession
from mmspec.drafters.none import NoDraft
from tests.core.test_mutants import MinCommit, ResidualIsP
from tests.drafters.rasters import OPEN, PICTURE, WORLDS, Rows, outputs, p_value, tables, under
from tests.oracles.enumerate import TapeNoise, explore
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.oracles.tables import Table, TableTarget, loop_distribution

INITS = list(INITIALISERS.values())
PAIRINGS = {
    "sjd-token": (fresh, Token()),
    "sjd-block": (fresh, Block()),
    "sjd-tree": (fresh, without_replacement_rule()),
    "scd-token": (maximal, Token()),
    "scd-tree": (maximal, without_replacement_rule()),
    "gumbel-token": (gumbel, Token()),
    "gumbel-tree": (gumbel, without_replacement_rule()),
    "greedy-token": (greedy, Token()),
}
INIT = pytest.mark.parametrize("init", INITS, ids=lambda init: init.name)
PAIRING = pytest.mark.parametrize("pairing", PAIRINGS.values(), ids=PAIRINGS)


def window(raster, couple, init, size: int) -> Window:
    return Window(raster, couple, init, size, torch.float64)


# --- the distribution of whole runs --------------------------------------------------------------------------------------------


@INIT
@PAIRING
def test_whole_runs_have_the_targets_distribution(pairing, init):
    couple, rule = pairing
    target = TableTarget(Table.random(2, 4, seed=5))
    found = loop_distribution(target, window(PICTURE, couple, init, 3), rule, most=4, length=2)
    assert (found - target.table.joint(4)).abs().max() < 1e-9


@INIT
@pytest.mark.parametrize("couple", [fresh, maximal], ids=["sjd", "scd"])
def test_whole_runs_with_row_ends_have_the_targets_distribution(couple, init):
    raster = Raster.grid(2, 1, 2, row_end=2)
    target = TableTarget(under(raster, Table.random(3, 4, seed=6)))
    found = loop_distribution(target, window(raster, couple, init, 4), Token(), most=4, length=3)
    assert (found - target.table.joint(4)).abs().max() < 1e-9


CASES = list(product(PAIRINGS, INITS))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{name}-{init.name}" for name, init in CASES])
def test_rows_of_unequal_speed_keep_each_its_distribution(number):
    """Over guided, truncated, forced and early ending targets, and windows from 2 to longer than the output."""
    name, init = CASES[number]
    (target, raster, end), size = list(WORLDS.values())[number % 4], (2, 4, 9)[number % 3]
    couple, rule = PAIRINGS[name]
    assert p_value(target, window(raster, couple, init, size), rule, size, rows=6000, end=end) > PASS


@pytest.mark.parametrize("world", WORLDS)
def test_a_biased_distribution_would_show(world):
    """The very runs above, held against the distribution of a slightly different target."""
    target, raster, end = WORLDS[world]

    class Other(Rows):
        def joint(self, kind, most):
            distribution = target.joint(kind, most)
            return 0.75 * distribution + 0.25 * distribution.roll(1)

    assert p_value(Other(target.table), window(raster, maximal, uniform, 4), Token(), 4, rows=6000, end=end) < FAIL


@PAIRING
def test_a_row_is_the_same_alone_and_in_any_batch(pairing):
    couple, rule = pairing
    for (target, raster, end), seed in product(list(WORLDS.values())[1:], range(3)):
        ends = () if end is None else (end,)
        runs = [
            outputs(target, window(raster, couple, left, 4), rule, rows, 4, seed=10 * seed, ends=ends, check=True) for rows in (1, 2, 4)
        ]
        assert torch.equal(runs[2][:2], runs[1])
        assert torch.equal(runs[2][:1], runs[0])


@INIT
@pytest.mark.parametrize(
    ("couple", "rule"),
    [(target_noise, Coupled()), (greedy, Coupled()), (fresh, Match()), (maximal, Match()), (gumbel, Match())],
    ids=["shared-coupled", "greedy-coupled", "fresh-match", "maximal-match", "gumbel-match"],
)
def test_sampling_is_plain_sampling_whatever_is_drafted(couple, rule, init):
    for target, raster, end in WORLDS.values():
        ends = () if end is None else (end,)
        for rows, size in ((1, 9), (2, 4), (4, 2), (40, 4)):
            plain = outputs(target, NoDraft(), Match(), rows, 1, ends=ends)
            assert torch.equal(outputs(target, window(raster, couple, init, size), rule, rows, size, ends=ends), plain)


@INIT
def test_greedy_windows_are_greedy_decoding(init):
    target = Rows(tables(1))
    plain = outputs(target, NoDraft(), Greedy(), 2, 1)
    assert torch.equal(outputs(target, window(OPEN, greedy, init, 4), Greedy(), 2, 4), plain)


# --- the couplings ----------------------------------------------------------------------------------------------------


def redrawn(couple, q: torch.Tensor, p: torch.Tensor, rows: int = 20_000) -> tuple[torch.Tensor, torch.Tensor]:
    """Draft tokens drawn from q in one round and from p in the next. [rows] both"""
    noise, start = Noise.from_seed(5, rows), torch.zeros(rows, dtype=torch.long)
    position = start[:, None] + 4
    old_distribution, distribution = (Categorical(x.log().expand(rows, 1, -1)) for x in (q, p))
    old, _ = couple(old_distribution, None, noise, position, start)
    before = Before(old, old_distribution, torch.zeros_like(old), torch.ones_like(old, dtype=torch.bool))
    new, _ = couple(distribution, before, noise, position, start + 2)
    return old[:, 0], new[:, 0]


@pytest.mark.parametrize("couple", [fresh, maximal, gumbel], ids=["fresh", "maximal", "gumbel"])
def test_a_redrawn_draft_token_follows_the_newest_distribution(couple):
    q, p = torch.tensor([0.5, 0.1, 0.3, 0.1]).double(), torch.tensor([0.3, 0.4, 0.2, 0.1]).double()
    old, new = redrawn(couple, q, p)
    assert chi_square(old, q) > PASS
    assert chi_square(new, p) > PASS
    assert chi_square(new, 0.8 * p + 0.2 * q) < FAIL
    kept, tv = (old == new).double().mean().item(), 0.5 * (p - q).abs().sum().item()
    expected = {fresh: ((p * q).sum().item(),) * 2, maximal: (1 - tv, 1 - tv), gumbel: ((1 - tv) / (1 + tv), 1 - tv)}[couple]
    assert expected[0] - 0.015 < kept < expected[1] + 0.015


def test_kept_draft_tokens_stay_while_their_distribution_stays():
    distribution = torch.tensor([0.5, 0.1, 0.3, 0.1]).double()
    for couple in (maximal, gumbel):
        old, new = redrawn(couple, distribution, distribution, rows=500)
        assert torch.equal(old, new)


def test_shared_numbers_are_the_targets_in_no_round():
    noise = Noise.from_seed(0, 200)
    position, start = torch.full((200, 1), 3), torch.zeros(200, dtype=torch.long)
    shared = noise.shared(position).uniform()
    for other in (
        noise.value(position),
        noise.draft_token(position, start),
        noise.accept(position, start),
        noise.residual(position, start),
    ):
        assert not torch.isin(shared, other.uniform()).any()


def test_the_oracle_of_shared_numbers():
    """Of two values, two draws by one uniform number agree with chance 1 - |p - p'|."""

    def run(tape):
        keys = TapeNoise(tape, 4).shared(torch.zeros(tape.rows, 1, dtype=torch.long))
        draws = [keys.choose(torch.tensor([1 - p, p]).double().log().expand(tape.rows, 1, 2)) for p in (0.3, 0.8, 0.5)]
        return torch.cat(draws, 1)

    found = explore(run)
    assert found.weights[found.values[:, 0] == found.values[:, 1]].sum() == pytest.approx(0.5)
    assert found.weights[found.values[:, 1] == found.values[:, 2]].sum() == pytest.approx(0.7)
    assert found.weights[found.values[:, 2] == 1].sum() == pytest.approx(0.5)


def test_block_verification_refuses_kept_draft_tokens():
    for name, couple in COUPLERS.items():
        check_pairing(couple, Token())
        if name in ("maximal", "gumbel"):
            with pytest.raises(ValueError, match="block verification"):
                check_pairing(couple, Block())
        else:
            check_pairing(couple, Block())


# --- published bugs ---------------------------------------------------------------------------------------------------


class Stale(Maximal):
    """A kept draft token keeps the distribution it was first drawn from."""

    def __call__(self, distribution, before, noise, position, start):
        values, distribution = super().__call__(distribution, before, noise, position, start)
        return values, distribution if before is None else before.distributions.where(
            before.there & (values == before.values), distribution
        )


@dataclass(frozen=True)
class Threshold:
    """Draft tokens are kept where p / q is high enough."""

    fresh = False

    def __call__(self, distribution, before, noise, position, start):
        values = distribution.sample(noise.draft_token(position, start))
        if before is None:
            return values, distribution
        keep = before.there & (ratio(distribution, before.distributions, before.values) > 0.5)
        return torch.where(keep, before.values, values), distribution


class Tilted(Independent):
    """Uniform draft tokens on record as something else."""

    def __call__(self, distribution, before, noise, position, start):
        values, distribution = super().__call__(distribution, before, noise, position, start)
        flat = (distribution.scores == distribution.scores[..., :1]).all(-1)
        return values, Categorical(distribution.scores + torch.arange(distribution.scores.shape[-1])).where(flat, distribution)


@dataclass(frozen=True)
class Retested(Window):
    """What a round accepted but did not commit is proposed again, with the distribution of old."""

    def begin(self, prompt, session):
        return RetestedSession(self)


class RetestedSession(WindowSession):
    def observe(self, draft, scored, verdict, committed):
        super().observe(draft, scored, verdict, committed)
        self.surplus = (verdict.judged - verdict.accepted - 1)[:, None]  # `MinCommit` calls all that was accepted judged

    def propose(self, pending, budget, noise):
        draft = super().propose(pending, budget, noise)
        steps = torch.arange(draft.size - draft.roots)
        before = None if self.seen is None or not len(steps) else self.seen.before(steps)
        if before is None:
            return draft
        again = steps < self.surplus
        draft_tokens = torch.where(again, before.values, draft.draft_tokens)
        nodes = torch.cat([draft.nodes[:, : draft.roots], draft_tokens], 1)
        return replace(draft, nodes=nodes, q=before.distributions.where(again, draft.q))


BIASED = {  # the last: as many rows as it takes to be seen; what is right passes with the most of them
    "stale-q": (window(OPEN, Stale(), uniform, 4), Token(), 20_000),
    "threshold": (window(OPEN, Threshold(), uniform, 4), Token(), 50_000),
    "tilted-q": (window(OPEN, Tilted(), uniform, 4), Token(), 20_000),
    "residual-is-p": (window(OPEN, fresh, uniform, 4), ResidualIsP(), 20_000),
    "batch-minimum": (Retested(OPEN, fresh, uniform, 4, torch.float64), MinCommit(), 100_000),
}


@pytest.mark.parametrize("name", BIASED)
def test_published_bugs_bend_the_distribution(name):
    drafter, rule, rows = BIASED[name]
    assert p_value(Rows(tables(1, sharp=0.4)), drafter, rule, 4, rows=rows) < FAIL


def test_their_honest_counterparts_do_not():
    for couple, rule in ((maximal, Token()), (fresh, Token()), (fresh, MinCommit())):
        assert p_value(Rows(tables(1, sharp=0.4)), window(OPEN, couple, uniform, 4), rule, 4, rows=100_000) > PASS


def test_block_verification_of_kept_draft_tokens_bends_the_distribution():
    target = TableTarget(Table.random(2, 4, seed=2, sharp=0.4))
    for couple, exact in ((fresh, True), (maximal, False), (gumbel, False)):
        found = loop_distribution(target, window(PICTURE, couple, uniform, 4), Block(), most=4, length=3)
        error = (found - target.table.joint(4)).abs().max()
        assert error < 1e-9 if exact else error > 1e-3
