"""Masked models by method "chain": every cell's chain has the head's distribution, and a picture depends on its own seed only."""

import pytest
import torch

from mmspec.bench.check.projection import normality, projected
from mmspec.core.chains.sampler import SpeculativeSampler
from mmspec.core.distributions.denoising_path import DenoisingPath
from mmspec.core.noise import Noise
from mmspec.vision import ContinuousPictures, generate
from mmspec.vision.continuous.latents import ChainDrafts
from mmspec.vision.continuous.masked import generate_masked
from mmspec.vision.continuous.masked_sets import Canvas, SetPlan, SetWriter
from tests.oracles.statistics import FAIL, PASS
from tests.vision.test_mar import small


@torch.no_grad()
def p_value(rows: int, **options) -> float:
    """Of the steps of the first set's chains, along the change of the head's prediction since the step before."""
    model = small()
    plan = SetPlan.of(model.config, **({"iterations": 3, "head_steps": 6} | options))
    writer = SetWriter(model, torch.arange(rows) % 3, plan, ChainDrafts(4))
    noise = Noise.from_seed(0, rows)
    canvas = Canvas(model.config, noise)
    cells = canvas.cells(0, plan.sizes[0])
    paths = DenoisingPath(writer.head_input(canvas, cells, 0), writer.denoiser(0), 2)
    path = paths.sample(noise.value(cells))
    assert writer.head_calls <= 6  # of all cells together: the slowest row decides
    return normality(projected(paths, paths, path, noise)[0][..., 1:].flatten())


@pytest.mark.parametrize("options", [{}, {"guidance": 2.0}, {"temperature": 0.7}], ids=["usual", "guided", "temperature"])
def test_cells_have_the_heads_distribution(options):
    assert p_value(300, **options) > PASS


def test_a_planted_bug_shows(monkeypatch):
    sample = SpeculativeSampler.sample
    monkeypatch.setattr(SpeculativeSampler, "sample", lambda self, z, normal, uniform, *rest: sample(self, z, normal, uniform**2, *rest))
    assert p_value(1000) < FAIL


@pytest.mark.parametrize("options", [{}, {"guidance": 2.5, "ramp": "linear"}, {"annealed": 2}], ids=["usual", "guided", "annealed"])
def test_calls_of_the_head_are_counted_and_saved(options):
    options = {"noise": Noise.from_seed(3, 2), "iterations": 4} | options
    plain, none, some = (
        generate_masked(small(), [1, 2], method=method, draft_steps=length, **options)
        for method, length in (("plain", None), ("chain", 0), ("chain", 3))
    )
    assert (none.stats.head_calls, none.stats.head_states) == (plain.stats.head_calls, plain.stats.head_states)
    assert some.stats.head_calls < plain.stats.head_calls
    assert some.stats.target_calls == plain.stats.target_calls == 4


@pytest.mark.parametrize("guidance", [None, 2.0])
def test_a_picture_is_the_same_alone_and_in_a_batch(guidance):
    options = {"method": "chain", "iterations": 4, "head_steps": 8, "guidance": guidance}
    together = generate_masked(small(), [0, 1, 2, 3], noise=Noise.from_seed(5, 4), **options).tokens
    for row in range(4):
        alone = generate_masked(small(), [row], noise=Noise.from_seed(5 + row, 1), **options).tokens
        assert (alone[0] - together[row]).abs().max() < 1e-3


def test_its_exactness_is_named():
    for options, word in (({}, "distribution-exact"), ({"iterations": 3}, "lossy (unmetered)"), ({"head_steps": 2}, "lossy (unmetered)")):
        out = generate_masked(small(), [0], method="chain", noise=Noise.from_seed(0, 1), **options)
        assert out.stats.exactness == word


def test_it_is_a_method_of_the_public_call():
    out = generate(ContinuousPictures(small()), [0, 1], method="chain", draft_steps=2, seed=1)
    own = generate_masked(small(), [0, 1], method="chain", draft_steps=2, noise=Noise.from_seed(1, 2))
    assert torch.equal(out.sequences, own.sequences)
    assert out.stats.exactness == "distribution-exact"
    assert 0 < out.stats.head_calls < 9 * 4


def test_drafted_steps_are_for_chains():
    with pytest.raises(ValueError, match="draft_steps is 3, but method 'plain' runs its head once a step: leave it out, or take chain"):
        generate_masked(small(), [0], draft_steps=3, noise=Noise.from_seed(0, 1))
    with pytest.raises(ValueError, match="draft_steps is 40: give 0 to 31 states"):
        generate_masked(small(), [0], method="chain", draft_steps=40, noise=Noise.from_seed(0, 1))
