"""The oracles themselves: they find the distributions one can write down, and the errors one plants."""

import pytest
import torch

from mmspec.core.noise import Noise
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from tests.oracles.enumerate import Tape, TapeNoise, explore
from tests.oracles.statistics import FAIL, PASS, chi_square, independent, uniform
from tests.oracles.tables import (
    Table,
    TableTarget,
    encode,
    first_value_distribution,
    loop_distribution,
    one_round,
    pair,
    round_distribution,
)

DISTRIBUTION = torch.tensor([0.5, 0.0, 0.3, 0.2], dtype=torch.float64)


def keys(tape: Tape, count: int = 1):
    return TapeNoise(tape, 99).value(torch.arange(count).expand(tape.rows, -1))


def test_choices_have_their_probabilities():
    outcomes = explore(lambda tape: keys(tape).choose(DISTRIBUTION.log() + 2.0)[:, 0])
    assert len(outcomes.values) == 3  # the impossible one is not explored
    assert torch.allclose(outcomes.distribution(outcomes.values, 4), DISTRIBUTION)


def test_coins_have_their_probabilities():
    chances = torch.tensor([0.25, 1.0, 0.5])
    outcomes = explore(lambda tape: keys(tape, 3).below(chances.expand(tape.rows, -1)).long())
    distribution = outcomes.distribution(encode(outcomes.values, 2), 8)
    assert distribution.tolist() == [0, 0, 0.375, 0.375, 0, 0, 0.125, 0.125]


def test_distinct_choices_are_sequential():
    outcomes = explore(lambda tape: keys(tape).choose_distinct(DISTRIBUTION.log(), 3)[:, 0])
    distribution = outcomes.distribution(encode(outcomes.values, 4), 64).view(4, 4, 4)
    for a, b in ((0, 2), (2, 3), (3, 0)):
        rest = 1 - DISTRIBUTION[a]
        assert distribution[a, b].sum().item() == pytest.approx((DISTRIBUTION[a] * DISTRIBUTION[b] / rest).item())
    assert distribution[:, 1].sum() == distribution[1].sum() == 0  # the impossible one is never drawn before the possible ones are gone
    used_up = explore(lambda tape: keys(tape).choose_distinct(DISTRIBUTION.log(), 4)[:, 0])
    assert (used_up.values[:, 3] == 1).all()


def test_later_draws_may_depend_on_earlier_ones():
    def run(tape):
        noise = keys(tape, 2)
        first = noise[:, :1].below(torch.full((tape.rows, 1), 0.5))
        second = noise[:, 1:].below(torch.where(first, 0.9, 0.2))
        return torch.cat([first, second], 1).long()

    outcomes = explore(run)
    assert torch.allclose(outcomes.distribution(encode(outcomes.values, 2), 4), torch.tensor([0.4, 0.1, 0.05, 0.45]).double())


def test_a_key_used_twice_is_one_number():
    def run(tape):
        return torch.cat([keys(tape).choose(DISTRIBUTION.log()) for _ in range(2)], 1)

    same = explore(run, once=False)
    assert (same.values[:, 0] == same.values[:, 1]).all()
    assert torch.allclose(same.distribution(same.values[:, 0], 4), DISTRIBUTION)
    assert len(explore(run).values) == 3


def test_draws_past_the_end_are_fixed_by_the_salt():
    def run(tape):
        return TapeNoise(tape, 1).value(torch.tensor([[0, 1]]).expand(tape.rows, -1)).choose(DISTRIBUTION.log())

    for salt, fixed in ((0, 0), (1, 3)):
        outcomes = explore(run, salt=salt)
        assert torch.allclose(outcomes.distribution(outcomes.values[:, 0], 4), DISTRIBUTION)
        assert (outcomes.values[:, 1] == fixed).all()


def test_distinct_keys_for_distinct_purposes():
    """As the real ones: no two roles, positions, rounds or branches share a word."""
    tape = Tape(torch.zeros(1, 0, dtype=torch.int8), torch.zeros(1, dtype=torch.long))
    noise, position, words = TapeNoise(tape, 99), torch.arange(8)[None], []
    words.append(noise.value(position).words)
    for start in range(5):
        begun = torch.tensor([start])
        words += [noise.draft_token(position, begun, branch).words for branch in range(8)]
        words += [noise.draft_token(position, begun, branch).branch(3).words for branch in range(8)]
        words += [getattr(noise, role)(position, begun).words for role in ("accept", "residual")]
        words += [noise.accept(position, begun).branch(3).words]
    flat = torch.cat([w.flatten() for w in words])
    assert len(flat.unique()) == len(flat)


def test_what_cannot_be_enumerated_is_refused():
    tape = Tape(torch.zeros(1, 0, dtype=torch.int8), torch.zeros(1, dtype=torch.long))
    with pytest.raises(NotImplementedError):
        keys(tape).uniform()
    with pytest.raises(NotImplementedError):
        keys(tape).gumbel(3)
    with pytest.raises(NotImplementedError):
        TapeNoise(tape, 3, coupled=True).draft_token(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    with pytest.raises(RuntimeError, match="more than 4 outcomes"):
        explore(lambda tape: keys(tape, 3).choose(DISTRIBUTION.log()), leaves=4)


def test_lost_probability_is_noticed():
    def forgetful(tape):
        found = keys(tape).choose(DISTRIBUTION.log())[:, 0]
        tape.others.clear()
        return found

    with pytest.raises(RuntimeError, match=r"sum to 0\.5"):
        explore(forgetful)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_joint_distributions_are_products_of_conditionals():
    table = Table.random(3, 4, 0)
    joint = table.joint(3).view(3, 3, 3)
    for a, b, c in ((0, 0, 0), (2, 1, 0), (1, 2, 2)):
        expected = table.probs[1, a] * table.probs[3 + a, b] * table.probs[3 * (3 + a) + b, c]
        assert joint[a, b, c].item() == pytest.approx(expected.item())
    assert table.joint(4).sum().item() == pytest.approx(1)


def test_sessions_follow_the_history():
    """What a session says after commits is what the table says of the whole history."""
    target = TableTarget(Table.random(3, 6, 1))
    session, draft = target.begin(2)
    draft = draft.extend_chain(torch.tensor([[2, 0], [1, 1]]), torch.tensor([9, 9]))
    first = session.score(draft).p.probs()
    assert torch.allclose(first[0, 2], target.table.probs[(3 + 2) * 3 + 0])
    session.commit(torch.tensor([[0, 1, -1], [0, -1, -1]]), 2)
    assert session.context.tolist() == [3 + 2, 1]


def test_round_and_loop_distributions_see_the_same_error():
    target, drafter = pair(2, 6, 1, zeros=0.0)

    class Greedier(Token):
        def accept_prob(self, p, q, x):
            return (1.1 * super().accept_prob(p, q, x)).clamp(max=1)

    goal = target.table.joint(3)
    for distribution in (round_distribution, loop_distribution):
        assert (distribution(target, ModelDrafter(drafter), Token(), most=3, length=2) - goal).abs().max() < 1e-12
        assert (distribution(target, ModelDrafter(drafter), Greedier(), most=3, length=2) - goal).abs().max() > 1e-3


def test_enumeration_agrees_with_the_real_noise():
    """The distribution of one round, drawn 50 000 times with the real noise, is the one enumerated."""
    target, drafter = pair(3, 5, 1, zeros=0.0)

    class Lossy(Token):
        def accept_prob(self, p, q, x):
            return torch.full_like(super().accept_prob(p, q, x), 0.7)

    rows = 50_000
    distribution = first_value_distribution(target, ModelDrafter(drafter), Lossy())
    _, verdict = one_round(target, ModelDrafter(drafter), Lossy(), Noise.from_seed(0, rows), rows, 2, 1)
    assert chi_square(verdict.values[:, 0], distribution) > PASS
    assert chi_square(verdict.values[:, 0], target.table.probs[1]) < FAIL


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_tell_right_from_wrong():
    generator = torch.Generator().manual_seed(0)
    distribution = torch.tensor([0.5, 0.3, 0.199, 0.001, 0.0])
    values = torch.multinomial(distribution, 20_000, True, generator=generator)
    assert chi_square(values, distribution) > PASS
    assert chi_square(values, torch.tensor([0.46, 0.34, 0.199, 0.001, 0.0])) < FAIL
    assert chi_square(values, torch.tensor([0.5, 0.3, 0.2, 0.0, 0.0])) == 0  # impossible values were seen
    one, other = torch.rand(2, 20_000, generator=generator)
    assert uniform(one) > PASS
    assert uniform(one**1.15) < FAIL
    assert independent(one, other) > PASS
    assert independent(one, 0.1 * one + 0.9 * other) < FAIL
