"""The noise is what it claims: SplitMix64 to the last bit, uniform and independent over every word of its key."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from mmspec.core.hashing import GAMMA, mix
from mmspec.core.hashing import uniform as uniform_of
from mmspec.core.noise import Keys, Noise, Role
from tests.oracles.statistics import FAIL, PASS, chi_square, independent, uniform

WORD = 2**64
STARTED = ("draft_token", "accept", "residual")
N = 20_000


def signed(word: int) -> int:
    return (word + WORD // 2) % WORD - WORD // 2


def reference(word: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014) in whole numbers."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return word ^ word >> 31


# --- bits -------------------------------------------------------------------------------------------------------------


def test_known_answers():
    """The first outputs of SplitMix64 from seed 0."""
    known = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B]
    states = torch.tensor([GAMMA]) * torch.arange(1, 6)
    assert [word % WORD for word in mix(states).tolist()] == known


def test_mix_is_the_reference_on_any_word():
    words = [0, 1, 2, WORD - 1, WORD // 2, WORD // 2 - 1, *(reference(i) for i in range(200))]
    assert [word % WORD for word in mix(torch.tensor([signed(w) for w in words])).tolist()] == [reference(w) for w in words]


def test_uniforms_lie_strictly_between_0_and_1():
    ends = uniform_of(torch.tensor([0, -1, 2**63 - 1, -(2**63)]))
    assert (ends > 0).all()
    assert (ends < 1).all()
    assert (-(-ends.log()).log()).isfinite().all()


def test_a_stream_is_a_counter():
    """The n-th number of a key is mix(key + (n + 1) gamma), computed alone or among others."""
    keys = Keys(torch.tensor([5, -7]))
    bits = torch.tensor([[signed(reference((k + c * (GAMMA % WORD)) % WORD)) for c in range(1, 6)] for k in (5, -7)])
    assert torch.equal(keys.gumbel(5), -(-uniform_of(bits).log()).log())
    assert torch.equal(keys.uniform(), uniform_of(bits)[:, 0])
    assert torch.equal(keys.gumbel(1000)[:, :7], keys.gumbel(7))


PINNED = ["0xd344cab98fc171f3", "0x8db7a79f8b59f0f8", "0xbcd6cd583e90b00c"]


def test_pinned_numbers():
    """Any change here changes every sampled output there ever was."""
    noise = Noise.from_seed(7, 2)
    position, start = torch.tensor([[0, 5], [3, 4]]), torch.tensor([0, 2])
    digits = [
        noise.value(position).uniform(),
        noise.draft_token(position, start, 3).uniform(),
        noise.accept(position, start).branch(2).uniform(),
    ]
    words = [noise.value(position).words, noise.draft_token(position, start, 3).words, noise.accept(position, start).branch(2).words]
    assert [hex(w.flatten()[1].item() % WORD) for w in words] == PINNED
    for own, uniform_ in zip(words, digits, strict=True):
        expected = [(reference((w + GAMMA) % WORD) >> 12) * 2.0**-52 + 2.0**-53 for w in own.flatten().tolist()]
        assert uniform_.flatten().tolist() == expected


# --- distributions -------------------------------------------------------------------------------------------------------------


def stream(role: str, seeds: torch.Tensor, position: torch.Tensor, start: torch.Tensor, branch=0) -> Keys:
    noise = Noise(seeds)
    if role == "value":
        return noise.value(position)
    return noise.draft_token(position, start, branch) if role == "draft_token" else getattr(noise, role)(position, start)


def grids(role: str) -> dict[str, torch.Tensor]:
    """Uniforms as one word of the key counts up, the others held."""
    many, zero = torch.arange(N), torch.zeros(N, dtype=torch.long)
    one = torch.zeros(1, dtype=torch.long)
    found = {
        "position": stream(role, one, many[None], one).uniform()[0],
        "seed": stream(role, many, zero[:, None], zero).uniform()[:, 0],
        "branch": stream(role, one, one[None], one).branch(N).uniform()[0, 0],
        "token": uniform_of(mix(stream(role, one, one[None], one).words[0] + torch.arange(1, N + 1) * GAMMA)),
    }
    if role != "value":
        found["start"] = stream(role, zero, zero[:, None], many).uniform()[:, 0]
        found["diagonal"] = stream(role, zero, many[:, None], many).uniform()[:, 0]
    if role == "draft_token":
        found["column"] = stream(role, one, zero[None], one, many).uniform()[0]
    return found


@pytest.mark.parametrize("role", ["value", *STARTED])
def test_uniform_and_independent_over_every_word_of_the_key(role):
    for word, numbers in grids(role).items():
        assert uniform(numbers) > PASS, word
        for lag in (1, 2, 7):
            assert independent(numbers[:-lag], numbers[lag:]) > PASS, (word, lag)


def test_the_tests_above_have_power():
    numbers = grids("value")["position"]
    assert uniform(numbers**1.1) < FAIL
    assert independent(numbers[:-1], 0.9 * numbers[1:] + 0.1 * numbers[:-1]) < FAIL


def test_roles_never_share():
    """No two roles, positions, rounds, rows or branches have a number in common, coupling apart."""
    rows, positions = 6, torch.arange(12).expand(6, -1)
    noise, words = Noise.from_seed(3, rows), []
    words += [noise.value(positions).words, noise.shared(positions).words, noise.aligned(positions).words]
    words.append(noise.aligned(positions).branch(4).words)
    for start in range(4):
        begun = torch.full((rows,), start)
        for role in STARTED:
            words.append(getattr(noise, role)(positions, begun).words)
            words.append(getattr(noise, role)(positions, begun).branch(4).words)
        for branch in range(1, 4):
            words.append(noise.draft_token(positions, begun, branch).words)
    streams = torch.cat([w.flatten() for w in words])
    numbers = torch.cat([mix(streams[:, None] + torch.arange(1, 9) * GAMMA).flatten(), streams])
    assert len(numbers.unique()) == len(numbers)


@pytest.mark.parametrize("other", STARTED)
def test_roles_are_independent(other):
    position, zero = torch.arange(N)[None], torch.zeros(1, dtype=torch.long)
    assert independent(stream("value", zero, position, zero).uniform(), stream(other, zero, position, zero).uniform()) > PASS


def test_neighbouring_rows_and_seeds_are_independent():
    position = torch.arange(N)[None].expand(2, -1)
    for seeds in ((0, 1), (0, -1), (5, 2**40 + 5), (1, 2)):
        one, other = Noise(torch.tensor(seeds)).value(position).uniform()
        assert independent(one, other) > PASS


def test_tokens_of_neighbouring_positions_are_independent():
    gumbel = Noise.from_seed(0, 1).value(torch.arange(N)[None]).gumbel(4)[0]
    own = (-(-gumbel).exp()).exp()
    for token in range(3):
        assert independent(own[:, token], own[:, token + 1]) > PASS
        assert independent(own[:-1, token], own[1:, token]) > PASS
        assert independent(own[:-1, token], own[1:, token + 1]) > PASS


def test_a_request_is_the_same_in_any_batch():
    alone, batch = Noise.from_seed(5, 1), Noise.from_seed(3, 8)
    position, start = torch.arange(6), torch.tensor([4])
    for role in ("value", *STARTED):
        one = stream(role, alone.seeds, position[None], start).uniform()[0]
        assert torch.equal(one, stream(role, batch.seeds, position.expand(8, -1), start.expand(8)).uniform()[2])


def test_value_is_the_same_in_every_round_and_the_others_are_not():
    noise, position = Noise.from_seed(0, 1), torch.arange(5)[None]
    for role in STARTED:
        first, second = (getattr(noise, role)(position, torch.tensor([start])).words for start in (0, 1))
        assert (first != second).all()
    assert torch.equal(noise.value(position).words, noise.value(position).words)


def test_coupled_draft_tokens_use_the_targets_own_noise():
    position, start = torch.arange(5)[None], torch.tensor([2])
    coupled = Noise.from_seed(0, 1, coupled=True)
    assert torch.equal(coupled.draft_token(position, start, 4).words, coupled.value(position).words)
    assert (Noise.from_seed(0, 1).draft_token(position, start, 4).words != coupled.value(position).words).all()


# --- draws ------------------------------------------------------------------------------------------------------------

DISTRIBUTION = torch.tensor([0.5, 0.0, 0.2, 0.05, 0.249, 0.001], dtype=torch.float64)


def draws(rows: int = 100_000) -> Keys:
    return Noise.from_seed(11, 1).value(torch.arange(rows)[None])[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_choose_follows_the_distribution(dtype):
    chosen = draws().choose(DISTRIBUTION.log().to(dtype) + 3.0)  # scores need no normalising
    assert chi_square(chosen, DISTRIBUTION) > PASS
    assert chi_square(chosen, torch.tensor([0.48, 0.0, 0.22, 0.05, 0.249, 0.001])) < FAIL


def test_choose_distinct_is_sequential_without_replacement():
    pairs = draws().choose_distinct(DISTRIBUTION.log(), 2)
    distribution = torch.zeros(6, 6, dtype=torch.float64)
    for first in DISTRIBUTION.nonzero().flatten():
        rest = DISTRIBUTION.clone()
        rest[first] = 0
        distribution[first] = DISTRIBUTION[first] * rest / rest.sum()
    codes = pairs[:, 0] * 6 + pairs[:, 1]
    assert torch.equal(pairs[:, 0], draws().choose(DISTRIBUTION.log()))
    assert chi_square(codes, distribution.flatten()) > PASS
    independent_pairs = (DISTRIBUTION[:, None] * DISTRIBUTION).fill_diagonal_(0)
    assert chi_square(codes, (independent_pairs / independent_pairs.sum()).flatten()) < FAIL


def test_any_number_of_a_stream_is_had_alone():
    keys, ids = draws(5), torch.tensor([[3, 0, 99], [99, 1, 2], [0, 0, 7], [50, 4, 3], [8, 9, 10]])
    assert torch.equal(keys.gumbel_at(ids), keys.gumbel(100).gather(1, ids))


def test_normals_are_standard_and_independent_of_one_another():
    """Kolmogorov-Smirnov on each number of a stream and on their products' signs; the same streams shifted by 0.08 are told apart."""
    found = Noise.from_seed(7, 1).value(torch.arange(N)[None]).normal(3)[0].numpy()  # [N, 3]
    for column in found.T:
        assert kstest(column, "norm").pvalue > PASS
        assert kstest(column + 0.08, "norm").pvalue < FAIL
    assert kstest((found[:, 0] + found[:, 1] - found[:, 2]) / 3**0.5, "norm").pvalue > PASS


def test_a_normal_does_not_depend_on_how_many_are_asked_for():
    keys = Noise.from_seed(7, 1).value(torch.arange(9)[None])
    assert keys.normal(5)[..., :2].equal(keys.normal(2))


def test_named_values_are_drawn_wherever_they_stand():
    """Drawn without replacement or by inversion, alone or among values that cannot come."""
    keys, generator = draws(2000), torch.Generator().manual_seed(0)
    ids = torch.tensor([40, 7, 23, 99, 8, 61])
    spread = torch.full((12,), -torch.inf, dtype=DISTRIBUTION.dtype)
    place = torch.randperm(12, generator=generator)[:6]
    spread[place] = DISTRIBUTION.log()
    names = torch.full((12,), 5).index_copy(0, place, ids)
    assert torch.equal(names[keys.choose_distinct(spread, 5, names)], ids[keys.choose_distinct(DISTRIBUTION.log(), 5, ids)])
    place = place.sort().values
    spread = torch.zeros(12, dtype=DISTRIBUTION.dtype).index_copy(0, place, DISTRIBUTION)
    branched = keys.branch(3)
    wide, tight = (branched.draw(distribution.expand(2000, -1).contiguous()) for distribution in (spread, DISTRIBUTION))
    assert torch.equal(torch.full((12,), 99).index_copy(0, place, torch.arange(6))[wide], tight)


def test_draws_by_inversion_follow_the_weights():
    drawn = draws(100_000)[:, None].draw((7 * DISTRIBUTION).expand(100_000, -1).contiguous())
    assert chi_square(drawn, DISTRIBUTION) > PASS
    assert chi_square(drawn, DISTRIBUTION + 0.02) < FAIL
    assert (draws(100)[:, None].draw(torch.zeros(100, 6)) == 0).all()


def test_impossible_values_come_last():
    order = draws(200).choose_distinct(DISTRIBUTION.log(), 6)
    assert (order[:, -1] == 1).all()
    assert (order.sort(-1).values == torch.arange(6)).all()


@pytest.mark.parametrize("chance", [0.0, 0.03, 0.5, 1.0])
def test_below_is_a_coin(chance):
    heads = draws().below(torch.full((100_000,), chance)).long()
    if chance in (0.0, 1.0):
        assert (heads == chance).all()
        return
    assert chi_square(heads, torch.tensor([1 - chance, chance])) > PASS
    assert chi_square(heads, torch.tensor([0.98 - chance, chance + 0.02])) < FAIL


def test_nan_is_never_below():
    assert not draws(100).below(torch.full((100,), torch.nan)).any()


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_seeds():
    assert Noise.from_seed(4, 3).seeds.tolist() == [4, 5, 6]
    assert Noise.from_seed(np.int64(4), 3).seeds.tolist() == [4, 5, 6]
    assert Noise.from_seed([9, 1], 2).seeds.tolist() == [9, 1]
    assert Noise.from_seed([2**64 - 1, 2**63], 2).seeds.tolist() == [-1, -(2**63)]
    with pytest.raises(ValueError, match="seed has 2 entries for 3 rows"):
        Noise.from_seed([1, 2], 3)


def test_roles_are_distinct():
    assert len(set(Role)) == len(Role.__members__)  # an alias would be a member, but no value of its own
