"""Whole frames under the rules of single values: distributions enumerated over all V^K frames, and whole runs equal to plain decoding."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from mmspec.bench.synthetic.frame_acceptance import acceptance
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.frame import Frame
from mmspec.core.distributions.thinning import ResidualByThinning
from mmspec.core.noise import Keys, Noise
from mmspec.core.records import Draft
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.lossy.ensemble import Ensemble
from mmspec.core.rules.lossy.lenience import Lenience
from mmspec.core.rules.lossy.ssd import SSD
from mmspec.core.rules.lossy.tolerance import Tolerance
from mmspec.core.rules.lossy.top_k import TopKGap
from mmspec.core.rules.lossy.typical import Typical
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, Comb, drawn, most_likely, sampled
from tests.oracles.frames import FrameTarget, frame_pair, frames_run
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.oracles.tables import Table, encode, one_round

TINY, SEEN = 1e-12, 1e-3
SIZES = [(2, 2), (2, 3), (3, 2), (3, 3), (4, 2)]  # books, codes


def distributions(books: int, size: int, hangs: bool, seed: int = 1, **options):
    """P and Q after the first value, over every frame at once [V^K, 1], and those frames."""
    target, drafter = frame_pair(books, size, 0, seed, hangs=hangs, **options)
    frames = target.frames.all()
    codes = torch.ones(len(frames), 1, dtype=torch.long)
    return target.distribution(codes), drafter.distribution(codes), frames[:, None]


# --- one value, enumerated --------------------------------------------------------------------------------------------


def output_distribution(rule, p, q, x: Tensor) -> Tensor:
    """[V^K] distribution of what `rule` commits in place of one draft from q, its residual enumerated through `keep_prob`."""
    drawn, own = q.prob(x)[:, 0], p.prob(x)[:, 0]
    accepts = torch.where(drawn > 0, rule.accept_prob(p, q, x)[:, 0], 0)
    left = own * torch.where(own > 0, rule.replacement(p, q, x).keep_prob(x)[:, 0], 0)
    return drawn * accepts + (drawn * (1 - accepts)).sum() * left / left.sum()


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_the_token_rule_on_frames_is_exact_and_maximal(sizes, hangs, zeros):
    p, q, x = distributions(*sizes, hangs, zeros=zeros)
    own, drawn = p.prob(x)[:, 0], q.prob(x)[:, 0]
    assert abs(own.sum() - 1) < TINY
    assert (output_distribution(Token(), p, q, x) - own).abs().max() < TINY
    accepts = torch.where(drawn > 0, drawn * Token().accept_prob(p, q, x)[:, 0], 0).sum()
    distance = 0.5 * (own - drawn).abs().sum()
    assert abs(accepts - (1 - distance)) < TINY
    meter = torch.where(drawn > 0, drawn * p.tv(q, x)[:, 0], 0).sum()  # what is expected to be refused
    assert abs(meter - distance) < TINY


class NotThinned(Token):
    """A replacement drawn from P as it is."""

    def replacement(self, p, q, x):
        return Everything(p, q, x)


class Everything(ResidualByThinning):
    def keep_prob(self, f: Tensor) -> Tensor:
        return torch.ones_like(super().keep_prob(f))


class ClippedPerCode(Token):
    """Each code's ratio clipped at 1 on its own, and the frame replaced as if it had been judged as one."""

    def accept_prob(self, p, q, x):
        return (p.codes(x).log_prob(x) - q.codes(x).log_prob(x)).exp().clamp(max=1).prod(-1)


class WrongPrefix(Token):
    """Code k of the draft token judged given the codes of another prefix, one off."""

    def accept_prob(self, p, q, x):
        moved = p.codes(x.roll(1, -1)).log_prob(x).sum(-1)
        return (moved - q.log_prob(x)).exp().clamp(max=1)


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("mutant", [NotThinned(), ClippedPerCode(), WrongPrefix()], ids=lambda rule: type(rule).__name__)
def test_published_short_cuts_are_not_exact(mutant, hangs):
    if isinstance(mutant, WrongPrefix) and not hangs:
        p, q, x = distributions(3, 2, False)
        assert torch.equal(mutant.accept_prob(p, q, x), Token().accept_prob(p, q, x))  # no code hangs on another
        return
    p, q, x = distributions(3, 2, hangs)
    assert (output_distribution(mutant, p, q, x) - p.prob(x)[:, 0]).abs().max() > SEEN


@pytest.mark.parametrize("hangs", [False, True])
def test_what_is_left_of_a_frame(hangs):
    """keep_prob P is (w P - Q)+ / w: for a distribution, for a point mass, and under a weight."""
    p, q, x = distributions(2, 3, hangs)
    own, drawn = p.prob(x)[:, 0], q.prob(x)[:, 0]
    weight = torch.full((len(x), 1), 0.6, dtype=torch.float64)
    for distribution, other in ((q, drawn), (None, torch.eye(len(x), dtype=torch.float64)[4])):
        draft_token = x if distribution is not None else x[4:5].expand_as(x)
        for w in (None, weight):
            scale = 1.0 if w is None else 0.6
            left = own * p.residual(distribution, draft_token, w).keep_prob(x)[:, 0]
            assert (left * scale - (scale * own - other).clamp(min=0)).abs().max() < TINY
    assert torch.equal(p.without(x).keep_prob(x), torch.zeros_like(weight))


# --- thinning, drawn --------------------------------------------------------------------------------------------------


def one_distribution(hangs: bool, rows: int, books: int = 2, size: int = 2, seed: int = 1):
    target, drafter = frame_pair(books, size, 0, seed, hangs=hangs)
    codes = torch.ones(rows, 1, dtype=torch.long)
    return target, target.distribution(codes), drafter.distribution(codes)


@pytest.mark.parametrize("hangs", [False, True])
def test_thinning_draws_what_is_left(hangs):
    rows = 40_000
    target, p, q = one_distribution(hangs, rows)
    own, drawn = (
        distribution.prob(target.frames.all()[:, None])[:, 0]
        for distribution in (one_distribution(hangs, 4)[1], one_distribution(hangs, 4)[2])
    )
    goal = (own - drawn).clamp(min=0)
    x = torch.zeros(rows, 1, 2, dtype=torch.long)
    keys = Noise.from_seed(3, rows).residual(torch.zeros(rows, 1, dtype=torch.long), torch.zeros(rows, dtype=torch.long))
    found = target.frames.number(p.residual(q, x).sample(keys))
    assert chi_square(found, goal) > PASS
    assert chi_square(found, own) < FAIL
    point = target.frames.number(p.residual(None, x).sample(keys))  # on frame 0
    assert chi_square(point, own * (torch.arange(4) > 0)) > PASS


def test_rows_that_are_not_replaced_draw_as_plain_decoding_does():
    _, p, q = one_distribution(True, 64)
    keys = Noise.from_seed(3, 64).value(torch.zeros(64, 1, dtype=torch.long))
    active = torch.arange(64)[:, None] % 2 == 0
    left = p.residual(q, torch.zeros(64, 1, 2, dtype=torch.long)).where(active, p)
    assert torch.equal(left.sample(keys)[1::2], p.sample(keys)[1::2])
    assert not torch.equal(left.sample(keys)[::2], p.sample(keys)[::2])


def test_thinning_ends_where_the_distributions_agree_or_are_no_numbers():
    _, p, _ = one_distribution(False, 3)
    x, keys = torch.zeros(3, 1, 2, dtype=torch.long), Keys(torch.arange(3)[:, None])
    assert torch.equal(p.residual(p, x).sample(keys), p.sample(keys))
    broken = Frame(torch.full((3, 1, 2, 2), torch.nan))
    assert broken.residual(p, x).sample(keys).shape == (3, 1, 2)


def test_no_number_serves_two_purposes():
    """Every stream that thinning asks for, over two rounds of tries: codes, tests and what the next tries are made of."""
    seen: list[Tensor] = []

    @dataclass(frozen=True)
    class Watched:
        words: Tensor

        def branch(self, count, first=0):
            return Watched(Keys(self.words).branch(count, first).words)

        def __getitem__(self, index):
            return Watched(self.words[index])

        def choose(self, scores):
            seen.append(self.words.flatten())
            return Keys(self.words).choose(scores)

        def below(self, probability):
            seen.append(self.words.flatten())
            return torch.zeros_like(Keys(self.words).below(probability)) | (len(seen) < 9)  # the first four turns are refused

    _, p, q = one_distribution(False, 2, books=3)
    p.residual(q, torch.zeros(2, 1, 3, dtype=torch.long)).sample(Watched(torch.arange(2)[:, None]))  # pyright: ignore[reportArgumentType]
    words = torch.cat(seen)
    assert len(words) > 2 * 4 * (1 + 1 + 2 + 4)
    assert len(words.unique()) == len(words)


# --- one round and whole runs -----------------------------------------------------------------------------------------


def round_values(target: FrameTarget, drafter, rule, rows: int, seed: int = 0, length: int = 2) -> Tensor:
    """[rows] the first two frames after one round, the second drawn from the table where the round committed one."""
    _, verdict = one_round(target, drafter, rule, Noise.from_seed(seed, rows), rows, 3, length)
    table = target.frames.table
    first = target.frames.number(verdict.values[:, 0])
    code = table.size + first
    own = torch.multinomial(table.probs[code], 1, generator=torch.Generator().manual_seed(seed))[:, 0]
    second = torch.where(verdict.count > 1, target.frames.number(verdict.values[:, 1]), own)
    return first * table.size + second


@dataclass(frozen=True)
class Tampered:
    """A drafter whose drafts pass through `tamper`."""

    drafter: ModelDrafter
    tamper: object

    def begin(self, prompt, session):
        inner, tamper = self.drafter.begin(prompt, session), self.tamper

        class Session:
            def propose(self, pending, budget, noise):
                return tamper(inner.propose(pending, budget, noise))

            def observe(self, *outcome):
                inner.observe(*outcome)

        return Session()


def next_q(draft: Draft) -> Draft:
    """q of the next frame."""
    index = torch.arange(draft.size - draft.roots).roll(-1).expand(len(draft.start), -1)
    return replace(draft, q=draft.q.at(index))


@pytest.mark.parametrize("hangs", [False, True])
def test_one_round_of_the_loop_draws_the_targets_distribution(hangs):
    rows = 200_000
    target, drafter = frame_pair(2, 2, 2, 1, hangs=hangs)
    goal = target.frames.table.joint(2)
    assert chi_square(round_values(target, ModelDrafter(drafter), Token(), rows), goal) > PASS
    fewer = rows // 5
    for rule in (NotThinned(), ClippedPerCode()):
        assert chi_square(round_values(target, ModelDrafter(drafter), rule, fewer), goal) < FAIL
    assert chi_square(round_values(target, Tampered(ModelDrafter(drafter), next_q), Token(), fewer), goal) < FAIL


class SameNoise(Token):
    """The acceptance test by the number that drew the draft token's first code."""

    def __call__(self, draft, scored, noise):
        class Reused:
            value, residual = noise.value, noise.residual

            @staticmethod
            def accept(position, start):
                return noise.draft_token(position, start).branch(draft.draft_tokens.shape[-1])[..., 0]

        return super().__call__(draft, scored, Reused())  # pyright: ignore[reportArgumentType]


def test_noise_used_twice_shows():
    """Of the draft for its own test, of one book for the next."""
    rows = 40_000
    target, drafter = frame_pair(2, 2, 2, 1, hangs=False)
    goal = target.frames.table.joint(2)
    assert chi_square(round_values(target, ModelDrafter(drafter), SameNoise(), rows), goal) < FAIL

    class OneStream(Frame):
        def sample(self, keys):
            return keys[..., None].choose(self.heads)

        def picked(self, rows, columns):
            return OneStream(super().picked(rows, columns).heads)

        def last(self, count):
            return OneStream(super().last(count).heads)

    class Careless(FrameTarget):
        def distribution(self, codes):
            return OneStream(super().distribution(codes).heads)

    assert chi_square(round_values(Careless(target.frames), ModelDrafter(drafter), Match(), rows), goal) < FAIL
    assert chi_square(round_values(target, ModelDrafter(Careless(drafter.frames)), Token(), rows), goal) < FAIL


SHAPES = {"sampled": Chain(sampled), "drawn": Chain(drawn), "best": Chain(most_likely)}


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("rows", [1, 4])
def test_frames_are_those_of_plain_decoding(hangs, rows):
    """Whatever drafts them, however many at a time (every pair of length, drafter and rule); rows end apart, at a frame whose first two
    codes are 0."""
    target, drafter = frame_pair(3, 2, 3, 1, hangs=hangs)
    stranger = frame_pair(3, 2, 3, 9, hangs=hangs)[0]

    def ends(values: Tensor) -> Tensor:
        return (values[..., :2] == 0).all(-1)

    options = {"most": 11, "ends": ends}
    noise = Noise.from_seed([5, 3, 8, 2][:rows], rows)
    plain, _ = frames_run(target, NoDraft(), Match(), noise, rows, length=0, **options)
    greedy, _ = frames_run(target, NoDraft(), Greedy(), noise, rows, length=0, **options)
    assert rows == 1 or len({len(row) for row in plain}) > 1  # ragged
    rules = ((Coupled(), "drawn"), (Match(), "best"), (Match(), "sampled"), (Greedy(), "best"))
    for length in (1, 2, 3, 4):
        for turn, proposer in enumerate((drafter, stranger, target), length):
            for rule, shape in rules[turn % 2 :: 2]:
                got, stats = frames_run(target, ModelDrafter(proposer, SHAPES[shape]), rule, noise, rows, length=length, **options)
                assert got == (greedy if isinstance(rule, Greedy) else plain)
                if proposer is target and rule.coupled:
                    assert stats.rejected == 0


def test_coupled_frames_are_accepted_more_often():
    target, drafter = frame_pair(3, 2, 2, 1, hangs=False)
    run = {"most": 12, "length": 2}
    noise = Noise.from_seed(0, 200)
    shares = []
    for rule in (Coupled(), Match()):
        _, stats = frames_run(target, ModelDrafter(drafter, Chain(drawn)), rule, noise, 200, **run)
        shares.append(stats.accepted / stats.judged)
    assert shares[0] > shares[1] + 0.15


class BatchMinimum(Token):
    """Every row keeps as many draft tokens as the least lucky one."""

    def __call__(self, draft, scored, noise):
        least = super().__call__(draft, scored, noise).accepted.min()
        columns = torch.arange(draft.size) - draft.roots
        return super().__call__(replace(draft, parents=torch.where(columns < least, draft.parents, -2)), scored, noise)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_row_is_the_same_alone_and_in_a_batch(hangs):
    """Under the token rule, too, at a fixed draft length."""
    target, drafter = frame_pair(2, 2, 3, 1, hangs=hangs)

    def outputs(rule, seeds):
        return frames_run(target, ModelDrafter(drafter), rule, Noise.from_seed(seeds, len(seeds)), len(seeds), most=8, length=3)[0]

    alone = [outputs(Token(), [seed])[0] for seed in range(6)]
    assert outputs(Token(), range(6)) == alone
    assert outputs(BatchMinimum(), range(6)) != alone


def test_a_frame_is_emitted_as_it_was_verified():
    """The mutant checks the first code only and lets the others through."""
    target, drafter = frame_pair(3, 2, 3, 1, hangs=True)

    class FirstBook(Match):
        def __call__(self, draft, scored, noise):
            return super().__call__(draft, replace(scored, p=Half(scored.p)), noise)

    class Half:
        def __init__(self, distribution):
            self.distribution = distribution

        def at(self, index):
            return self.distribution.at(index)

        def draws(self, keys, columns, x):
            rows = torch.arange(len(columns))[:, None]
            distribution = self.distribution.at(columns)
            return (keys[rows, columns].branch(distribution.books).choose(distribution.codes(x).scores) == x)[..., 0]

    noise = Noise.from_seed(0, 8)
    plain, _ = frames_run(target, NoDraft(), Match(), noise, 8, most=6, length=0)
    assert frames_run(target, ModelDrafter(drafter, Chain(drawn)), Match(), noise, 8, most=6, length=2)[0] == plain
    assert frames_run(target, ModelDrafter(drafter, Chain(drawn)), FirstBook(), noise, 8, most=6, length=2)[0] != plain


# --- lossy rules and refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("rule", [Ensemble(0.6), SSD(0.3)])
def test_relaxed_rules_on_whole_frames_meter_their_distance(rule, hangs):
    p, q, x = distributions(2, 3, hangs)
    own, drawn = p.prob(x)[:, 0], q.prob(x)[:, 0]
    distance = 0.5 * (output_distribution(rule, p, q, x) - own).abs().sum()
    assert abs((drawn * rule.excess(p, q, x)[:, 0]).sum() - distance) < TINY
    assert distance > SEEN


@pytest.mark.parametrize("hangs", [False, True])
def test_a_budget_turns_a_relaxed_rule_exact(hangs):
    target, drafter = frame_pair(2, 2, 2, 1, hangs=hangs)
    spent, free, exact = (
        frames_run(target, ModelDrafter(drafter), rule, Noise.from_seed(0, 50), 50, most=12, length=2)
        for rule in (Ensemble(0.5, budget=0.4), Ensemble(0.5), Token())
    )
    assert exact[1].accepted < spent[1].accepted < free[1].accepted
    assert 0 < (spent[1].drift or 0) < (free[1].drift or 0)
    assert frames_run(target, ModelDrafter(drafter), Ensemble(0.5, budget=0), Noise.from_seed(0, 50), 50, most=12, length=2)[0] == exact[0]


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("rule", [Block(), Lenience(), Typical(), TopKGap(), Tolerance()], ids=lambda rule: type(rule).__name__)
def test_rules_that_need_a_table_of_values_say_so(rule, hangs):
    target, drafter = frame_pair(2, 2, 2, 1, hangs=hangs)
    with pytest.raises(ValueError, match=r"frames.*coupled, match, greedy, token or PerCode"):
        frames_run(target, ModelDrafter(drafter), rule, Noise.from_seed(0, 2), 2, most=4, length=2)


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("shape", [Comb(2)])
def test_trees_of_frames_are_refused(shape, hangs):
    target, drafter = frame_pair(2, 2, 2, 1, hangs=hangs)
    with pytest.raises(ValueError, match=r"no table of values.*in chains"):
        frames_run(target, ModelDrafter(drafter, shape), Coupled(), Noise.from_seed(0, 1), 1, most=4, length=2)


def test_distributions_join_and_select():
    p, q, x = distributions(2, 2, False)
    both = p.cat(q)
    assert both.heads.shape == (4, 2, 2, 2)
    assert torch.equal(both.last(1).heads, q.heads)
    assert torch.equal(both.at(torch.tensor([[1]] * 4)).heads, q.heads)
    mask = torch.tensor([[True], [False], [True], [False]])
    assert torch.equal(p.where(mask, q).prob(x), torch.where(mask, p.prob(x), q.prob(x)))
    with pytest.raises(ValueError, match="leave the budget out"):
        p.residual(q, x).where(mask, q)


def test_a_frame_of_one_book_is_a_single_id():
    """Same draft tokens, chances and replacements as `Categorical`, but for the way the replacement is drawn."""
    table, rows = Table.random(4, 1, 3), 40
    p, q = (table.probs[codes].log().expand(rows, 1, -1) for codes in (4, 5))
    x = torch.arange(rows)[:, None] % 4
    frame = Token().accept_prob(Frame(p[:, :, None]), Frame(q[:, :, None]), x[..., None])
    assert torch.allclose(frame, Token().accept_prob(Categorical(p), Categorical(q), x), atol=TINY)


# --- speech.md 1.3.1 --------------------------------------------------------------------------------------------------


def test_frame_coupling_keeps_what_code_by_code_loses():
    """Random 256-way factors: at 8 books the frame rule accepts 0.6 or more where code by code accepts 0.4 or less."""
    found = {books: acceptance(books, frames=2_000, seed=0) for books in (4, 8, 16)}
    assert found[8].whole >= 0.6
    assert found[8].per_code <= 0.4
    for books in (4, 8, 16):
        assert 0.86 < found[books].code < 0.91
        assert found[books].whole > found[books].per_code + 0.1
        assert abs(found[books].judged_whole - found[books].whole) < 0.05
        assert abs(found[books].judged_per_code - found[books].per_code) < 0.05


def test_drafts_of_frames_are_scored_once():
    target, drafter = frame_pair(2, 2, 3, 1, hangs=True)
    before = target.depth.runs
    _, stats = frames_run(target, ModelDrafter(drafter, Chain(drawn)), Coupled(), Noise.from_seed(0, 4), 4, most=9, length=3)
    rounds = stats.target_calls
    assert target.depth.runs - before == rounds * (1 + 2) - (stats.tokens == 0)  # one for all drafted frames, K to write the last


def test_encoding_of_the_oracle():
    target, _ = frame_pair(3, 2, 0, 1, hangs=True)
    frames = target.frames.all()
    assert torch.equal(target.frames.number(frames), torch.arange(8))
    assert torch.equal(encode(frames, 2), torch.arange(8))
    distribution = target.distribution(torch.ones(8, 1, dtype=torch.long))
    assert torch.allclose(distribution.prob(frames[:, None])[:, 0], target.frames.table.probs[1])
