"""Masked models of continuous tokens: what a state hangs on, how pictures are written, and what is refused."""

import pytest
import torch
from scipy import stats

from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.noise import Noise
from mmspec.vision.continuous.ar import scheduler
from mmspec.vision.continuous.mar import MaskedAR, MaskedARConfig, random_masks
from mmspec.vision.continuous.masked import generate_masked
from mmspec.vision.continuous.masked_sets import Canvas, SetPlan, SetWriter, set_sizes, step_counts
from tests.oracles.statistics import FAIL, PASS

SIZES: dict = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "head_width": 16,
    "head_blocks": 1,
}


def small(seed: int = 0, grid: int = 3, **changes) -> MaskedAR:
    torch.manual_seed(seed)
    config = {"grid": grid, "classes": 3, "channels": 2, "initializer_range": 0.3, "head_steps": 4} | SIZES | changes
    return MaskedAR(MaskedARConfig(**config)).eval()


# --- the model --------------------------------------------------------------------------------------------------------


def test_hidden_tokens_are_not_read_and_seen_ones_are():
    model, tokens = small(), torch.randn(2, 9, 2)
    masked = torch.tensor([[True, False, True, False, True, True, False, False, True]] * 2)
    states = model.states(torch.tensor([0, 1]), tokens, masked)
    assert torch.equal(model.states(torch.tensor([0, 1]), tokens + masked[..., None] * 7, masked), states)
    other = tokens.clone()
    other[:, 7] += 1  # seen, and behind most hidden ones: attention looks both ways
    moved = (model.states(torch.tensor([0, 1]), other, masked) - states).abs().amax(-1)
    assert (moved > 1e-5).all()
    assert not torch.allclose(model.states(torch.tensor([3, 3]), tokens, masked), states)


def test_masks_hide_every_number_of_cells_alike():
    hidden = random_masks(9000, 9, torch.Generator().manual_seed(0))
    counts = torch.bincount(hidden.sum(1), minlength=10)
    assert counts[0] == 0
    assert ((counts[1:] - 1000).abs() < 150).all()
    assert ((hidden.double().mean(0) - 5 / 9).abs() < 0.03).all()


def test_a_mixture_head_is_refused():
    with pytest.raises(ValueError, match="a masked model has a diffusion head"):
        MaskedARConfig(head="mixture", **SIZES)


# --- orders, sets and steps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [1, 4, 9, 49, 256])
def test_every_iteration_commits_a_cell_and_all_together_all(cells):
    for iterations in range(1, cells + 1):
        sizes = set_sizes(iterations, cells)
        assert len(sizes) == iterations
        assert sum(sizes) == cells
        assert min(sizes) >= 1
    assert set_sizes(cells, cells) == [1] * cells  # as many iterations as cells: one each


def test_sets_follow_the_cosine():
    assert set_sizes(4, 49) == [4, 11, 16, 18]  # hidden: 49, 49 cos 22.5, 45, 67.5 degrees rounded down, 0


def test_orders_are_permutations_that_hang_on_the_seed_only():
    config = small().config
    order = Canvas(config, Noise.from_seed([5, 6, 7], 3)).order
    assert torch.equal(order.sort(1).values, torch.arange(9).expand(3, -1))
    assert not torch.equal(order[0], order[1])
    assert torch.equal(Canvas(config, Noise.from_seed([7, 5], 2)).order, order[[2, 0]])
    first = Canvas(config, Noise.from_seed(0, 4500)).order[:, 0]
    assert stats.chisquare(torch.bincount(first, minlength=9).numpy()).pvalue > PASS


def test_annealed_steps_go_evenly_from_first_to_last():
    assert step_counts(5, 16, 4) == [16, 13, 10, 7, 4]
    assert step_counts(3, 16, None) == [16] * 3
    assert step_counts(1, 16, 4) == [16]


# --- plain decoding ---------------------------------------------------------------------------------------------------


def by_hand(model: MaskedAR, label: int, seed: int, iterations: int, counts: list[int], scale=None) -> torch.Tensor:
    """One picture, cell by cell and step by step, with two calls of everything under guidance `scale(share of cells committed)`."""
    config, cells, dtype = model.config, model.config.grid**2, model.dtype
    keys = Noise.from_seed(seed, 1)
    order = keys.shared(torch.arange(cells)).uniform()[0].argsort().tolist()
    tokens, hidden, done = torch.zeros(1, cells, config.channels), torch.ones(1, cells, dtype=torch.bool), 0
    for size, steps in zip(set_sizes(iterations, cells), counts, strict=True):
        noise_schedule = NoiseSchedule.of(scheduler(), steps, config.sigma_out)
        states = [model.states(torch.tensor([c]), tokens.to(dtype), hidden)[0] for c in (label, config.classes)]
        fresh = {}
        for cell in order[done : done + size]:
            noise = keys.value(torch.tensor([[cell]])).branch(steps + 1).normal(config.channels)[0, 0]
            x = noise[0]
            for step in range(steps):
                time = noise_schedule.timesteps[step : step + 1]
                out, bare = (model.head(x.to(dtype)[None], time, state[cell][None])[0] for state in states)
                if scale is not None:
                    out = bare + scale((done + size) / cells) * (out - bare)
                x = noise_schedule.mean(x, step, out) + noise_schedule.std[step] * noise[step + 1]
            fresh[cell] = x.float()
        for cell, token in fresh.items():
            tokens[0, cell], hidden[0, cell] = token, False
        done += size
    return tokens[0]


@torch.no_grad()
@pytest.mark.parametrize(
    ("options", "counts", "scale"),
    [
        ({"iterations": 9}, [4] * 9, None),
        ({"iterations": 3}, [4] * 3, None),
        ({"iterations": 3, "annealed": 2}, [4, 3, 2], None),
        ({"iterations": 3, "head_steps": 2, "guidance": 2.5}, [2] * 3, lambda share: 2.5),
        ({"iterations": 4, "guidance": 3.0, "ramp": "linear"}, [4] * 4, lambda share: 1 + 2 * share),
    ],
)
def test_pictures_are_what_each_cell_by_itself_comes_to(options, counts, scale):
    model = small().double()  # guidance magnifies rounding
    out = generate_masked(model, [1, 2], noise=Noise.from_seed(3, 2), **options)
    for row, label in enumerate((1, 2)):
        own = by_hand(model, label, 3 + row, options["iterations"], counts, scale)
        assert (out.sequences[row] - own).abs().max() < 1e-4
    assert out.lengths.tolist() == [9, 9]


@torch.no_grad()
def test_a_set_is_drawn_from_the_head_s_distribution():
    """The first cell of 3000 pictures against chains of diffusers' own scheduler, whose noise is torch's."""
    model, rows = small(grid=2), 3000
    config = model.config
    sampler, torch_noise = scheduler(), torch.Generator().manual_seed(1)
    sampler.set_timesteps(4)

    def drawn(**options) -> torch.Tensor:
        plan = SetPlan.of(config, **({"iterations": 4, "head_steps": 4, "sigma_out": 0.1} | options))
        noise, canvas = Noise.from_seed(0, rows), Canvas(config, Noise.from_seed(0, rows))
        canvas.order = torch.arange(4).expand(rows, -1)
        SetWriter(model, torch.zeros(rows, dtype=torch.long), plan).write(canvas, 0, 0, noise)
        return canvas.tokens[:, 0]

    nothing = torch.ones(1, 4, dtype=torch.bool)
    z = model.states(torch.tensor([0]), torch.zeros(1, 4, 2), nothing)[:, 0].expand(rows, -1)
    x = torch.randn(rows, 2, generator=torch_noise)
    for t in sampler.timesteps:
        x = sampler.step(model.head(x, t.expand(rows), z), int(t), x, generator=torch_noise).prev_sample
    x = x + 0.1 * torch.randn(rows, 2, generator=torch_noise)

    for axis in (torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor([1.0, -1.0])):
        assert stats.ks_2samp((drawn() @ axis).numpy(), (x @ axis).numpy()).pvalue > PASS
    cold = drawn(temperature=0.01)  # a sampler that forgets its noise
    assert min(stats.ks_2samp(cold[:, k].numpy(), x[:, k].numpy()).pvalue for k in range(2)) < FAIL


OPTIONS = [{"iterations": 9}, {"iterations": 3, "annealed": 2}, {"iterations": 5, "guidance": 2.0, "ramp": "linear"}]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_picture_does_not_hang_on_its_batch(options):
    model = small()
    all_four = generate_masked(model, [0, 1, 2, 3], noise=Noise.from_seed(11, 4), **options).sequences
    for row in range(4):
        alone = generate_masked(model, [row], noise=Noise.from_seed(11 + row, 1), **options).sequences
        assert (alone[0] - all_four[row]).abs().max() < 1e-4
    other = generate_masked(model, [0], noise=Noise.from_seed(12, 1), **options).sequences
    assert (other[0] - all_four[0]).abs().max() > 0.1


def test_counts_and_labels():
    model = small()
    out = generate_masked(model, [0, 1], noise=Noise.from_seed(0, 2)).stats
    assert (out.exactness, out.tokens, out.target_calls, out.head_calls, out.tokens_per_call) == ("token-exact", 18, 9, 36, 1.0)
    cases: list[tuple[dict, int, int]] = [({"iterations": 3}, 3, 12), ({"head_steps": 2}, 9, 18), ({"iterations": 3, "annealed": 2}, 3, 9)]
    for options, calls, steps in cases:
        out = generate_masked(model, [0, 1], noise=Noise.from_seed(0, 2), **options).stats
        assert (out.exactness, out.target_calls, out.head_calls) == ("lossy (unmetered)", calls, steps)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"iterations": 10}, "iterations is 10, but each of them commits at least one of 9 cells: give 1 to 9"),
        ({"iterations": 0}, "iterations is 0"),
        ({"head_steps": 0}, "steps is 0"),
        ({"annealed": 5}, "annealed is 5, but chains begin with 4 steps"),
        ({"annealed": 0}, "annealed is 0"),
        ({"sigma_out": -0.1}, "sigma_out is -0.1"),
        ({"guidance": -1.0}, "guidance is -1.0"),
        ({"guidance": 2.0, "ramp": "cosine"}, "ramp is 'cosine': guidance is constant or linear"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"method": "jacobi"}, "unknown method 'jacobi' for masked models; valid: plain, chain, cspd-compat"),
    ],
)
def test_bad_requests_get_one_line(options, line):
    with pytest.raises(ValueError, match="^" + line) as found:
        generate_masked(small(), [0, 1], noise=Noise.from_seed(0, 2), **options)
    assert "\n" not in str(found.value)


def test_classes_that_are_none_get_one_line():
    with pytest.raises(ValueError, match="class 4 is none of the model's: give 0 to 2, or 3 for no class"):
        generate_masked(small(), [0, 4], noise=Noise.from_seed(0, 2))
    with pytest.raises(ValueError, match="give one class and one seed a picture"):
        generate_masked(small(), [0], noise=Noise.from_seed(0, 2))


def test_broken_weights_are_reported():
    model = small()
    torch.nn.init.constant_(model.head.output.bias, torch.nan)
    with pytest.raises(FloatingPointError, match="a token is not finite"):
        generate_masked(model, [0], noise=Noise.from_seed(0, 1), iterations=1)
