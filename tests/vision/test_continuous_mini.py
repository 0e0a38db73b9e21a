"""The trained mini under its rules: 7,350 tokens each, of chains of eight steps; two published mistakes show in as many."""

from functools import cache

import pytest

import mmspec
from mmspec.bench.check.projection import project
from mmspec.core.rules.base import DISTRIBUTION_EXACT
from mmspec.core.rules.lossy.cspd import CSpD
from mmspec.vision.continuous.generation import LatentDraft
from mmspec.vision.continuous.latents import Sampling
from tests.oracles.gaussians import FromTarget

PASS, FAIL = 0.01, 1e-6
STEPS = Sampling(steps=8)
CLASSES = [row % 10 for row in range(150)]


@cache
def target():
    return mmspec.load("continuous").target


@pytest.mark.parametrize("method", ["aligned", "path"])
def test_trained_pairs_are_exact(method):
    found = project(target(), CLASSES, method, sampling=STEPS)
    assert found.tokens == 7350
    assert found.stats.exactness == DISTRIBUTION_EXACT
    assert found.stats.tokens_per_call > 1.2
    assert found.p_value > PASS


def test_a_wrong_residual_shows():
    assert project(target(), CLASSES, "aligned", sampling=STEPS, accept=FromTarget()).p_value < FAIL


def test_cspd_with_its_factor_shows():
    model, temperature = target().model, 0.98
    noise_schedules = [STEPS.filled(model.config).noise_schedule(each) for each in (1.0, temperature)]
    rule = CSpD.of(*noise_schedules, model.config.channels)
    drafter = LatentDraft(target().drafter, temperature=temperature)
    assert project(target(), CLASSES, "aligned", sampling=STEPS, accept=rule, drafter=drafter).p_value < FAIL
