"""The published CSpD procedure for masked models: what it does point by point, and that it is not the target's distribution."""

from dataclasses import replace

import pytest
import torch
from scipy import stats

from mmspec.core.noise import Noise
from mmspec.vision.continuous import cspd_compat
from mmspec.vision.continuous.cspd_compat import CSpDCompat
from mmspec.vision.continuous.masked import generate_masked
from mmspec.vision.continuous.masked_sets import Canvas, SetPlan, SetWriter
from tests.oracles.statistics import PASS
from tests.vision.test_mar import small


def options(**changes) -> dict:
    return {"method": "cspd-compat", "iterations": 9, "gamma": 4} | changes


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_rounds_end_at_multiples_of_gamma_and_at_the_end():
    assert CSpDCompat(4).rounds(12) == [range(1, 5), range(5, 9), range(9, 12)]
    assert CSpDCompat(4, prefill=0.0).rounds(9) == [range(1), range(1, 5), range(5, 9)]
    assert CSpDCompat(4, prefill=0.15).rounds(20) == [range(3, 5), range(5, 9), range(9, 13), range(13, 17), range(17, 20)]
    for gamma in (1, 2, 3, 7):
        for iterations in (1, 2, 9, 49):
            way = CSpDCompat(gamma)
            drafted = [k for each in way.rounds(iterations) for k in each]
            assert drafted == list(range(way.first(iterations), iterations))
            assert max((len(each) for each in way.rounds(iterations)), default=0) <= gamma


def test_the_prefilled_share_is_rounded_up():
    assert [CSpDCompat(prefill=share).first(100) for share in (0.0, 0.05, 0.07, 0.051)] == [0, 5, 7, 6]
    assert CSpDCompat().first(12) == 1


# --- what is judged, by what ------------------------------------------------------------------------------------------


def test_the_target_sees_what_is_verified_and_the_draft_what_it_wrote(monkeypatch):
    target, drafter, seen = small(0), small(1), []
    head_input = SetWriter.head_input

    def watched(self, canvas, cells, iteration):
        seen.append((self.model is target, int(canvas.hidden[0].sum()), cells.shape[1]))
        return head_input(self, canvas, cells, iteration)

    monkeypatch.setattr(SetWriter, "head_input", watched)
    out = generate_masked(target, [0, 1], noise=Noise.from_seed(0, 2), drafter=drafter, **options())
    drafts = [(False, 9 - k, 1) for k in range(9)]
    assert seen == [(True, 9, 1), *drafts[1:5], (True, 8, 4), *drafts[5:9], (True, 4, 4)]
    assert (out.stats.target_calls, out.stats.draft_calls, out.stats.drafted, out.stats.tokens) == (3, 8, 16, 18)
    assert out.stats.exactness == "lossy (unmetered)"
    assert out.stats.drift is None
    assert sum(out.stats.histogram) == out.stats.row_calls == 6


class Fixed(SetWriter):
    """A writer whose chains always end around the same means."""

    def __init__(self, mean: float, plan: SetPlan, rows: int):
        super().__init__(small(grid=2), torch.zeros(rows, dtype=torch.long), plan)
        self.mean = mean

    def chains(self, z, noise, iteration):
        means = torch.full((*z.shape[:2], 2), self.mean)
        return means, means


def judged(gap: float, way: CSpDCompat, hotter: float = 1.0, rows: int = 4000):
    """What becomes of draft tokens at 0 where the target's mean is `gap` in both coordinates, and the draft's chains are `hotter`."""
    plan = SetPlan.of(small(grid=2).config, iterations=4, head_steps=4, sigma_out=0.1)
    noise_schedule = replace(
        plan.noise_schedules[0], std=torch.cat([plan.noise_schedules[0].std[:-1] * hotter, plan.noise_schedules[0].std[-1:]])
    )
    writers = Fixed(gap, plan, rows), Fixed(0.0, replace(plan, noise_schedules=[noise_schedule] * 4), rows)
    noise = Noise.from_seed(0, rows)
    canvas = Canvas(writers[0].model.config, noise)
    return way.judge(writers[0], writers[1], canvas, canvas.cells(0, 1), torch.zeros(rows, 1, 2), 0, noise)


@pytest.mark.parametrize(("gap", "tau"), [(0.05, 1.0), (0.2, 1.0), (5.0, 42.0), (1.0, 42.0)])
def test_a_draft_token_is_kept_by_its_tempered_distance(gap, tau):
    kept = judged(gap, CSpDCompat(inner_temperature=tau)).kept
    wanted = torch.tensor(-2 * (gap / 0.1 / tau) ** 2 / 2).exp().item()
    assert stats.binomtest(int(kept.sum()), kept.numel(), wanted).pvalue > PASS


def test_the_factor_is_the_inverse_of_the_papers():
    """Three noisy steps of two numbers each, the draft's deviations 2 % larger: (1 / 1.02)^6, where the paper has 1.02^6."""
    kept = judged(0.0, CSpDCompat(inner_temperature=1.0), hotter=1.02).kept
    assert stats.binomtest(int(kept.sum()), kept.numel(), 1.02**-6).pvalue > PASS
    assert judged(0.0, CSpDCompat(inner_temperature=1.0), hotter=0.98).kept.all()


def test_replacements_are_not_tempered_and_committed_draft_tokens_have_no_noise():
    out = judged(0.2, CSpDCompat(inner_temperature=1.0))
    assert (out.tokens[out.kept] == 0).all()
    along = out.tokens[~out.kept].sum(-1) / 2**0.5  # N(0.2 sqrt 2, 0.1) less N(0, 0.1): on the target's side of the middle
    assert (along > 0.1 * 2**0.5).all()


def test_after_a_hundred_tries_a_token_is_the_target_s_not_zero():
    out = judged(0.0, CSpDCompat(inner_temperature=1.0), hotter=1.5, rows=500)  # nothing is left of F p behind q
    replaced = out.tokens[~out.kept].double() / 0.1
    assert len(replaced) > 400
    assert stats.kstest(replaced.flatten().numpy(), "norm").pvalue > PASS


# --- whole pictures ---------------------------------------------------------------------------------------------------


def test_the_target_as_its_own_draft_accepts_everything_set_by_set():
    out = generate_masked(
        small(), [0, 1, 2], noise=Noise.from_seed(0, 3), drafter=small(), **options(gamma=1, inner_temperature=1e-3)
    ).stats
    assert out.accepted == out.drafted == 24


def test_a_huge_temperature_accepts_everything():
    model, noise = small(0), Noise.from_seed(0, 3)
    out = generate_masked(model, [0, 1, 2], noise=noise, drafter=small(1), **options(inner_temperature=1e9))
    assert out.stats.accepted == out.stats.drafted == 24
    assert out.stats.histogram == [3, 0, 0, 0, 6]


def test_draft_tokens_behind_a_replaced_one_stay():
    """Everything that was not replaced is the draft's, whatever was replaced before it."""
    rounds, judge = [], CSpDCompat.judge

    def watched(self, target, drafter, canvas, cells, draft_tokens, last, noise):
        rounds.append((draft_tokens, judge(self, target, drafter, canvas, cells, draft_tokens, last, noise)))
        return rounds[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CSpDCompat, "judge", watched)
        out = generate_masked(small(0), [0] * 20, noise=Noise.from_seed(0, 20), drafter=small(1), **options())
    stayed = 0
    for draft_tokens, one in rounds:
        assert torch.equal(one.tokens[one.kept], draft_tokens[one.kept])
        assert not (one.tokens[~one.kept] == draft_tokens[~one.kept]).any()
        refused_before = (~one.kept).long().cumsum(1) > 0
        stayed += int((one.kept & refused_before).sum())
        written = out.sequences.gather(1, one.cells[..., None].expand(-1, -1, 2))
        assert torch.equal(written, one.tokens)
    assert stayed > 10


def test_a_picture_does_not_hang_on_its_batch():
    target, drafter = small(0), small(1)
    kinds = options(drafter=drafter, guidance=1.5, ramp="linear")
    all_four = generate_masked(target, [0, 1, 2, 3], noise=Noise.from_seed(5, 4), **kinds).sequences
    for row in range(4):
        alone = generate_masked(target, [row], noise=Noise.from_seed(5 + row, 1), **kinds).sequences
        assert (alone[0] - all_four[row]).abs().max() < 1e-4


def test_the_pictures_distribution_is_not_the_target_s():
    """Pictures of one class, seen along fixed directions, against plain decoding's."""
    model, rows = small(grid=2), 1500
    across = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))

    def seen(seed: int, **kinds) -> torch.Tensor:
        return generate_masked(model, [0] * rows, noise=Noise.from_seed(seed, rows), iterations=4, **kinds).sequences.flatten(1) @ across

    plain, again = seen(0), seen(10_000)
    drafted = seen(20_000, method="cspd-compat", drafter=small(1, grid=2), gamma=4)
    least = [min(stats.ks_2samp(plain[:, k].numpy(), other[:, k].numpy()).pvalue for k in range(6)) for other in (again, drafted)]
    assert least[0] > PASS
    assert least[1] < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("tau", [1.0, 42.0])
def test_the_last_token_is_off_even_where_the_target_drafts_for_itself(tau):
    """Given all others, a plainly drawn last token lies around what the target's chain comes to with N(0, sigma_out^2)."""
    model, rows = small(), 1000
    noise, labels = Noise.from_seed(0, rows), torch.zeros(rows, dtype=torch.long)
    writer = SetWriter(model, labels, SetPlan.of(model.config, iterations=9, head_steps=4, sigma_out=0.1))

    def residual(**kinds) -> torch.Tensor:
        tokens = generate_masked(model, labels, noise=noise, **kinds).sequences
        canvas = Canvas(model.config, noise)
        others, last = canvas.cells(0, 8), canvas.cells(8, 1)
        canvas.put(others, tokens.gather(1, others[..., None].expand(-1, -1, 2)))
        _, means = writer.chains(writer.head_input(canvas, last, 8), noise.value(last), 8)
        return (tokens.gather(1, last[..., None].expand(-1, -1, 2)) - means)[:, 0, 0].double() / 0.1

    assert stats.kstest(residual().numpy(), "norm").pvalue > PASS
    assert stats.kstest(residual(drafter=model, **options(inner_temperature=tau)).numpy(), "norm").pvalue < 1e-6


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"gamma": 0}, "gamma is 0"),
        ({"drafter": None}, "cspd-compat drafts with a smaller masked model: pass drafter"),
        ({"drafter": small(1, grid=2)}, "the drafter has grid 2 and the target 3"),
        ({"sigma_out": 0.0}, "cspd-compat needs noise in the last step, but sigma_out is 0"),
        ({"prefill": 1.0}, "prefill is 1.0"),
        ({"prefill": -0.1}, "prefill is -0.1"),
        ({"inner_temperature": 0.0}, "inner_temperature is 0.0"),
        ({"annealed": 2}, "annealed is 2, but cspd-compat shares the noise of every step"),
        ({"iterations": 10}, "iterations is 10"),
    ],
)
def test_bad_requests_get_one_line(changes, line):
    with pytest.raises(ValueError, match="^" + line) as found:
        generate_masked(small(), [0, 1], noise=Noise.from_seed(0, 2), **{"drafter": small(1)} | options(**changes))
    assert "\n" not in str(found.value)


def test_the_default_is_the_published_one():
    assert cspd_compat.INNER_TEMPERATURE == CSpDCompat().inner_temperature == 42
