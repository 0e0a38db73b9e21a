import pytest
import torch
from scipy.stats import chisquare

from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.rules.block import Block
from mmspec.core.rules.coupled import Coupled
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.decoding import Jacobi, repeat, uniform
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import drawn, most_likely, sampled
from tests.drafters.runs import fives, markov, prompt_of, run
from tests.oracles.tables import Table, TableTarget, encode, loop_distribution, run_loop

TARGET = TableTarget(Table.random(2, 4, seed=5))
FILLS = pytest.mark.parametrize("fill", [uniform, repeat])


class Stale:
    """The draw of a careless SJD: it draws from the new distribution, but records the one of the round before."""

    def __init__(self):
        self.before = None

    def __call__(self, distribution, keys):
        q, self.before = self.before, distribution
        return distribution.sample(keys), distribution if q is None or q.scores.shape != distribution.scores.shape else q


def one_hot(distribution: Categorical, keys) -> tuple[torch.Tensor, None]:
    """The draw recorded in the official SJD code for its random first values: exact, but rarely accepted."""
    return distribution.sample(keys), None


def most_likely_as_drawn(distribution: Categorical, keys) -> tuple[torch.Tensor, Categorical]:
    """A deterministic draft token that claims to be a draw."""
    return distribution.mode(), distribution


@FILLS
@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
@pytest.mark.parametrize("draw", [sampled, one_hot, most_likely], ids=["sampled", "one-hot", "best"])
def test_whole_runs_have_the_targets_distribution(rule, draw, fill):
    found = loop_distribution(TARGET, Jacobi(2, draw, fill), rule, most=4, length=2)
    assert (found - TARGET.table.joint(4)).abs().max() < 1e-9


def test_a_wrong_q_shows():
    for draw in (Stale(), most_likely_as_drawn):
        found = loop_distribution(TARGET, Jacobi(2, draw, uniform), Token(), most=4, length=2)
        assert (found - TARGET.table.joint(4)).abs().max() > 1e-3


def p_value(drafter, rule, rows: int = 20_000) -> float:
    """Chi-square test of whole runs with keyed noise, one seed a row, against the target's distribution."""
    target = TableTarget(Table.random(3, 5, seed=1))
    stopping = run_loop(target, drafter, rule, Noise.from_seed(11, rows), rows, most=5, length=4)
    counts = torch.bincount(encode(torch.tensor(stopping.outputs), 3), minlength=3**5).double()
    expected = target.table.joint(5) * rows
    rare = expected < 5
    pooled = [torch.cat([mass[~rare], mass[rare].sum()[None]]).numpy() for mass in (counts, expected)]
    return chisquare(*pooled).pvalue


@pytest.mark.parametrize("rule", [Token(), Block()], ids=["token", "block"])
def test_keyed_noise_gives_the_targets_distribution(rule):
    assert p_value(Jacobi(4, sampled, uniform), rule) > 1e-3


def test_keyed_noise_shows_a_stale_q():
    assert p_value(Jacobi(4, Stale(), uniform), Token()) < 1e-9


@FILLS
@pytest.mark.parametrize("draw", [drawn, most_likely])
@pytest.mark.parametrize("rule", [Match(), Coupled()], ids=["match", "coupled"])
def test_sampling_is_plain_sampling_whatever_is_drafted(rule, draw, fill):
    target = TableTarget(Table.random(3, 6, seed=2))
    noise = Noise.from_seed(7, 200)
    expected = run_loop(target, NoDraft(), Match(), noise, 200, most=6, length=0).outputs
    assert run_loop(target, Jacobi(3, draw, fill), rule, noise, 200, most=6, length=3).outputs == expected


def by_position(values: list[int], size: int) -> Table:
    """A target that says `values` one after the other, whatever came before."""
    probs = torch.zeros(2 * size ** (len(values) + 1), size, dtype=torch.float64)
    for position in range(len(values) + 1):
        probs[size**position : size ** (position + 1), values[position % len(values)]] = 1
    probs[size ** (len(values) + 1) :, 0] = 1
    return Table(probs)


def calls(drafter, rule, table: Table, *, rows: int, most: int, length: int) -> int:
    """Row calls of a generation."""
    committed = []
    target, noise = TableTarget(table), Noise.from_seed(3, rows)
    for step in decode(target, drafter, rule, rows, stopping=DefaultStopping(rows, most), noise=noise, control=Fixed(length)):
        committed += step.committed.values
    return sum(map(bool, committed))


def test_distributions_seen_before_are_used_up_in_order():
    """Where draft tokens do not matter, two rounds commit at least the window, the value after it, and one more."""
    values, window = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1, 0], 4
    used = calls(Jacobi(window), Greedy(), by_position(values, 2), rows=1, most=13, length=window)
    assert used <= 1 + 2 * (12 // (window + 2))


def test_a_constant_output_is_drafted_whole():
    model = markov(lambda token: token // 5 * 5)
    out = run(model, Jacobi(), prompt_of([7, 8], [31]), new=31, length=5)
    assert out.stats.target_calls == 6  # one value in the first round, then six in each


def test_every_round_commits_more_than_plain_decoding_on_a_repetitive_text():
    out = run(markov(lambda token: max(0, token - 1)), Jacobi(window=4), prompt_of([6, 9]), new=40, length=8)
    assert out.stats.target_calls < 20


class Recent(Table):
    """A table whose histories are their last value."""

    def step(self, codes, values):
        return values


def test_sharing_the_targets_noise_beats_fresh_draws():
    """Of distributions that depend on the last value only, fresh draws lose almost all of a long window; shared noise keeps what it can."""
    generator = torch.Generator().manual_seed(0)
    size = 32
    scores = 0.5 * torch.randn(size, generator=generator) + torch.randn(size, size, generator=generator)
    table = Recent(scores.double().softmax(-1))
    options = {"rows": 8, "most": 100, "length": 16}
    plain_calls = 8 * 100
    shared = calls(Jacobi(16, drawn, uniform), Coupled(), table, **options)
    fresh = calls(Jacobi(16, sampled, uniform), Token(), table, **options)
    assert plain_calls / fresh > 1.7
    assert fresh / shared > 1.7


def test_the_window_follows_the_round():
    sizes = []
    run(markov(fives), Jacobi(window=4), prompt_of([1]), length=9, on_step=lambda step: sizes.append(step.draft.size))
    assert set(sizes[1:]) == {5}
    sizes.clear()
    run(markov(fives), Jacobi(window=4), prompt_of([1]), length=2, on_step=lambda step: sizes.append(step.draft.size))
    assert set(sizes[1:]) == {3}


def test_the_recorded_distribution_is_the_one_drawn_from():
    """Round by round: q is the distribution of the round before at the same output position, or the fill's, and nothing else."""
    table, rows = Table.random(3, 8, seed=4), 40
    drafts = []
    target, noise = TableTarget(table), Noise.from_seed(0, rows)
    stopping = DefaultStopping(rows, 8)
    for step in decode(target, Jacobi(3, sampled, uniform), Token(), rows, stopping=stopping, noise=noise, control=Fixed(3)):
        drafts.append(step.draft)
    distributions: list[dict[int, torch.Tensor]] = [{} for _ in range(rows)]  # per row: output position -> distribution last seen for it
    for draft in drafts:
        for row in range(rows):
            start, seen = int(draft.start[row]), {}
            history = stopping.outputs[row][:start]
            code = 1
            for value in history:
                code = code * 3 + value
            for column in range(draft.size):
                if not draft.valid[row, column]:
                    continue
                if column:
                    expected = distributions[row].get(start + column - 1, torch.full((3,), 1 / 3, dtype=torch.float64))
                    assert torch.allclose(draft.q.probs()[row, column - 1], expected)
                    code = code * 3 + int(draft.nodes[row, column])
                seen[start + column] = table.probs[code]
            distributions[row] = seen


def test_options_are_checked():
    with pytest.raises(ValueError, match="window"):
        Jacobi(0)
