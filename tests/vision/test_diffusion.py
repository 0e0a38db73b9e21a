"""Whole pictures: chains are diffusers' own, their distribution is the target's whatever is drafted, and what is accepted is what theory
says."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import DDIMPipeline, DDIMScheduler, DDPMPipeline, DDPMScheduler, FlowMatchEulerDiscreteScheduler, UNet2DModel
from scipy.stats import kstest

from mmspec.bench.synthetic.diffusion import GaussianMixtureData, MixtureNet, variance_preserving
from mmspec.core.noise import Noise
from mmspec.core.rules.base import commit, parents_distribution
from mmspec.core.rules.block import Block
from mmspec.core.rules.token import Token
from mmspec.drafters.jacobi.frozen import FrozenTarget
from mmspec.vision.diffusion.pipeline import denoise
from mmspec.vision.diffusion.target import DiffusionTarget
from mmspec.vision.diffusion.x0_prediction import X0Prediction

PLAIN = {"clip_sample": False, "beta_schedule": "squaredcos_cap_v2"}


def unet(seed: int = 0, width: int = 16, channels: int = 1) -> UNet2DModel:
    torch.manual_seed(seed)
    blocks = {"down_block_types": ("DownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "UpBlock2D"), "layers_per_block": 1}
    sizes = {"sample_size": 8, "in_channels": channels, "out_channels": channels, "norm_num_groups": 4}
    return UNet2DModel(block_out_channels=(width, width), **sizes, **blocks).eval()


def mixture_pipeline(size: int = 4, predicts: str = "epsilon", **rest: Any) -> Any:
    scheduler = DDPMScheduler(prediction_type=predicts, **PLAIN | rest)
    return DDPMPipeline(MixtureNet(GaussianMixtureData.random(size, 3), variance_preserving(scheduler), predicts), scheduler)


def imitation(pipeline: Any, amount: float = 1.0) -> MixtureNet:
    """A network that knows its data badly."""
    net = pipeline.unet
    return MixtureNet(net.mixture.blurred(amount), net.levels, net.predicts)


# --- the target -------------------------------------------------------------------------------------------------------


def usual(pipeline: Any, count: int, steps: int, eta: float | None, monkeypatch: Any) -> torch.Tensor:
    """The pipeline's own loop, fed with the numbers the engine draws."""
    net, scheduler = pipeline.unet, pipeline.scheduler
    shape, noise = (count, net.config.in_channels, net.config.sample_size, net.config.sample_size), Noise.from_seed(3, count)

    def drawn(position: int) -> torch.Tensor:
        return noise.value(torch.full((count, 1), position)).normal(shape[1:].numel()).view(shape).float()

    shape = torch.Size(shape)
    scheduler.set_timesteps(steps)
    image = drawn(-1)
    for position, t in enumerate(scheduler.timesteps):
        for module in ("ddpm", "ddim"):
            monkeypatch.setattr(f"diffusers.schedulers.scheduling_{module}.randn_tensor", lambda *a, at=position, **b: drawn(at))
        with torch.no_grad():
            out = net(image, t).sample
        image = scheduler.step(out, t, image, **({} if eta is None else {"eta": eta})).prev_sample
    return image


CHAINS = [
    (DDPMScheduler(**PLAIN), None),
    (DDPMScheduler(clip_sample=True, clip_sample_range=0.7), None),
    (DDPMScheduler(clip_sample=True, prediction_type="v_prediction", timestep_spacing="trailing", variance_type="fixed_large"), None),
    (DDPMScheduler(clip_sample=False, prediction_type="sample", steps_offset=1, variance_type="fixed_small_log"), None),
    (DDIMScheduler(clip_sample=True, set_alpha_to_one=False, steps_offset=1), 0.6),
    (DDIMScheduler(clip_sample=False, prediction_type="v_prediction"), 1.0),
]


@pytest.mark.parametrize(("scheduler", "eta"), CHAINS, ids=range(len(CHAINS)))
def test_plain_decoding_is_the_pipelines_own_loop(scheduler, eta, monkeypatch):
    pipeline = (DDPMPipeline if eta is None else DDIMPipeline)(unet(), scheduler)
    out = denoise(pipeline, 2, steps=8, eta=eta, seed=3)
    assert out.samples.dtype == torch.float32
    wanted = usual(pipeline, 2, 8, eta, monkeypatch)
    assert (out.samples - wanted).abs().max() < 1e-5 * wanted.abs().max().clamp_min(1)
    assert (out.stats.target_calls, out.stats.tokens, out.stats.tokens_per_call) == (8, 16, 1.0)
    assert [image.size for image in out.images] == [(8, 8)] * 2


def test_what_is_x0_prediction_is_what_the_scheduler_foresees():
    scheduler = DDPMScheduler(clip_sample=True, clip_sample_range=0.5)
    tables = X0Prediction.of(scheduler, DDPMScheduler(clip_sample=False), 5, {})
    x, out, step = torch.randn(5, 6), torch.randn(5, 6), torch.arange(5)
    picture = tables.picture(x, step, out)
    for row, t in enumerate(scheduler.timesteps):
        assert torch.allclose(
            scheduler.step(out[row, None], t, x[row, None]).pred_original_sample[0], picture[row].clamp(-0.5, 0.5).float(), atol=1e-5
        )
    assert torch.allclose(tables.said(x, step, picture), out.double())
    assert not X0Prediction.of(scheduler, scheduler, 5, {}).weight.any()


def test_rows_stand_at_steps_of_their_own():
    """One call of the network over ragged chains says what calls one by one say."""
    target = DiffusionTarget.of(DDPMPipeline(unet(), DDPMScheduler(**PLAIN)), 10)
    x, step = torch.randn(6, 64, dtype=torch.float64), torch.tensor([0, 9, 3, 3, 7, 1])
    one = torch.cat([target.run(x[i : i + 1], step[i : i + 1]) for i in range(6)])
    assert torch.allclose(target.run(x, step), one, atol=1e-5)


# --- the distribution ----------------------------------------------------------------------------------------------------------


@dataclass
class Watched:
    """`rule`, remembering every round's draft and the distributions its draft tokens were judged by."""

    rule: Any
    rounds: list = field(default_factory=list)
    exactness, coupled, uses_q, trees = "distribution-exact", False, True, False

    def __call__(self, draft, scored, noise):
        verdict = self.rule(draft, scored, noise)
        if draft.size > draft.roots:
            self.rounds.append((draft, parents_distribution(draft, scored), verdict))
        return verdict


def drawn(pipeline: Any, count: int, rule: Any | None, **rest: Any) -> tuple[Any, Any, torch.Tensor]:
    """What `denoise` gave, what the rule saw, and every state of every chain, [B, T + 1, D]."""
    watched, states, first = None if rule is None else Watched(rule), [[] for _ in range(count)], []

    def on_step(step):
        first.append(step.draft.nodes[:, 0])
        for row, values in zip(states, step.committed.values, strict=True):
            row += values

    out = denoise(pipeline, count, accept=watched, on_step=on_step, **rest)
    return out, watched, torch.stack([torch.stack([first[0][row], *values]) for row, values in enumerate(states)])


def residuals(pipeline: Any, watched: Watched, states: torch.Tensor) -> torch.Tensor:
    """Numbers that are independent N(0, 1) under an exact rule, whatever the draft: in each step a draft token was judged for, the emitted
    state seen from the target's mean after the emitted state before it, in standard deviations, along the line to the draft's mean."""
    steps = states.shape[1] - 1
    target, found = DiffusionTarget.of(pipeline, steps), []
    for draft, _, verdict in watched.rounds:
        draft_tokens = torch.arange(draft.size - draft.roots)
        rows, draft_token = (draft_tokens < verdict.judged[:, None]).nonzero(as_tuple=True)
        step = draft.start[rows] + draft_token
        x = states[rows, step]
        p = target.distribution(x, step, target.run(x, step))
        line = draft.q.mean[rows, draft_token] - p.mean
        far = line.norm(dim=-1) > 1e-6 * p.scale[:, 0]
        line = torch.nn.functional.normalize(line, dim=-1)
        found.append((((states[rows, step + 1] - p.mean) / p.scale) * line).sum(-1)[far])
    return torch.cat(found)


class FromP(Token):
    """Wrong: a refused draft token is replaced by a draw from p."""

    def replacement(self, p, q, x):
        return p


class NoRollback(Token):
    """Wrong: a refused draft token is replaced, and the draft tokens behind it are kept."""

    def __call__(self, draft, scored, noise):
        if draft.size == draft.roots:
            return super().__call__(draft, scored, noise)
        p, positions = parents_distribution(draft, scored), draft.position()[:, :-1]
        passes = noise.accept(positions, draft.start).below(self.accept_prob(p, draft.q, draft.draft_tokens))
        instead = p.residual(draft.q, draft.draft_tokens).where(~passes, p).sample(noise.residual(positions, draft.start))
        nodes = torch.cat([draft.nodes[:, :1], torch.where(passes[..., None], draft.draft_tokens, instead)], 1)
        leaf = draft.valid.sum(1).clamp_min(1) - 1
        extra = scored.p.at(leaf[:, None]).sample(noise.value((draft.start + leaf)[:, None]))[:, 0]
        return commit(replace(draft, nodes=nodes), leaf, extra)


DRAFTERS = {"frozen": lambda pipeline: "frozen", "root": lambda _: FrozenTarget("root"), "net": imitation}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_distribution_is_the_targets(drafter):
    pipeline = mixture_pipeline()
    _, watched, states = drawn(pipeline, 500, Token(), drafter=DRAFTERS[drafter](pipeline), steps=16, draft_length=3)
    found = residuals(pipeline, watched, states)
    assert len(found) > 3500
    assert kstest(found.numpy(), "norm").pvalue > 0.01


@pytest.mark.parametrize("rule", [FromP(), NoRollback()], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("drafter", ["frozen", "net"])
def test_wrong_rules_are_told_apart(rule, drafter):
    pipeline = mixture_pipeline()
    _, watched, states = drawn(pipeline, 500, rule, drafter=DRAFTERS[drafter](pipeline), steps=16, draft_length=3)
    assert kstest(residuals(pipeline, watched, states).numpy(), "norm").pvalue < 1e-6


def test_siblings_keep_the_distribution_and_accept_more():
    """Every emitted step is looked at, along a line that does not hang on the draft, and how many were accepted as in chains."""
    pipeline = mixture_pipeline()
    counts = {}
    for siblings in (1, 4):
        out, _, states = drawn(pipeline, 400, None, drafter=imitation(pipeline, 2.0), steps=16, draft_length=3, siblings=siblings)
        counts[siblings] = out.stats.row_calls
        for line in (torch.randn(4, dtype=torch.float64), None):
            assert kstest(everywhere(pipeline, states, line).numpy(), "norm").pvalue > 0.01
    assert counts[4] < 0.95 * counts[1]


def everywhere(pipeline: Any, states: torch.Tensor, line: torch.Tensor | None) -> torch.Tensor:
    """As `residuals` of every noisy step, along `line` [D] or the step's own direction."""
    count, steps = len(states), states.shape[1] - 1
    target, step = DiffusionTarget.of(pipeline, steps), torch.arange(steps - 1).expand(count, -1)
    x = states[:, :-2]
    p = target.distribution(x, step, target.run(x.flatten(0, 1), step.flatten()).view_as(x))
    along = torch.nn.functional.normalize(p.mean - x if line is None else line, dim=-1)
    return (((states[:, 1:-1] - p.mean) / p.scale) * along).sum(-1).flatten()


def test_block_verification_keeps_the_distribution_and_accepts_more():
    """What a block commits hangs on later draft tokens, so every step is looked at, along a line that does not hang on the draft."""
    pipeline = mixture_pipeline()
    settings = {"drafter": imitation(pipeline), "steps": 16, "draft_length": 4}
    token, _, _ = drawn(pipeline, 500, Token(), **settings)
    block, _, states = drawn(pipeline, 500, Block(), **settings)
    assert block.stats.accepted_per_call > token.stats.accepted_per_call
    for line in (torch.randn(4, dtype=torch.float64), None):
        assert kstest(everywhere(pipeline, states, line).numpy(), "norm").pvalue > 0.01


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_draft_tokens_are_accepted_as_often_as_theory_says(drafter):
    """2 Phi(-delta / 2) each, delta being the distance of the means in standard deviations."""
    pipeline = mixture_pipeline()
    _, watched, _ = drawn(pipeline, 400, Token(), drafter=DRAFTERS[drafter](pipeline), steps=16, draft_length=3)
    hits, chances = [], []
    for draft, p, verdict in watched.rounds:
        delta = ((p.mean - draft.q.mean) / p.scale).norm(dim=-1)
        draft_tokens = torch.arange(delta.shape[1])
        judged = draft_tokens < verdict.judged[:, None]
        hits.append((draft_tokens < verdict.accepted[:, None])[judged])
        chances.append(torch.special.erfc(delta / 8**0.5)[judged])
    hits, chances = torch.cat(hits).double(), torch.cat(chances)
    error = (chances * (1 - chances)).sum().sqrt()
    assert chances.mean() < 0.98
    assert abs((hits - chances).sum()) < 4 * error


def test_the_target_as_its_own_drafter_is_always_right():
    for pipeline in (mixture_pipeline(), DDPMPipeline(unet(), DDPMScheduler(clip_sample=True))):
        out = denoise(pipeline, 3, drafter=pipeline.unet, steps=13, draft_length=3)
        assert (out.stats.rejected, out.stats.row_calls) == (0, 3 * 4)  # 4 + 4 + 4 + 1 states a picture
        again = denoise(pipeline, 3, drafter=pipeline, steps=13, draft_length=3)
        assert torch.equal(again.samples, out.samples)


def test_a_mixtures_pictures_are_the_mixtures():
    """The last states' distances from the mean they belong to, against plain decoding's."""
    pipeline = mixture_pipeline(32)
    plain, fast = (denoise(pipeline, 400, drafter=d, steps=40, seed=s).samples.flatten(1) for d, s in ((None, 0), ("frozen", 1000)))
    means = pipeline.unet.mixture.means
    assert kstest(*(torch.cdist(found, means).amin(1).numpy() for found in (plain, fast))).pvalue > 1e-3
    counts = [torch.bincount(torch.cdist(found, means).argmin(1), minlength=3) for found in (plain, fast)]
    assert ((counts[0] - counts[1]).abs() < 4 * (counts[0] + counts[1]).sqrt()).all()


# --- the call ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["frozen", "net", None])
def test_a_picture_does_not_hang_on_its_batch(drafter):
    pipeline = DDPMPipeline(unet(), DDPMScheduler(clip_sample=True))
    drafter = unet(1, 8) if drafter == "net" else drafter
    settings = {"drafter": drafter, "steps": 12, "draft_length": 3}
    four = denoise(pipeline, 4, seed=[5, 6, 7, 8], **settings).samples
    alone = torch.cat([denoise(pipeline, 1, seed=seed, **settings).samples for seed in (5, 6, 7, 8)])
    assert torch.allclose(four, alone, atol=1e-4)
    assert (four[0] - four[1]).abs().max() > 0.1


@pytest.mark.parametrize("drafter", ["frozen", FrozenTarget("root"), None])
def test_a_call_is_an_evaluation_of_the_network(drafter):
    pipeline, calls = mixture_pipeline(), []
    pipeline.unet.register_forward_hook(lambda *_: calls.append(1))
    denoise(pipeline, 3, drafter=drafter, steps=12, draft_length=4)
    calls.clear()  # those of the self-test, which the hook asks for
    out = denoise(pipeline, 3, drafter=drafter, steps=12, draft_length=4)
    assert out.stats.target_calls == len(calls)
    assert out.stats.tokens == 36
    assert out.stats.exactness == "distribution-exact"


def test_a_draft_length_may_be_measured():
    assert denoise(mixture_pipeline(), 2, drafter="frozen", steps=20, draft_length="auto").stats.tokens == 40


def test_networks_and_schedulers_are_left_as_they_were():
    pipeline = mixture_pipeline()
    before = pipeline.scheduler.timesteps.clone()
    denoise(pipeline, 1, drafter="frozen", steps=5)
    assert torch.equal(pipeline.scheduler.timesteps, before)


def broken(net: Any) -> Any:
    net.forward = lambda sample, timestep: SimpleNamespace(sample=torch.full_like(sample, torch.nan))
    return net


def learned(**sizes: Any) -> Any:
    net = unet()
    net.register_to_config(out_channels=2)
    return net


DDPM = DDPMScheduler(**PLAIN)
WRONG = {
    "count is 0": lambda: denoise(mixture_pipeline(), 0),
    "steps is 0": lambda: denoise(mixture_pipeline(), steps=0),
    "steps is 2000": lambda: denoise(mixture_pipeline(), steps=2000),
    "str is not supported": lambda: denoise("a/name"),
    "eta is 0.5, but DDPMScheduler has none": lambda: denoise(mixture_pipeline(), eta=0.5),
    "eta is 0.0: at 0 DDIM has no noise": lambda: denoise(DDIMPipeline(unet(), DDIMScheduler()), eta=0.0),
    "eta is 2": lambda: denoise(DDIMPipeline(unet(), DDIMScheduler()), eta=2),
    "steps without noise": lambda: denoise(DDPMPipeline(unet(), FlowMatchEulerDiscreteScheduler()), steps=4),
    "thresholding=True": lambda: denoise(DDPMPipeline(unet(), DDPMScheduler(thresholding=True, clip_sample=False)), steps=4),
    "predicts its own noise": lambda: denoise(DDPMPipeline(learned(), DDPM), steps=4),
    "draft_length is -1": lambda: denoise(mixture_pipeline(), drafter="frozen", steps=4, draft_length=-1),
    "draft_length is 'long'": lambda: denoise(mixture_pipeline(), drafter="frozen", steps=4, draft_length="long"),
    "unknown accept rule for diffusion chains 'best'; valid: token, block, d-grs": lambda: denoise(
        mixture_pipeline(), steps=4, accept="best"
    ),
    "drafter is 'cold': give None, 'frozen'": lambda: denoise(mixture_pipeline(), steps=4, drafter="cold"),
    "siblings is 0": lambda: denoise(mixture_pipeline(), steps=4, siblings=0),
    "judges chains, but this draft branches": lambda: denoise(mixture_pipeline(), drafter="frozen", steps=9, siblings=2, accept="token"),
    "the drafter's samples are (1, 8, 8), but the target's (4, 1, 1)": lambda: denoise(mixture_pipeline(), steps=4, drafter=unet()),
    "at step 0 of 4 their noise is": lambda: denoise(mixture_pipeline(), steps=4, drafter=mixture_pipeline(beta_schedule="linear")),
    "seed has 2 entries for 3 rows": lambda: denoise(mixture_pipeline(), 3, steps=4, seed=[1, 2]),
    "a sample has 4 channels": lambda: denoise(mixture_pipeline(), steps=4).images,
}


@pytest.mark.parametrize("said", WRONG)
def test_bad_input_is_said_in_one_line(said):
    with pytest.raises(ValueError) as caught:
        WRONG[said]()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_output_that_is_no_number_is_reported():
    with pytest.raises(FloatingPointError, match="row 0"):
        denoise(DDPMPipeline(broken(unet()), DDPM), steps=4)
