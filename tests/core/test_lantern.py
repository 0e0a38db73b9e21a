"""LANTERN and LANTERN++: neighbours by the decoder's geometry, mass absorbed within its bound, and the cost equal to the gain."""

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.lossy.lantern import Lantern, LanternGreedy, LanternPlus, Neighbours, absorbed, normalised
from mmspec.core.rules.token import Token
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, most_likely, sampled, top
from mmspec.drafters.trees.static import StaticTree, Template
from tests.oracles.relaxed import SEEN, TINY, distance, families, finished, identity_error, many, path_drift, point_error, same, window
from tests.oracles.tables import first_value_distribution, one_round, pair, round_outcomes, run_loop

SIZE = 20


def codebook(codes: int, width: int = 4, seed: int = 0) -> torch.Tensor:
    """Rows of very different lengths."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(codes, width, generator=g) * (3 * torch.rand(codes, 1, generator=g) + 0.1)


NEAR = Neighbours.of(normalised(codebook(SIZE - 2)), 4)  # the last two values are controls
THREE = Neighbours.of(codebook(3), 2)
RULES = [Lantern(NEAR, 0.05, 4), Lantern(NEAR, 0.4, 3), Lantern(NEAR, 0.4, 1), LanternPlus(NEAR, 1.5, 4), LanternPlus(NEAR, 5.0, 4)]


def name(rule) -> str:
    return type(rule).__name__ + str(getattr(rule, "delta", getattr(rule, "lam", "")))


# --- neighbours -------------------------------------------------------------------------------------------------------


def by_hand(points: torch.Tensor, k: int) -> torch.Tensor:
    """Nearest first, itself excluded, ties by number: from the whole matrix of distances."""
    whole = (points[:, None] - points).square().sum(-1).fill_diagonal_(torch.inf)
    return whole.sort(dim=-1, stable=True).indices[:, :k]


@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_neighbours_are_the_nearest_codes(monkeypatch, block):
    monkeypatch.setattr("mmspec.core.rules.lossy.lantern._ENTRIES", block * 40)
    points = codebook(40).double()
    assert torch.equal(Neighbours.of(points, 11).table.long(), by_hand(points, 11))
    twins = torch.arange(5).repeat(8)[:, None].double()  # eight copies of each
    table = Neighbours.of(twins, 7).table.long()
    assert (table % 5 == torch.arange(40)[:, None] % 5).all()
    assert (table != torch.arange(40)[:, None]).all()
    assert (table.diff(dim=1) > 0).all()


def test_normalised_neighbours_are_those_of_the_angle():
    """A quantiser that normalises compares directions: the raw rows' order is another one."""
    points = codebook(40)
    unit = points.double() / points.double().norm(dim=-1, keepdim=True)
    by_angle = (unit @ unit.T).fill_diagonal_(-2).argsort(-1, descending=True)[:, :5]
    assert torch.equal(Neighbours.of(normalised(points), 5).table.long(), by_angle)
    raw = Neighbours.of(points, 5).table.long()  # the published mistake
    assert (raw != by_angle).any(-1).double().mean() > 0.5


def test_controls_have_no_neighbours():
    assert (NEAR.near(torch.tensor([SIZE - 2, SIZE - 1, 10_000]), 4) == -1).all()
    assert (NEAR.near(torch.arange(SIZE - 2), 4) < SIZE - 2).all()
    p = Categorical(torch.zeros(SIZE, SIZE))
    mass = absorbed(p, torch.arange(SIZE), NEAR, 4, 1.0)
    assert mass.tolist() == pytest.approx([4 / SIZE] * (SIZE - 2) + [0, 0])


def test_codes_may_be_numbered_otherwise():
    values = torch.randperm(40, generator=torch.Generator().manual_seed(0))[: SIZE - 2]
    placed = NEAR.placed(values)
    assert torch.equal(placed.near(values, 4), values[NEAR.near(torch.arange(SIZE - 2), 4)])
    others = torch.tensor([v for v in range(50) if v not in values.tolist()])
    assert (placed.near(others, 4) == -1).all()


def test_absorbed_mass_is_the_longest_prefix_that_fits():
    for p, _ in many(SIZE, 3):
        for delta in (0.0, 0.07, 0.31):
            found = absorbed(Categorical.of(p.expand(SIZE, SIZE)), torch.arange(SIZE), NEAR, 4, delta)
            for x in range(SIZE):
                total = 0.0
                for y in [y for y in NEAR.near(torch.tensor(x), 4).tolist() if y >= 0]:
                    if total + p[y].item() > delta + 1e-15:
                        break
                    total += p[y].item()
                assert found[x].item() == pytest.approx(total, abs=TINY)
                assert found[x] <= delta


def test_lantern_plus_keeps_its_factor():
    for p, _ in many(SIZE, 3):
        for lam in (1.0, 1.5, 4.0):
            more = LanternPlus(NEAR, lam, 4).absorbed(Categorical.of(p.expand(SIZE, SIZE)), torch.arange(SIZE))
            assert (p + more <= lam * p + TINY).all()
            assert (more[p == 0] == 0).all()  # hopeless draft tokens stay so


# --- the distribution and its meter --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_what_it_costs_is_what_it_gains(rule):
    for p, q in many(SIZE):
        assert identity_error(rule, p, q) < TINY
        assert point_error(rule, p) < TINY


def spent(rule, p: torch.Tensor, q: torch.Tensor) -> float:
    return distance(rule.output_distribution(Categorical.of(p), Categorical.of(q)).probs(), p)


def test_there_is_something_to_gain():
    p, q = families(SIZE)["broad"]
    gains = [spent(rule, p, q) for rule in RULES]
    assert min(gains) > 0.005
    assert max(gains) > 0.1


def test_delta_is_no_bound_on_the_distance():
    """It caps what one draft token absorbs; the output may lie farther off."""
    assert max(spent(Lantern(NEAR, 0.05, 4), p, q) for p, q in many(SIZE)) > 0.1


@pytest.mark.parametrize("rule", [Lantern(THREE, 0.3, 2), LanternPlus(THREE, 3.0, 2)], ids=name)
@pytest.mark.parametrize("draw", [sampled, most_likely])
def test_output_distribution_is_the_enumerated_distribution(rule, draw):
    for seed in range(3):
        target, drafter = pair(3, 3, seed, zeros=0.2)
        p, q = (world.table.distribution(torch.tensor(1)) for world in (target, drafter))
        q = q if draw is sampled else Categorical.point(q.mode(), 3, torch.float64)
        distribution = first_value_distribution(target, ModelDrafter(drafter, Chain(draw)), rule)
        assert (distribution - rule.output_distribution(p, q).probs()).abs().max() < TINY
        outcomes = round_outcomes(target, ModelDrafter(drafter, Chain(draw)), rule, most=2, length=1)
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        assert drift == pytest.approx(distance(distribution, p.probs()), abs=TINY)


@pytest.mark.parametrize("rule", [Lantern(THREE, 0.3, 2), LanternPlus(THREE, 3.0, 2)], ids=name)
def test_the_meter_over_several_positions(rule):
    """Mean drift of a round of three draft tokens: exact by enumeration, and within 5 % over 50 000 rows with the real noise."""
    target, drafter = pair(3, 6, 17, zeros=0.0)
    truth = path_drift(rule, target.table.probs, drafter.table.probs, 3, 3)
    outcomes = round_outcomes(target, ModelDrafter(drafter), rule, most=4, length=3)
    assert (outcomes.weights * outcomes.extra["drift"]).sum().item() == pytest.approx(truth, abs=TINY)
    rows = 50_000
    _, verdict = one_round(target, ModelDrafter(drafter), rule, Noise.from_seed(0, rows), rows, 4, 3)
    assert truth > 0.03
    assert verdict.drift.mean().item() == pytest.approx(truth, rel=0.05)


# --- exact settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["drawn", "uniform", "point"])
def test_exact_settings_are_the_token_rule_bit_for_bit(kind):
    near = Neighbours.of(codebook(30), 8)
    draft, scored, noise = window(32, 6, 200, kind)
    draft = finished(draft, 5)
    exact = Token()(draft, scored, noise)
    for rule in (Lantern(near, 0.0, 8), LanternPlus(near, 1.0, 8), Lantern(near, 0.3, 8, budget=0), LanternPlus(near, 3.0, 8, budget=0)):
        verdict = rule(draft, scored, noise)
        assert same(verdict, exact)
        assert (verdict.drift == 0).all()
    for rule in (Lantern(near, 0.3, 8), LanternPlus(near, 3.0, 8)):
        verdict = rule(draft, scored, noise)
        assert not same(verdict, exact)
        assert (verdict.accepted >= exact.accepted).all()
        assert verdict.drift.isfinite().all()


def test_temperature_zero_is_greedy():
    """A point mass leaves nothing to absorb."""
    draft, scored, noise = window(32, 6, 64)
    near = Neighbours.of(codebook(30), 8)
    cold = type(scored)(Categorical.point(scored.p.mode(), 32))
    for rule in (Lantern(near, 0.9, 8), LanternPlus(near, 5.0, 8)):
        verdict = rule(draft, cold, noise)
        assert torch.equal(verdict.values, Greedy()(draft, cold, noise).values)
        assert (verdict.drift == 0).all()


# --- greedy form ------------------------------------------------------------------------------------------------------

TREE = StaticTree(Template.branching((2, 2)), top)
GREEDY = [LanternGreedy(Lantern(THREE, 0.6, 2)), LanternGreedy(LanternPlus(THREE, 4.0, 2))]


@pytest.mark.parametrize("rule", GREEDY, ids=repr)
def test_greedy_form_emits_what_it_says_and_bounds_its_distance(rule):
    departed = 0.0
    for seed in range(6):
        target, drafter = pair(3, 3, seed)
        distribution = first_value_distribution(target, ModelDrafter(drafter), rule)
        p, q = (world.table.distribution(torch.tensor(1)) for world in (target, drafter))
        assert (distribution - rule.output_distribution(p, q).probs()).abs().max() < TINY
        outcomes = round_outcomes(target, ModelDrafter(drafter), rule, most=2, length=1)
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        departed = max(departed, distance(distribution, target.table.greedy().probs[1]))
        assert drift >= distance(distribution, target.table.greedy().probs[1]) - TINY
    assert departed > 0.1


def test_greedy_form_turns_greedy():
    def tokens(rule, shape):
        target, drafter = pair(3, 9, 1)
        return run_loop(target, ModelDrafter(drafter, shape), rule, Noise.from_seed(0, 64), 64, 6, 3).outputs

    for shape in (Chain(sampled), TREE):
        exact = tokens(Greedy(), shape)
        assert tokens(LanternGreedy(Lantern(THREE, 0.0, 2)), shape) == exact
        assert tokens(LanternGreedy(LanternPlus(THREE, 1.0, 2)), shape) == exact
        assert tokens(LanternGreedy(Lantern(THREE, 0.9, 2, budget=0)), shape) == exact
        assert tokens(LanternGreedy(Lantern(THREE, 0.9, 2)), shape) != exact


# --- published faults, planted ----------------------------------------------------------------------------------------


class ZeroesTheList(Lantern):
    """After a refusal p loses the draft token and all its k neighbours, if any was absorbed; all codes alike when nothing is left."""

    def replacement(self, p, q, x):
        rest = p.probs().scatter(-1, x[..., None], 0)
        near = self.neighbours.near(x, self.k)
        near = torch.where((near >= 0) & (self.absorbed(p, x) > 0)[..., None], near, x[..., None])
        rest = rest.scatter(-1, near, 0)
        return Categorical.of(torch.where(rest.sum(-1, keepdim=True) > 0, rest, 1.0))


class UniformFallback(Lantern):
    """All codes alike where the residual leaves nothing, as it does where p and q agree but for rounding, and for p a point mass."""

    def replacement(self, p, q, x):
        rest = p.without(x).probs() if q is None else (p.probs() - q.probs()).clamp(min=0)
        rest = rest.scatter(-1, x[..., None], 0)
        near = self.neighbours.near(x, self.k)
        rest = torch.where((near >= 0).any(-1, keepdim=True), rest.scatter(-1, near.clamp_min(0), 0), rest)
        return Categorical.of(torch.where(rest.sum(-1, keepdim=True) > 0, rest, 1.0))


class ResidualIsP(Lantern):
    """After a refusal, draw from p."""

    def replacement(self, p, q, x):
        return p


class ByItsOwnMass(Lantern):
    """Judged relative to p(x), so that a draft token p rules out is judged by 0/0, which no number is below."""

    def accept_prob(self, p, q, x):
        own = p.prob(x)
        return (own / own * super().accept_prob(p, q, x)).clamp(max=1)


@pytest.mark.parametrize("mutant", [ZeroesTheList, UniformFallback, ResidualIsP, ByItsOwnMass])
def test_planted_faults_break_the_identity(mutant):
    def worst(kind):
        return max(identity_error(kind(NEAR, 0.4, 4), p, q) for p, q in many(SIZE, 4))

    assert worst(Lantern) < TINY
    assert worst(mutant) > SEEN


def test_a_uniform_fallback_emits_what_the_target_rules_out():
    """p has no mass outside the draft token's neighbours."""
    p = torch.zeros(SIZE, dtype=torch.float64)
    x = 0
    p[NEAR.near(torch.tensor(x), 2)] = 0.5
    q = torch.nn.functional.one_hot(torch.tensor(x), SIZE).double()
    for kind, wrong in ((Lantern, 0.0), (UniformFallback, 0.1)):
        distribution = kind(NEAR, 0.4, 2).output_distribution(Categorical.of(p), Categorical.of(q)).probs()
        assert (distribution[p == 0].sum() > wrong) == (kind is UniformFallback)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Lantern(NEAR, 1.5), "delta is 1.5"),
        (lambda: Lantern(NEAR, -0.1), "delta is -0.1"),
        (lambda: Lantern(NEAR, 0.1, 5), "k is 5"),
        (lambda: LanternPlus(NEAR, 0.5), "lam is 0.5"),
        (lambda: LanternPlus(NEAR, 2.0, 0), "k is 0"),
        (lambda: Lantern(NEAR, 0.1, 4, budget=-1), "budget is -1"),
        (lambda: Neighbours.of(codebook(4), 4), "k is 4"),
        (lambda: NEAR.placed(torch.arange(3)), "shape"),
    ],
)
def test_bad_knobs_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
