"""Pictures of continuous tokens have the target's distribution whatever was drafted: some 7,000 tokens a way, and what planted bugs do to
them.

Models are small and random; drafters are the same with their weights pushed. The test is `mmspec.bench.check.projection`.
"""

from functools import cache

import pytest

from mmspec.bench.check.projection import ProjectedValues, project
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.rules.base import DISTRIBUTION_EXACT, UNMETERED
from mmspec.core.rules.lossy.cspd import CSpD
from mmspec.vision.continuous.generation import LatentDraft
from mmspec.vision.continuous.latents import Sampling
from mmspec.vision.continuous.methods import CONTINUOUS_METHODS, ContinuousPictures
from tests.oracles.gaussians import FromTarget, MeanOverDims, NoRollback
from tests.vision.pushed import pair, prompts, small

PASS, FAIL = 0.01, 1e-6
PICTURES = 150  # of 49 tokens
BLOCKS = {"away": 0.04, "grid": 7, "head_steps": 8}  # a pair whose blocks often break where their weight is small


@cache
def models(head: str) -> ContinuousPictures:
    return pair(head, 0.02 if head == "diffusion" else 0.04, grid=7)


@cache
def plainly(method: str) -> ProjectedValues:
    """A way without options, once for all tests."""
    return judged(method)


def judged(method: str, **options) -> ProjectedValues:
    found = project(models(CONTINUOUS_METHODS[method].heads[0]), prompts(PICTURES), method, **options)
    print(
        f"{method}: p {found.p_value:.2g}, mean {found.mean:.3f}, deviation {found.deviation:.3f}, a call {found.stats.tokens_per_call:.2f}"
    )
    assert found.tokens >= 7000
    return found


@pytest.mark.parametrize("method", [name for name, way in CONTINUOUS_METHODS.items() if way.accept is not None])
def test_every_way_that_drafts_is_exact(method):
    found = plainly(method)
    assert found.stats.exactness == DISTRIBUTION_EXACT
    assert found.stats.tokens_per_call > 1.5
    assert found.p_value > PASS


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("aligned", {"guidance": 2.0}),
        ("aligned", {"drafter": LatentDraft(small(away=0.02, grid=7), Sampling(steps=3))}),
        ("path", {"drafter": LatentDraft(small(away=0.02, grid=7), Sampling(every=2))}),
        ("path", {"temperature": 0.8, "window": 3}),
    ],
    ids=["guided", "a draft of fewer steps", "a draft of frozen outputs", "another temperature"],
)
def test_options_leave_it_exact(method, options):
    assert judged(method, **options).p_value > PASS


def test_a_block_is_exact_where_its_weights_are_small():
    """What a plain reflection is planted in below."""
    assert project(pair(**BLOCKS), prompts(PICTURES), "block").p_value > PASS


# --- planted bugs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["aligned", "path", "density"])
def test_draws_from_the_target_after_a_rejection_show(method):
    assert judged(method, accept=FromTarget()).p_value < FAIL


@pytest.mark.parametrize("rule", [NoRollback(), MeanOverDims()], ids=["no rollback", "mean over the coordinates"])
def test_wrong_rules_show(rule):
    assert judged("aligned", accept=rule).p_value < FAIL


def test_a_plain_reflection_behind_a_block_shows(monkeypatch):
    right = Gaussian.residual
    monkeypatch.setattr(Gaussian, "residual", lambda self, q, x, weight=None: right(self, q, x))
    assert project(pair(**BLOCKS), prompts(PICTURES), "block").p_value < FAIL


@pytest.mark.parametrize("factor", [True, False])
def test_cspd_with_its_factor_shows_and_without_it_is_exact(factor):
    """A draft drawn at another temperature: the noise of its steps is not the target's."""
    target = models("diffusion")
    drafter = LatentDraft(target.drafter, temperature=0.97)
    noise_schedules = [Sampling().filled(target.model.config).noise_schedule(temperature) for temperature in (1.0, 0.97)]
    rule = CSpD.of(*noise_schedules, target.model.config.channels, factor=factor)
    found = judged("aligned", drafter=drafter, accept=rule)
    assert found.stats.exactness == (UNMETERED if factor else DISTRIBUTION_EXACT)
    assert found.p_value < FAIL if factor else found.p_value > PASS


# --- sums -------------------------------------------------------------------------------------------------------------


def test_counts_agree_with_what_the_rules_foretell():
    """Rejections by reflection are as many as the distances of the distributions say."""
    stats = plainly("aligned").stats
    spread = stats.expected_rejections**0.5
    assert abs(stats.rejected - stats.expected_rejections) < 4 * spread
    assert plainly("aligned-block").stats.tokens_per_call > 0.97 * stats.tokens_per_call
