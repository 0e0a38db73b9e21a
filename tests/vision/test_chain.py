"""Method "chain": pictures by speculation inside the head's chain have the target's distribution, with all that it combines with."""

from functools import cache
from itertools import product

import pytest
import torch
from diffusers import DDIMParallelScheduler, FlowMatchEulerDiscreteScheduler

from mmspec.bench.check.projection import project
from mmspec.core.chains.linear import LinearDraft
from mmspec.core.chains.sampler import SpeculativeSampler
from mmspec.core.rules.base import DISTRIBUTION_EXACT
from mmspec.vision import ContinuousPictures, Sampling, generate
from mmspec.vision.continuous.chain_draft import fit_linear_draft, load_linear_draft, save_linear_draft
from tests.vision.pushed import pair, prompts, small

SIZES = {"head_steps": 8, "sigma_out": 0.2, "grid": 5}


@cache
def fitted() -> LinearDraft:
    classes = torch.arange(8) % 4
    tokens = generate(small(**SIZES), classes.tolist(), method="plain").sequences
    return fit_linear_draft(small(**SIZES), classes, tokens, contexts=32)


def model(linear: bool = True) -> ContinuousPictures:
    target = pair("diffusion", 0.02, **SIZES)
    target.linear = fitted() if linear else None
    return target


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"linear": False, "draft_steps": 2},
        {"guidance": 2.0},
        {"method": "path", "draft_steps": 3, "window": 3},
        {"method": "stepwise", "draft_steps": 3, "window": 3},
        {"temperature": 0.8, "draft_steps": "auto"},
        {"guidance": 2.0, "draft_steps": "auto"},
        {"guidance": 2.0, "draft_steps": 5, "linear": False},
        {"guidance": 2.0, "sampling": Sampling(steps=24)},
        {"method": "path", "guidance": 2.0, "draft_steps": 3, "window": 3},
        {"method": "block", "draft_steps": 3, "window": 3},
    ],
    ids=["usual", "held", "guided", "path", "stepwise", "auto", "guided, auto", "guided, held", "guided, 24 steps", "guided path", "block"],
)
def test_it_is_exact(options):
    options = {"method": "chain"} | options
    found = project(model(options.pop("linear", True)), prompts(80), **options, seed=3)
    assert found.tokens == 2000
    assert found.stats.exactness == DISTRIBUTION_EXACT
    assert found.p_value > 0.01


@pytest.mark.parametrize(("steps", "draft_steps"), [(8, None), (8, 0), (8, 5), (24, 5)])
@pytest.mark.parametrize("linear", [True, False], ids=["linear", "held"])
@pytest.mark.parametrize("guidance", [None, 2.0])
def test_a_picture_is_the_same_alone_and_in_a_batch(guidance, linear, draft_steps, steps):
    """Rows are at steps of their own, and end a token in different rounds."""
    options = {"method": "chain", "guidance": guidance, "draft_steps": draft_steps, "sampling": Sampling(steps=steps)}
    together = generate(model(linear), prompts(3), seed=11, **options)
    alone = generate(model(linear), [2], seed=13, **options)
    assert (alone.tokens - together.tokens[2:]).abs().max() < 1e-3
    assert alone.stats.head_calls <= together.stats.head_calls


@pytest.mark.parametrize("guidance", [None, 2.0])
@pytest.mark.parametrize("method", ["path", "stepwise", "block"])
def test_chains_inside_drafts_are_the_same_alone_and_in_a_batch(method, guidance):
    options = {"method": method, "guidance": guidance, "draft_steps": 3, "window": 3}
    together = generate(model(), prompts(3), seed=11, **options)
    alone = generate(model(), [2], seed=13, **options)
    assert (alone.tokens - together.tokens[2:]).abs().max() < 1e-3


@pytest.mark.parametrize("method", ["path", "stepwise", "block"])
def test_chains_of_both_models_are_drafted_inside(method):
    """Fewer calls of either head than with chains sampled step by step."""
    plain, inside = (generate(model(), prompts(2), method=method, window=3, seed=1, draft_steps=number).stats for number in (None, 7))
    assert inside.draft_head_calls / inside.drafted < 0.8 * plain.draft_head_calls / plain.drafted
    assert inside.head_calls / inside.tokens < 0.8 * plain.head_calls / plain.tokens


@pytest.mark.parametrize(
    ("options", "steps"),
    [*product(({"method": "chain"},), (64, 100)), *product(({"method": "path", "draft_steps": 12, "window": 3},), (100, 128))],
    ids=["chain-64", "chain-100", "path-100", "path-128"],
)
def test_chains_of_published_lengths(options, steps):
    """MAR's 100 steps do not divide the levels of training."""
    found = project(model(), prompts(6), **options, sampling=Sampling(steps=steps), seed=3)
    assert found.tokens == 150
    assert found.p_value > 0.01
    assert found.stats.head_calls < 0.7 * steps * 25


def unreflected(self, judged, maps):
    """A planted bug: a refused step keeps its draft."""
    judged = judged.clone()
    judged[:, -2] = -torch.inf
    return RIGHT(self, judged, maps)


RIGHT = SpeculativeSampler._ended


@pytest.mark.parametrize(
    "options",
    [{}, {"guidance": 2.0}, {"guidance": 2.0, "draft_steps": "auto"}, {"method": "path", "draft_steps": 3, "window": 3}],
    ids=["usual", "guided", "guided, auto", "path"],
)
def test_a_refused_step_that_keeps_its_draft_shows(options, monkeypatch):
    monkeypatch.setattr(SpeculativeSampler, "_ended", unreflected)
    assert project(model(False), prompts(80), **{"method": "chain", "draft_steps": 7} | options, seed=3).p_value < 1e-6


def test_calls_of_the_head_are_counted_and_saved():
    plain, none, held, moved = (
        generate(model(linear), [1], method=method, draft_steps=draft_steps).stats
        for linear, method, draft_steps in ((True, "plain", None), (True, "chain", 0), (False, "chain", 7), (True, "chain", 7))
    )
    assert (plain.head_calls, plain.head_states) == (8 * 25, 8 * 25)
    assert (none.head_calls, none.head_states) == (8 * 25, 8 * 25)
    assert held.head_calls < 0.8 * plain.head_calls
    assert moved.head_calls < held.head_calls
    assert held.target_calls == plain.target_calls == 25
    path = generate(model(), [1], method="path", window=3).stats
    assert path.head_calls > 0


def test_the_linear_model_is_stored_and_read(tmp_path):
    assert load_linear_draft(tmp_path) is None
    save_linear_draft(fitted(), tmp_path)
    for name, tensor in vars(fitted()).items():
        assert torch.equal(getattr(load_linear_draft(tmp_path), name), tensor)
    assert [path.name for path in tmp_path.iterdir()] == ["chain.safetensors"]


def test_only_diffusion_heads_are_fitted():
    with pytest.raises(ValueError, match="the head is a mixture: only a diffusion head"):
        fit_linear_draft(small("mixture"), torch.zeros(1, dtype=torch.long), torch.zeros(1, 16, 4))


SET = {"num_train_timesteps": 1024, "beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction", "timestep_spacing": "trailing"}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(schedule=DDIMParallelScheduler(**SET, clip_sample=False), eta=0.5),
        Sampling(steps=4, schedule=FlowMatchEulerDiscreteScheduler(num_train_timesteps=4, stochastic_sampling=True)),
    ],
    ids=["ddim", "flow"],
)
def test_other_samplers(sampling):
    out = generate(model(False), prompts(3), method="chain", sampling=sampling, draft_steps=3)
    assert out.tokens.isfinite().all()
    assert out.stats.head_calls < 25 * (sampling.steps or 8)


REFUSED = [
    ({"method": "plain", "draft_steps": 3}, "draft_steps is 3, but method 'plain' runs its head once a step"),
    ({"method": "aligned", "draft_steps": 3}, "draft_steps is 3, but method 'aligned'"),
    ({"draft_steps": 32}, "draft_steps is 32: give 0 to 31 states, or 'auto'"),
    ({"draft_steps": "many"}, "draft_steps is 'many': give 0 to 31 states, or 'auto'"),
    ({"window": 3}, "window is 3, but it is for methods that draft tokens, and method 'chain' does not"),
    ({"sampling": Sampling(every=2)}, "every is 2, but speculation inside a chain"),
    ({"sampling": Sampling(schedule=DDIMParallelScheduler(**SET, clip_sample=False), eta=0.0)}, "needs noise in every step"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words[:30] for _, words in REFUSED])
def test_bad_requests_are_refused_in_one_line(options, words):
    with pytest.raises(ValueError, match=words) as refused:
        generate(model(), [0], **{"method": "chain"} | options)
    assert "\n" not in str(refused.value)
