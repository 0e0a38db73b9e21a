"""Rules over denoising steps: exact by quadrature and by projected residuals, which planted bugs fail; what they accept is foretold."""

from dataclasses import replace

import pytest
import torch
from diffusers import DDPMParallelScheduler
from numpy.polynomial import legendre
from scipy import stats
from torch import Tensor

from mmspec.core.distributions.denoising_path import Denoiser, DenoisingPath
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.noise import Noise
from mmspec.core.records import PAD, Draft
from mmspec.core.rules.base import DISTRIBUTION_EXACT
from mmspec.core.rules.steps import BlockSteps, Steps, Stepwise
from mmspec.core.rules.token import Token
from tests.oracles.paths import FAIL, PASS, PathTarget, bias, one_round, path_pair, projection, residuals
from tests.oracles.tables import pair

RULES = [Stepwise(), BlockSteps()]
NAMES = [type(rule).__name__ for rule in RULES]
SIZES = [(2, 3), (3, 4), (4, 6)]  # numbers a token, steps a number


# --- the distribution ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("rule", [*RULES, Token()], ids=[*NAMES, "Token"])
def test_states_have_the_targets_distribution(rule, sizes, ragged):
    assert bias(*path_pair(*sizes), rule, 4000, 2, ragged=ragged, seed=50_000) > PASS


def test_steps_verified_from_the_left_have_the_targets_distribution():
    """Those kept and the one mended: what comes later has no say in which they are."""
    target, drafter = path_pair(3, 4)
    run = one_round(target, drafter, Stepwise(), 7000, 2, seed=9000)
    kept = _kept(run, Stepwise())
    seen = residuals(target, drafter, run.paths, run.before)[:, :2, 1:].flatten(1)
    verified = seen[torch.arange(seen.shape[1]) <= kept[:, None]]
    assert 7000 < len(verified) < 50_000
    assert stats.kstest(verified.numpy(), "norm").pvalue > PASS


def _kept(run, rule: Steps) -> Tensor:
    """[B] steps kept of a round: the states it committed that the drafter drew."""
    committed, drawn = run.verdict.values[:, :-1, 1:], run.draft.draft_tokens[:, :, 1:]
    return (committed == drawn).all(-1).flatten(1).long().cumprod(-1).sum(-1)


def _skipped(self: DenoisingPath, x: Tensor, first: Tensor, keys) -> Tensor:
    """Drafted states behind a mended one stay."""
    return torch.where((first < 1)[..., None, None], self.sample(keys), x)


class KeepsLaterTokens:
    """No rollback: the token that broke is mended in place, and those drafted behind it stay."""

    def __init__(self, rule: Steps):
        self.rule = rule

    def __call__(self, draft, scored, noise):
        verdict = self.rule(draft, scored, noise)
        column = torch.arange(verdict.values.shape[1])[:, None, None]
        drafted = torch.cat([draft.draft_tokens, verdict.values[:, -1:]], 1)
        values = torch.where(column > verdict.accepted[:, None, None, None], drafted, verdict.values)
        count = torch.full_like(verdict.count, draft.size - draft.roots)
        return replace(verdict, values=values, count=torch.maximum(count, verdict.count))


def drawn_apart(steps: int, gap: float) -> tuple[PathTarget, PathTarget]:
    """Two heads whose means are gap / sqrt(T) scales apart at every step, in a direction that turns with the state."""
    scheduler = DDPMParallelScheduler(
        1024, beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction", timestep_spacing="trailing", clip_sample=False
    )
    noise_schedule = NoiseSchedule.of(scheduler, steps, 0.1)
    apart = gap / steps**0.5 * noise_schedule.std / noise_schedule.gain.abs()

    def own(x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        return torch.tanh(x.flip(-1) + z)

    def theirs(x: Tensor, timesteps: Tensor, z: Tensor) -> Tensor:
        step = (timesteps[:, None] == noise_schedule.timesteps).long().argmax(-1)
        angle = 3 * x.sum(-1)
        return own(x, timesteps, z) + apart[step][:, None] * torch.stack([angle.cos(), angle.sin()], -1)

    return PathTarget(Denoiser(own, noise_schedule), 2), PathTarget(Denoiser(theirs, noise_schedule), 2)


MUTANTS = {
    "draws from p instead of what is left": (Gaussian, "residual", lambda self, q, x, weight=None: self),
    "skips redrawn": (DenoisingPath, "redrawn", _skipped),
    "keeps x_T for the next token": (DenoisingPath, "redrawn", lambda self, x, first, keys: _REDRAWN(self, x, first.clamp(min=1), keys)),
}
_REDRAWN, _RESIDUAL = DenoisingPath.redrawn, Gaussian.residual


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_bugs_show(monkeypatch, mutant, rule):
    monkeypatch.setattr(*MUTANTS[mutant])
    assert bias(*path_pair(2, 3), rule, 7000, 2) < FAIL


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_no_rollback_shows(rule):
    assert bias(*path_pair(2, 3), KeepsLaterTokens(rule), 7000, 2) < FAIL


def test_a_plain_reflection_behind_a_block_shows(monkeypatch):
    """Two steps a token, wide apart: a break behind the first step then is likely, and its weight small."""
    assert bias(*drawn_apart(2, 2.0), BlockSteps(), 20_000, 2) > PASS
    monkeypatch.setattr(Gaussian, "residual", lambda self, q, x, weight=None: _RESIDUAL(self, q, x))
    assert bias(*drawn_apart(2, 2.0), BlockSteps(), 20_000, 2) < FAIL


def test_steps_of_draft_tokens_that_are_none_show_in_a_block():
    """Draft tokens of a row that end before the round's last: what is behind them is no step of theirs."""

    class Unpadded(BlockSteps):
        def chances(self, p, q, x, valid):
            return super().chances(p, q, x, torch.ones_like(valid))

    assert bias(*path_pair(2, 3), Unpadded(), 7000, 2, ragged=True) < FAIL


# --- by quadrature ----------------------------------------------------------------------------------------------------

FAR = 5.5  # more than six scales from any mean


class Line:
    """One token of two steps in one dimension: p's and q's distributions of x_1 given x_2 = 0.3, and of x_0 given x_1."""

    scales = (0.7, 0.5)

    def means(self, x: Tensor | float) -> tuple[Tensor, Tensor]:
        x = torch.as_tensor(x, dtype=torch.float64)
        return torch.tanh(1.3 * x), torch.tanh(1.3 * x) - 0.5 - 0.2 * torch.sin(x)

    def distribution(self, step: int, x: Tensor | float) -> tuple[Gaussian, Gaussian]:
        return tuple(Gaussian(m[..., None], torch.full((*m.shape, 1), self.scales[step]).double()) for m in self.means(x))  # pyright: ignore[reportReturnType]


def _chances(rule: Steps, line: Line, x1: Tensor, x0: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """A rule's chances of both steps at drafted (x1, x0) [R], and the weights [R, 3]."""
    first, second = line.distribution(0, torch.full_like(x1, 0.3)), line.distribution(1, x1)
    p, q = (Gaussian(torch.stack([a.mean, b.mean], 1), torch.stack([a.scale, b.scale], 1)) for a, b in zip(first, second, strict=True))
    chance, weights = rule.chances(p, q, torch.stack([x1, x0], 1)[..., None], torch.ones(len(x1), 2, dtype=torch.bool))
    return chance[:, 0], chance[:, 1], weights


def _density(distribution: Gaussian, x: Tensor) -> Tensor:
    return distribution.log_prob(x[..., None]).exp()


def _halves(middle: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on both sides of `middle` [R], [R, 2 count]: integrands have a bend there."""
    node, weight = (torch.from_numpy(part) for part in legendre.leggauss(count))
    sides = [(torch.full_like(middle, -FAR), middle), (middle, torch.full_like(middle, FAR))]
    nodes = [(low + high)[:, None] / 2 + (high - low)[:, None] / 2 * node for low, high in sides]
    return torch.cat(nodes, 1), torch.cat([(high - low)[:, None] / 2 * weight for low, high in sides], 1)


def test_a_stepwise_token_has_the_targets_density():
    """Accepted, or reflected: both in closed form at every point. What is mended is read off the distribution the rule asks for."""
    line, x = Line(), torch.linspace(-FAR, FAR, 201, dtype=torch.float64)
    y1, y0 = (side.flatten() for side in torch.meshgrid(x, x, indexing="ij"))
    rule = Stepwise()

    def reflection(distribution: tuple[Gaussian, Gaussian], y: Tensor) -> Tensor:
        """What was drafted where `y` came out: a reflection is its own inverse."""
        own, theirs = distribution
        keys = Noise.from_seed(0, 1).value(torch.zeros(1, len(y), dtype=torch.long))  # none of them is used
        own, theirs = (Gaussian(distribution.mean[None], distribution.scale[None]) for distribution in (own, theirs))
        back = theirs.residual(own, y[None, :, None]).sample(keys)
        again = own.residual(theirs, back).sample(keys)[0, :, 0]
        assert (again - y).abs().max() < 1e-12
        return back[0, :, 0]

    first, second = line.distribution(0, torch.full_like(y1, 0.3)), line.distribution(1, y1)
    kept, twice, _ = _chances(rule, line, y1, y0)
    back1, back0 = reflection(first, y1), reflection(second, y0)
    refused, twice_refused = 1 - _chances(rule, line, back1, y0)[0], 1 - _chances(rule, line, y1, back0)[1]
    (p1, q1), (p0, q0) = first, second
    from_left = _density(q0, y0) * twice + _density(q0, back0) * twice_refused
    found = _density(q1, y1) * kept * from_left + _density(q1, back1) * refused * _density(p0, y0)
    goal = _density(p1, y1) * _density(p0, y0)
    assert (found - goal).abs().max() < 1e-9
    assert goal.max() > 0.3


def test_a_token_of_a_block_has_the_targets_density():
    """Every way to come to (x_1, x_0): both steps kept, the second drawn from what is left, or both."""
    line, rule = Line(), BlockSteps()
    p1, q1 = line.distribution(0, torch.tensor([0.3]).double())
    y, wide = (part[0] for part in _halves((p1.mean + q1.mean)[:, 0] / 2, 60))

    def second(y1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of x_1 = `y1` [R]: the chance that the first step is kept once the second is not, that the second is not, and p's weight."""
        own, theirs = line.distribution(1, y1)
        weight = _chances(rule, line, y1, y1)[2][:, 1]  # pyright: ignore[reportOptionalSubscript]
        half = (own.mean + theirs.mean)[:, 0] / 2 - line.scales[1] ** 2 * weight.log() / (own.mean - theirs.mean)[:, 0]
        x, step = _halves(half.clamp(-FAR, FAR), 60)
        many = y1[:, None].expand_as(x)
        first, kept, _ = _chances(rule, line, many.flatten(), x.flatten())
        drawn = _density(line.distribution(1, many.flatten())[1], x.flatten())
        return first.view_as(x)[:, 0], ((drawn * (1 - kept)).view_as(x) * step).sum(-1), weight

    head, lost, _ = second(y)
    none_kept = (_density(q1, y) * lost * (1 - head) * wide).sum()
    rows, x = torch.linspace(-3, 3, 61).double(), torch.linspace(-FAR, FAR, 201).double()
    y1, y0 = (side.flatten() for side in torch.meshgrid(rows, x, indexing="ij"))
    (own, theirs), (head, lost, weight) = line.distribution(1, y1), (part.repeat_interleave(201) for part in second(rows))
    left = (weight * _density(own, y0) - _density(theirs, y0)).clamp(min=0)
    mass = own.mass(theirs, y0[:, None], weight)
    mended = torch.where(mass > 0, left / mass.clamp(min=1e-300), 0)
    anew = (_density(p1, y1) - _density(q1, y1)).clamp(min=0) / p1.mass(q1, y1[:1, None], torch.ones(1).double())
    from_left = _density(theirs, y0) * _chances(rule, line, y1, y0)[1] + lost * head * mended
    found = _density(q1, y1) * from_left + none_kept * anew * _density(own, y0)
    goal = _density(p1, y1) * _density(own, y0)
    assert (found - goal).abs().max() < 1e-7
    assert goal.max() > 0.3


# --- what is accepted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES)
def test_a_block_keeps_as_many_steps_as_its_weights_say(sizes):
    """P(so many or more) = E[weight behind them], and never fewer than step by step."""
    target, drafter = path_pair(*sizes)
    blocks, singles = (_kept(one_round(target, drafter, rule, 7000, 2, seed=4), rule).double() for rule in (BlockSteps(), Stepwise()))
    run = one_round(target, drafter, BlockSteps(), 7000, 2, seed=4)
    p = target.distribution(run.draft.nodes[:, :-1]).steps(run.draft.draft_tokens)
    q = drafter.distribution(run.draft.nodes[:, :-1]).steps(run.draft.draft_tokens)
    ratios = p.log_ratio(q, run.draft.draft_tokens[:, :, 1:]).flatten(1).exp()
    weight, foretold = torch.ones(7000, dtype=torch.float64), []
    for step in range(ratios.shape[1]):
        weight = (weight * ratios[:, step]).clamp(max=1)
        foretold.append(weight.mean())
    for step, expected in enumerate(foretold):
        assert abs((blocks > step).double().mean() - expected) < 4 * (expected * (1 - expected) / 7000) ** 0.5 + 0.02
    assert blocks.mean() > singles.mean()


def test_paths_are_accepted_alike_at_any_number_of_steps_and_steps_are_not():
    gap, rows, paths, single, blocks = 1.0, 1600, [], [], []
    for steps in (8, 16, 32, 64):
        target, drafter = drawn_apart(steps, gap)
        accepted = [one_round(target, drafter, rule, rows, 1, seed=3).verdict.accepted.double().mean() for rule in (Token(), *RULES)]
        for found, one in zip((paths, single, blocks), accepted, strict=True):
            found.append(one.item())
        foretold = 2 * stats.norm.cdf(-gap / 2), (2 * stats.norm.cdf(-gap / steps**0.5 / 2)) ** steps
        for seen, expected in zip((paths[-1], single[-1]), foretold, strict=True):
            assert abs(seen - expected) < 4 * (expected * (1 - expected) / rows) ** 0.5 + 1e-3
    assert max(paths) < 1.1 * min(paths)  # their standard error is 2 %
    assert single == sorted(single, reverse=True)
    assert single[-1] < 0.5 * single[0]
    assert all(one <= block <= path + 0.02 for one, block, path in zip(single, blocks, paths, strict=True))


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_target_that_drafts_for_itself_is_never_refused(rule):
    target, _ = path_pair(3, 4)
    verdict = one_round(target, target, rule, 50, 3).verdict
    assert (verdict.accepted == 3).all()
    assert (verdict.judged == 3).all()
    assert verdict.expected is not None
    assert (verdict.expected < 1e-12).all()


# --- the round --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_token_is_a_draft_token_or_a_draft_token_mended(rule):
    """States before the break are the drafter's to the last bit; those behind are not; bonus tokens are the target's own draw."""
    target, drafter = path_pair(3, 4)
    run = one_round(target, drafter, rule, 400, 3, ragged=True)
    draft, verdict = run.draft, run.verdict
    budget = draft.valid[:, 1:].sum(-1)
    assert (verdict.accepted <= budget).all()
    assert torch.equal(verdict.judged, verdict.accepted + (budget > verdict.accepted))
    assert torch.equal(verdict.count, verdict.accepted + 1)
    noise = Noise.from_seed(0, 400)
    bonus = 0
    for row in range(400):
        count = int(verdict.accepted[row])
        assert torch.equal(verdict.values[row, :count], draft.draft_tokens[row, :count])
        last = verdict.values[row, count]
        assert torch.equal(verdict.pending.nodes[row, 0], last)
        if count < budget[row]:
            equal = (last == draft.draft_tokens[row, count]).all(-1)
            assert equal[0]  # x_T is shared
            broke = int(equal.long().cumprod(0).sum())
            assert not equal[broke:].any()
            assert broke < 5
        else:
            distribution = target.distribution(draft.nodes[row : row + 1, count : count + 1])
            own = distribution.sample(noise.value(torch.full((400, 1), count))[row : row + 1])
            assert torch.allclose(own[0, 0], last, atol=1e-12)
            bonus += 1
    assert 20 < bonus < 380


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_row_is_the_same_alone_and_in_a_batch(rule):
    target, drafter = path_pair(3, 4)
    many = one_round(target, drafter, rule, 6, 3).verdict
    for row in range(6):
        noise = Noise.from_seed(row, 1)
        begin = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[row : row + 1]
        pending = Draft.root(begin, torch.zeros(1, dtype=torch.long))
        draft = drafter.propose(pending, type("R", (), {"length": 3, "draft_tokens": torch.tensor([3])})(), noise)  # pyright: ignore[reportArgumentType]
        alone = rule(draft, target.score(draft), noise)
        assert torch.equal(alone.accepted, many.accepted[row : row + 1])
        assert torch.allclose(alone.values, many.values[row : row + 1], atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_without_draft_tokens_it_is_the_targets_own_draw_and_finished_rows_commit_nothing(rule):
    target, drafter = path_pair(3, 4)
    run = one_round(target, drafter, rule, 5, 0)
    own = target.distribution(run.draft.nodes).sample(Noise.from_seed(0, 5).value(torch.zeros(5, 1, dtype=torch.long)))
    assert torch.equal(run.verdict.values, own)
    pending = Draft.root(run.draft.nodes[:, 0], torch.zeros(5, dtype=torch.long), torch.tensor([True, True, False, True, False]))
    draft = drafter.propose(pending, type("R", (), {"length": 2, "draft_tokens": torch.full((5,), 2)})(), Noise.from_seed(0, 5))  # pyright: ignore[reportArgumentType]
    verdict = rule(draft, target.score(draft), Noise.from_seed(0, 5))
    assert (verdict.count[[2, 4]] == 0).all()
    assert (verdict.count[[0, 1, 3]] > 0).all()
    assert (verdict.pending.parents[[2, 4]] == PAD).all()


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_what_it_cannot_judge_is_refused(rule):
    assert rule.exactness == DISTRIBUTION_EXACT
    target, drafter = path_pair(2, 3)
    run = one_round(target, drafter, rule, 2, 2)
    scored, noise = target.score(run.draft), Noise.from_seed(0, 2)
    with pytest.raises(ValueError, match="judges the denoising steps of drawn tokens, but there are none here"):
        rule(replace(run.draft, q=None), scored, noise)
    with pytest.raises(ValueError, match="leave tree out"):
        rule(replace(run.draft, linear=False), scored, noise)
    table, _ = pair(2, 5, 1)
    session, pending = table.begin(2)
    ids = pending.extend_chain(torch.ones(2, 1, dtype=torch.long), torch.ones(2))
    with pytest.raises(ValueError, match="there are none here: take token"):
        rule(ids, session.score(ids), noise)


def test_a_block_asks_for_one_schedule():
    target, drafter = path_pair(2, 3)
    noise_schedule = drafter.denoiser.noise_schedule
    other = PathTarget(replace(drafter.denoiser, noise_schedule=replace(noise_schedule, std=1.1 * noise_schedule.std)), 2)
    with pytest.raises(ValueError, match="scales of target and draft differ"):
        one_round(target, other, BlockSteps(), 4, 2)
    assert bias(target, other, Stepwise(), 4000, 2) > PASS  # what is left is drawn by thinning there


def test_the_projection_sees_what_it_should():
    good = torch.randn(7000, 2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert projection(good) > PASS
    assert projection(good + 0.15 * (torch.arange(8).view(2, 4) == 5)) < FAIL
    together = good.clone()
    together[:, 1, 0] = 0.9 * good[:, 1, 0] + 0.19**0.5 * good[:, 0, 0]
    assert projection(together) < FAIL
