"""`mmspec.vision.generate` over models of continuous tokens: one picture a seed in any batch, blind drafters caught, options, refusals."""

import pytest
import torch
from diffusers import DDIMParallelScheduler, DDPMParallelScheduler, FlowMatchEulerDiscreteScheduler
from PIL import Image

from mmspec.core.noise import Noise
from mmspec.core.records import Budget
from mmspec.core.rules.base import DISTRIBUTION_EXACT
from mmspec.core.rules.token import Token
from mmspec.core.stats import PHASES
from mmspec.vision import Pictures, Sampling, generate
from mmspec.vision.continuous.ar import ContinuousARConfig
from mmspec.vision.continuous.generation import LatentDraft, pair_of
from mmspec.vision.continuous.methods import CONTINUOUS_METHODS, ContinuousPictures, continuous_model
from tests.vision.pushed import pair, prompts, small

DRAFTING = [name for name, way in CONTINUOUS_METHODS.items() if way.accept is not None]
CAUSAL = ["plain", *DRAFTING]
SET = {"num_train_timesteps": 1024, "beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction", "timestep_spacing": "trailing"}


def grey(tokens: torch.Tensor) -> list[Image.Image]:
    """Pictures of the first two numbers of every token."""
    light = (tokens[..., :2].flatten(2).clamp(-3, 3) + 3) / 6 * 255
    return [Image.fromarray(each.round().to(torch.uint8).numpy()) for each in light]


def drawing(method: str = "aligned", **changes) -> ContinuousPictures:
    head = "mixture" if method == "density" else "diffusion"
    target, draft = small(head, **changes), small(head, 0.03, **changes)
    return ContinuousPictures(target, grey, ("cat", "dog", "hen", "cow"), draft)


def draw(method: str = "aligned", model=None, of=(0, 1, 2, 3), **options) -> Pictures:
    return generate(drawing(method) if model is None else model, list(of), method=method, **options)


# --- one picture a seed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", CAUSAL)
def test_a_picture_is_the_same_alone_and_in_a_batch(method):
    """Rows of a batch are computed together, so float32 sums may differ in the last bits: tokens agree within 1e-4 and what is seen of
    them, rounded to bytes, in all but one pixel of a thousand."""
    together = draw(method, seed=11)
    assert together.stats.exactness == DISTRIBUTION_EXACT
    for row in (0, 3):
        alone = draw(method, of=[row], seed=11 + row)
        assert (alone.tokens - together.tokens[row : row + 1]).abs().max() < 1e-4
        one, other = (torch.tensor(list(picture.getdata())) for picture in (alone.images[0], together.images[row]))
        assert (one == other).double().mean() >= 0.999
        assert (one - other).abs().max() <= 1


@pytest.mark.parametrize("method", DRAFTING)
def test_rows_go_on_at_their_own_pace(method):
    """Acceptance is ragged: in some rounds rows keep different numbers of draft tokens, and still each is as it is alone."""
    counts = []
    draw(method, of=prompts(6), seed=3, on_step=lambda step: counts.append(step.committed.accepted))
    assert any(len(set(each)) > 1 for each in counts)


def test_seeds_differ_and_repeat():
    model = drawing("path")
    one, again, other = (draw("path", model, seed=seed).tokens for seed in (5, [5, 6, 7, 8], 6))
    assert torch.equal(one, again)
    assert torch.allclose(one[1], draw("path", model, of=[1], seed=6).tokens[0], atol=1e-4)
    assert (one - other).abs().max() > 0.1


def test_nothing_is_left_behind_by_a_call():
    model = drawing("block")
    first = draw("block", model, seed=2).tokens
    draw("aligned", model, seed=9, window=3)
    draw("block", model, seed=4, guidance=2.0)
    assert torch.equal(draw("block", model, seed=2).tokens, first)


# --- drafts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [2, 5])
@pytest.mark.parametrize("method", DRAFTING)
def test_a_target_that_drafts_for_itself_is_always_accepted(method, window):
    """A drafter that sees less than the target, or other noise, could not be: equal distributions are what no test of distributions can
    tell apart."""
    head = "mixture" if method == "density" else "diffusion"
    model = small(head)
    stats = draw(method, ContinuousPictures(model, drafter=model), window=window).stats
    assert stats.accepted == stats.judged > 0
    assert stats.drafted == stats.accepted * CONTINUOUS_METHODS[method].siblings
    assert stats.rejected == 0
    assert stats.row_calls == 4 * -(-16 // window)


@pytest.mark.parametrize("method", ["aligned", "path", "density"])
def test_a_draft_of_another_model_is_not(method):
    stats = draw(method, of=prompts(8)).stats
    assert 0 < stats.accepted < stats.drafted
    assert stats.rejected == stats.judged - stats.accepted > 0
    assert abs(stats.rejected - stats.expected_rejections) < 5 * stats.expected_rejections**0.5


@pytest.mark.parametrize("method", ["aligned", "d-grs", "aligned-block"])
def test_a_window_of_one_is_plain_decoding(method):
    model = drawing()
    assert torch.equal(draw(method, model, window=1).tokens, draw("plain", model).tokens)


def test_a_path_without_draft_tokens_is_plain_decoding_of_paths():
    model = drawing("path")
    assert torch.equal(draw("path", model, window=1).tokens, draw("block", model, window=1).tokens)


def test_the_window_may_follow_the_clock():
    out = draw("aligned", window="auto")
    assert out.stats.tokens == 64
    assert out.tokens.shape == (4, 4, 4, 4)


@pytest.mark.parametrize("form", ["aligned", "path", "density"])
def test_a_draft_scored_at_once_is_scored_token_by_token(form):
    head = "mixture" if form == "density" else "diffusion"
    options = {"most": 6, "noise": Noise.from_seed(0, 2), "sampling": Sampling(), "guidance": None if form == "density" else 2.0}
    classes, target, drafting = pair_of(pair(head), [0, 3], form, **options)
    for side in (target, drafting):
        session, pending = side.begin(classes)
        shape = (2, 5, 5, 4) if form == "path" else (2, 5, 4)
        values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        draft = pending.extend_chain(values, Budget(torch.full((2,), 16), 5).draft_tokens)
        at_once = session.score(draft).p
        slowly, grown = side.begin(classes)
        distributions = [slowly.score(grown).p]
        for step in range(5):
            grown = grown.extend_chain(values[:, step : step + 1], Budget(torch.full((2,), 16), 5).draft_tokens)
            distributions.append(slowly.score(grown).p)
        one_by_one = distributions[0]
        for distribution in distributions[1:]:
            one_by_one = one_by_one.cat(distribution)
        x = values[:, [0, 1, 2, 3, 4, 0]]
        assert (at_once.log_prob(x) - one_by_one.log_prob(x)).abs().max() < 1e-4 * at_once.log_prob(x).abs().max()
        part = "z" if form == "path" else "mean"
        assert (getattr(at_once, part) - getattr(one_by_one, part)).abs().max() < 1e-4


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["plain", "aligned", "path", "block"])
def test_guidance_bends_the_distribution(method):
    model = drawing()
    plain, one, guided = (draw(method, model, guidance=scale).tokens for scale in (None, 1.0, 4.0))
    assert torch.equal(plain, one)
    assert (plain - guided).abs().max() > 0.05
    assert guided.shape == plain.shape


def test_guidance_of_a_single_gaussian_is_closed_form():
    model = drawing("density", components=1)
    out = draw("density", model, guidance=1.5)
    assert out.stats.exactness == DISTRIBUTION_EXACT
    assert (out.tokens - draw("density", model).tokens).abs().max() > 1e-3


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(steps=2),
        Sampling(sigma_out=0.8),
        Sampling(every=2),
        Sampling(schedule=DDPMParallelScheduler(**SET, clip_sample=False, variance_type="fixed_large")),
        Sampling(schedule=DDIMParallelScheduler(**SET, clip_sample=False), eta=0.5),
        Sampling(schedule=FlowMatchEulerDiscreteScheduler(num_train_timesteps=4, stochastic_sampling=True)),
    ],
    ids=["steps", "sigma_out", "every", "fixed_large", "ddim", "flow"],
)
def test_every_part_of_sampling_matters(sampling):
    model = drawing("path")
    usual, changed = draw("path", model, window=3), draw("path", model, window=3, sampling=sampling)
    assert changed.tokens.isfinite().all()
    assert (usual.tokens - changed.tokens).abs().max() > 1e-3
    assert changed.stats.exactness == DISTRIBUTION_EXACT


def test_sigma_out_and_temperature_are_the_noise_of_the_tokens():
    """Of one seed: the aligned means are the same, and what is added to them is sigma_out times the same noise."""
    model = drawing()
    calm, mean, loud = (draw("plain", model, of=[0] * 8, sampling=Sampling(sigma_out=s)).tokens[:, 0, 0] for s in (0.0, 0.1, 0.2))
    assert torch.allclose(loud - calm, 2 * (mean - calm), atol=1e-4)
    cold, warm = (draw("plain", model, of=[0] * 64, temperature=t).tokens for t in (0.5, 1.0))
    assert cold.std() < warm.std()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(schedule=DDIMParallelScheduler(**SET, clip_sample=False), eta=0.0),
        Sampling(schedule=FlowMatchEulerDiscreteScheduler(num_train_timesteps=4)),
    ],
    ids=["ddim", "flow"],
)
def test_deterministic_samplers_are_drawn_plainly_and_judged_by_aligned(sampling):
    model = drawing()
    assert draw("aligned", model, sampling=sampling).stats.accepted > 0
    assert draw("plain", model, sampling=Sampling(sigma_out=0.0).over(sampling)).tokens.isfinite().all()
    with pytest.raises(ValueError, match="path needs noise in every step"):
        draw("path", model, sampling=sampling)


def test_drafts_may_be_sampled_otherwise():
    model = drawing()
    fewer = LatentDraft(model.drafter, Sampling(steps=2))
    assert draw("aligned", model, drafter=fewer).stats.accepted > 0
    with pytest.raises(ValueError, match="path needs one schedule for target and draft, but they take 4 and 2 steps"):
        draw("path", model, drafter=fewer)
    lazy, usual = (draw("path", model, drafter=LatentDraft(model.drafter, Sampling(every=k))).tokens for k in (2, 1))
    assert (lazy - usual).abs().max() > 1e-3


def test_a_rule_of_the_callers_own_and_a_watcher():
    steps = []
    out = draw("aligned-block", accept=Token(), on_step=steps.append)
    assert out.stats.target_calls == len(steps)
    assert sum(len(row) for step in steps for row in step.committed.values) == out.stats.tokens == 64
    assert {"draft", "score", "accept"} <= {phase for phase in PHASES if out.stats.seconds[phase] > 0}
    told = out.stats.to_dict()
    assert told["tokens_per_call"] == pytest.approx(64 / out.stats.row_calls)
    assert told["exactness"] == DISTRIBUTION_EXACT
    assert out.stats.drift is None


def test_models_stand_for_themselves_and_classes_have_names():
    bare = small()
    assert continuous_model(bare).model is bare
    assert continuous_model(object()) is None
    assert torch.equal(generate(bare, [2], method="plain", seed=1).tokens, draw("plain", of=["Hen"], seed=1).tokens)
    assert draw("plain", of=["3", 3]).tokens.shape == (2, 4, 4, 4)
    assert drawing().method == "path"
    assert drawing("density").method == "density"
    assert generate(drawing("density"), [0]).stats.accepted >= 0


def test_a_way_for_another_head_runs_on_the_model_that_has_it():
    model, other = drawing(), drawing("density")
    model.others = (other,)
    out = draw("density", model)
    assert out.model is other
    assert torch.equal(out.tokens, draw("density", other).tokens)


# --- refusals ---------------------------------------------------------------------------------------------------------

REFUSED = [
    ({"method": "slow"}, "unknown method for continuous tokens 'slow'; valid: plain, density"),
    ({"method": "density"}, "method 'density' is for mixture heads, and this model has a diffusion head: take plain, path"),
    ({"method": "cspd-compat"}, "method 'cspd-compat' is for masked heads"),
    ({"prompts": []}, "prompts is \\[\\]"),
    ({"prompts": ["owl"]}, "unknown class 'owl': give a number from 0 to 3, or one of: cat, dog, hen, cow"),
    ({"prompts": [4]}, "unknown class 4"),
    ({"top_k": 5}, "top_k is 5, but it is for picture codes"),
    ({"size": 64}, "size is 64: this model makes pictures of one size only"),
    ({"init": "left"}, "init is 'left', but it is for picture codes"),
    ({"drift_budget": 0.1}, "drift_budget is 0.1, but"),
    ({"guidance": [1.0, 2.0]}, "guidance is a list"),
    ({"guidance": -1.0}, "guidance is -1.0: give a number from 0 on"),
    ({"temperature": [1.0]}, "temperature is a list"),
    ({"temperature": 0.0}, "temperature is 0.0: a density has no best value"),
    ({"window": 0}, "window is 0: give at least 1 token"),
    ({"window": "wide"}, "window is 'wide': give at least 1 token"),
    ({"drafter": torch.nn.Linear(1, 1)}, "drafter is a Linear: methods for continuous tokens draft with a ContinuousAR"),
    ({"drafter": small(channels=3)}, "the drafter's channels is 3, the target's 4"),
    ({"drafter": small(grid=5)}, "the drafter's grid is 5, the target's 4"),
    ({"drafter": small("mixture")}, "the drafter's head is mixture, the target's diffusion"),
    ({"drafter": LatentDraft(small(), temperature=0.9)}, "path needs one schedule for target and draft, but at step 0 of 4"),
    ({"sampling": Sampling(sigma_out=0.0)}, "path needs noise in the last step, but sigma_out is 0"),
    ({"method": "aligned", "sampling": Sampling(sigma_out=0.0)}, "aligned needs noise in the last step, but sigma_out is 0"),
    ({"sampling": Sampling(sigma_out=-1.0)}, "sigma_out is -1.0, but it is a standard deviation"),
    ({"sampling": Sampling(steps=0)}, "steps is 0, but the scheduler was made for 1 to 1024"),
    ({"sampling": Sampling(every=0)}, "every is 0: the net is run at every state"),
    ({"sampling": Sampling(eta=0.5)}, "eta is 0.5, but DDPMParallelScheduler has none"),
    ({"sampling": Sampling(schedule=DDPMParallelScheduler(clip_sample=True))}, "clip_sample"),
    ({"sampling": Sampling(schedule=torch.nn.Linear(1, 1))}, "Linear"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_bad_requests_are_refused_in_one_line(options, words):
    request = {"prompts": [0], "method": "path"} | options
    with pytest.raises(ValueError, match=words) as refused:
        generate(drawing(), request.pop("prompts"), **request)
    assert "\n" not in str(refused.value)


def test_more_bad_requests():
    with pytest.raises(ValueError, match="method 'path' needs a drafter: pass drafter="):
        generate(small(), [0], method="path")
    with pytest.raises(ValueError, match="guidance has a closed form for a single Gaussian, and this mixture has 3"):
        draw("density", guidance=2.0)
    with pytest.raises(ValueError, match="this model has no decoder: give the adapter to_pictures"):
        _ = generate(small(), [0], method="plain").images
    with pytest.raises(ValueError, match="head is 'flow': a continuous model has a diffusion or a mixture head"):
        ContinuousARConfig(head="flow")
    with pytest.raises(ValueError, match="a mixture head has none: leave them out"):
        draw("density", sampling=Sampling(sigma_out=0.2))
