"""The ring draws what the noise draws, bit for bit, and computes a position's numbers once."""

import pytest
import torch

from mmspec.core import noise_ring
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.gumbel import LARGE
from mmspec.core.noise import Noise
from mmspec.core.noise_ring import _LEAST, RingNoise
from mmspec.vision import generate
from tests.vision.small_nets import guided_model


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """The number of streams hashed by every ring call."""
    counts, plain = [], noise_ring._hashed

    def hashed(words, size):
        counts.append(words.numel())
        return plain(words, size)

    monkeypatch.setattr(noise_ring, "_hashed", hashed)
    return counts


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("slots", [1, 5, 12])
def test_draws_are_those_of_the_noise(slots, coupled):
    """Random windows of rows at different places, going back and forth, wider than the ring, over changing vocabularies."""
    generator = torch.Generator().manual_seed(slots)
    noise = Noise.from_seed([3, 9, 4], 3, coupled=coupled)
    ring = RingNoise.of(noise, slots)
    for turn in range(60):
        size, columns = (6, 40)[turn // 20 % 2], 1 + turn % 7
        start = torch.randint(0, 30, (3, 1), generator=generator)
        position = start + torch.randint(0, columns, (3, columns), generator=generator)
        scores = torch.randn(3, columns, size, generator=generator)
        for one, other in ((noise.value(position), ring.value(position)), (noise.shared(position), ring.shared(position))):
            assert torch.equal(one.choose(scores), other.choose(scores))
            assert torch.equal(one.choose_distinct(scores, 3), other.choose_distinct(scores, 3))
            assert torch.equal(one[:, :1].choose(scores[:, :1]), other[:, :1].choose(scores[:, :1]))
        own, theirs = noise.draft_token(position, start[:, 0]), ring.draft_token(position, start[:, 0])
        assert torch.equal(Categorical(scores).sample(own), Categorical(scores).sample(theirs))


def test_large_vocabularies_are_searched_and_not_kept(counted):
    noise = Noise.from_seed(1, 2)
    position, scores = torch.arange(3).repeat(2, 1), torch.randn(2, 3, LARGE, generator=torch.Generator().manual_seed(0))
    assert torch.equal(RingNoise.of(noise, 4).value(position).choose(scores), noise.value(position).choose(scores))
    assert counted == []


def test_a_position_is_hashed_once(counted):
    ring = RingNoise.of(Noise.from_seed(1, 2), 6)
    for start in range(200):
        ring.value(start + torch.arange(5).repeat(2, 1)).choose(torch.zeros(2, 5, 9))
    ahead = _LEAST - 5
    assert 2 * (5 + 199) <= sum(counted) <= 2 * (5 + 199 + ahead)
    assert len(counted) == 1 + 199 // (ahead + 1)  # filled ahead, once for so many rounds


@pytest.mark.parametrize("method", ["jacobi", "scd-gumbel"])
@pytest.mark.parametrize("guidance", [None, 2.0])
def test_pictures_are_the_same_and_their_noise_is_computed_once(counted, monkeypatch, method, guidance):
    model, settings = guided_model(), {"method": method, "window": 9, "guidance": guidance, "seed": 4}
    kept = generate(model, [0, 1, 2], **settings)
    cells = 3 * model.raster.length
    assert 0 < sum(counted) <= 2 * (cells + 3 * _LEAST)  # at most two roles, and what was held beyond the picture
    monkeypatch.setattr(RingNoise, "of", staticmethod(lambda noise, slots: noise))
    hashed = generate(model, [0, 1, 2], **settings)
    assert torch.equal(kept.tokens, hashed.tokens)
    assert kept.stats.target_calls == hashed.stats.target_calls
