"""The projection test: standard normal for what the target draws, far from it for a draft's bias, and nothing that later draws select."""

from dataclasses import replace

import pytest
import torch
from scipy import stats

from mmspec.bench.check.projection import ProjectedValues, Watch, normality, project, projected, taught
from mmspec.core.control import Fixed
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.distributions.mixture import Mixture
from mmspec.core.noise import Noise
from mmspec.vision.continuous.generation import LatentDraft, generate_continuous, pair_of
from mmspec.vision.continuous.latents import Sampling
from tests.oracles.gaussians import FromTarget
from tests.vision.pushed import pair, prompts, small

PASS, FAIL = 0.01, 1e-6


@pytest.mark.parametrize("shift", [0.0, 0.01, 0.05, 0.2, 1.0])
@pytest.mark.parametrize("count", [60, 7000])
def test_its_p_value_is_that_of_kolmogorov_and_smirnov(shift, count):
    values = torch.randn(count, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + shift
    known = stats.kstest(values.numpy(), "norm").pvalue
    assert normality(values) == pytest.approx(known, abs=0.004, rel=0.3 if known > 1e-30 else 10)


def test_without_values_there_is_no_p_value():
    with pytest.raises(ValueError, match="no draft token was judged"):
        normality(torch.zeros(0))
    one = ProjectedValues(torch.tensor([0.5, -0.5]), 2) + ProjectedValues(torch.tensor([1.0]), 3)
    assert (one.tokens, len(one.values), one.mean) == (5, 3, pytest.approx(1 / 3))


# --- distributions -------------------------------------------------------------------------------------------------------------


def distributions(rows: int, length: int) -> list[tuple]:
    numbers = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(rows, length, *shape, generator=numbers, dtype=torch.float64)

    p, q = (Gaussian(0.4 * random(3), torch.full((rows, length, 1), 0.5).double()) for _ in range(2))
    sides = [Mixture.joint(random(2), 0.5 * random(2, 3), 0.4 + random(2, 3).abs()) for _ in range(2)]
    return [(p, q), tuple(sides)]


@pytest.mark.parametrize("kind", [0, 1], ids=["gaussian", "mixture"])
def test_draws_from_the_target_are_normal_and_a_little_of_the_draft_is_seen(kind):
    """The biased values are those of a rule that accepts as it should and then draws from p."""
    p, q = distributions(300, 10)[kind]
    keys = Noise.from_seed(1, 300)
    spots = torch.arange(10).expand(300, -1)
    own, drawn = p.sample(keys.value(spots)), q.sample(keys.shared(spots))
    accepted = keys.aligned(spots).uniform() < p.log_ratio(q, drawn).exp()
    mixed = torch.where(accepted[..., None], drawn, own)
    fresh = Noise.from_seed(10**6, 300)
    found = [normality(projected(p, q, x, fresh)[0].flatten()) for x in (own, mixed)]
    assert found[0] > PASS
    assert found[1] < FAIL


def test_where_distributions_agree_a_rank_is_still_uniform_and_there_is_no_gap():
    p, _ = distributions(200, 5)[1]
    x = p.sample(Noise.from_seed(1, 200).value(torch.arange(5).expand(200, -1)))
    values, gap = projected(p, p, x, Noise.from_seed(9, 200))
    assert normality(values.flatten()) > PASS
    assert (gap == 0).all()


# --- generations ------------------------------------------------------------------------------------------------------


def test_distributions_taught_afterwards_are_those_the_tokens_were_drawn_from():
    """Plain decoding: every token is its own distribution's mean and the very noise of its seed and position."""
    pictures, noise = pair(), Noise.from_seed(4, 3)
    for scale in (None, 3.0):
        found, out = generate_continuous(
            pictures, [0, 1, 2], "plain", control=Fixed(0), most=1, noise=noise, sampling=Sampling(), guidance=scale
        )
        classes, target, drafting = pair_of(found, [0, 1, 2], "plain", most=1, noise=noise, sampling=Sampling(), guidance=scale)
        distribution = taught(target, classes, out.sequences)
        z = (out.sequences - distribution.mean) / distribution.scale
        assert drafting is None
        assert (z - noise.value(torch.arange(16).expand(3, -1)).normal(4)).abs().max() < 1e-3


def test_a_watch_tells_judged_values_from_bonuses():
    pictures, noise = pair(), Noise.from_seed(4, 3)
    watch = Watch(3)
    _, out = generate_continuous(pictures, [0, 1, 2], "aligned", control=Fixed(2), most=3, noise=noise, sampling=Sampling(), on_step=watch)
    assert torch.equal(watch.values(), out.sequences)
    judged = watch.judged()
    assert judged.sum() == out.stats.judged
    assert (~judged).sum() == out.stats.tokens - out.stats.judged > 0


def test_it_judges_a_way_with_its_options():
    pictures = pair(away=0.02)
    options = {"sampling": Sampling(steps=3, sigma_out=0.4), "guidance": 2.0, "seed": 7, "window": 3}
    good = project(pictures, prompts(40), "aligned", **options)
    assert good.tokens == good.stats.tokens == 640
    assert 500 < len(good.values) < 640
    assert good.p_value > PASS
    bad = project(pictures, prompts(120), "aligned", accept=FromTarget(), **options)
    assert bad.p_value < FAIL
    assert bad.mean > 0.05
    assert len(project(pictures, prompts(4), "aligned-block", **options).values) == 64  # all of them
    path = project(pictures, prompts(4), "path", **options)
    assert len(path.values) % 3 == 0
    assert len(project(pictures, prompts(4), "path", least=0.3, **options).values) < len(path.values)


def test_what_it_cannot_judge_is_refused():
    pictures = pair()
    with pytest.raises(ValueError, match="is no model of continuous tokens"):
        project(torch.nn.Linear(1, 1), [0])
    with pytest.raises(ValueError, match="method 'plain' judges no draft token"):
        project(pictures, [0], "plain")
    with pytest.raises(ValueError, match="no draft token was judged, or target and drafter are equal"):
        _ = project(pictures, [0, 1], "aligned", drafter=small()).p_value
    with pytest.raises(ValueError, match="needs one schedule"):
        project(pictures, [0], "path", drafter=LatentDraft(small(), Sampling(steps=3)))


def test_seeds_are_the_rows_own():
    pictures = pair()
    one, two = (project(pictures, [0, 1], "aligned", seed=seed, window=3) for seed in ([5, 6], 5))
    assert torch.allclose(one.values, two.values, atol=1e-3)
    assert replace(one, tokens=1).tokens == 1
