"""Lossy rules emit exactly the distribution they say, and the drift they report is the distance it lies from the target's."""

import pytest
import torch

from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored
from mmspec.core.rules.block import Block
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.lossy.ensemble import Ensemble
from mmspec.core.rules.lossy.lenience import Lenience
from mmspec.core.rules.lossy.rollback import Rollback
from mmspec.core.rules.lossy.tolerance import Tolerance
from mmspec.core.rules.lossy.top_k import ByDistance, TopKFloor, TopKGap
from mmspec.core.rules.lossy.typical import Typical
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.core.rules.transform import Chow, Contrastive, Deferral, TokenDeferral, Transformed
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, most_likely, sampled, top
from mmspec.drafters.trees.static import StaticTree, Template
from tests.oracles.tables import Table, TableTarget, first_value_distribution, one_round, pair, round_outcomes, run_loop

TINY = 1e-9
SAMPLED = Chain(sampled)
TREE = StaticTree(Template.branching((2, 2)), top)

RATIO = [Ensemble(0.8), Ensemble(0.3), Lenience(0.8), Lenience(0.4)]
GREEDY_LIKE = [
    Typical(),
    Typical(0.5, 0.6),
    TopKGap(),
    TopKGap(2, 0.7),
    TopKFloor(),
    TopKFloor(3, 0.2),
    ByDistance(),
    ByDistance(1),
    Rollback(),
    Rollback(1.2),
]
TOLERANCE = [Tolerance(1), Tolerance(2), Tolerance(4)]
TRANSFORMED = [
    Transformed(Chow(0.5)),
    Transformed(Deferral(0.3)),
    Transformed(TokenDeferral(0.5)),
    Transformed(Contrastive(0.1, 0.5)),
    Transformed(Contrastive(0.3, 1.0), Block()),
]


def name(rule) -> str:
    return repr(rule).replace("budget=None", "")


def distributions(target: TableTarget, drafter: TableTarget) -> tuple[Categorical, Categorical]:
    """p and q at the first output position."""
    return target.table.distribution(torch.tensor(1)), drafter.table.distribution(torch.tensor(1))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return 0.5 * (one - other).abs().sum().item()


@pytest.mark.parametrize("rule", RATIO + GREEDY_LIKE + TOLERANCE + TRANSFORMED, ids=name)
def test_output_distribution_is_the_enumerated_distribution(rule):
    for seed in range(6):
        target, drafter = pair(3, 3, seed, zeros=0.3)
        distribution = first_value_distribution(target, ModelDrafter(drafter, SAMPLED), rule)
        assert (distribution - rule.output_distribution(*distributions(target, drafter)).probs()).abs().max() < TINY


@pytest.mark.parametrize("rule", [*RATIO, *TOLERANCE], ids=name)
def test_output_distribution_of_deterministic_draft_tokens(rule):
    for seed in range(3):
        target, drafter = pair(3, 3, seed)
        p, q = distributions(target, drafter)
        point = Categorical.point(q.mode(), 3, torch.float64)
        distribution = first_value_distribution(target, ModelDrafter(drafter, Chain(most_likely)), rule)
        assert (distribution - rule.output_distribution(p, point).probs()).abs().max() < TINY


@pytest.mark.parametrize("weight", [0.9, 0.5, 0.1])
def test_ensemble_emits_the_mixture(weight):
    target, drafter = pair(3, 3, 1)
    p, q = distributions(target, drafter)
    said = Ensemble(weight).output_distribution(p, q).probs()
    assert (said - (weight * p.probs() + (1 - weight) * q.probs())).abs().max() < TINY


def test_lenience_raises_no_value_above_its_bound():
    for seed in range(20):
        target, drafter = pair(3, 3, seed)
        p, q = distributions(target, drafter)
        assert (Lenience(0.6).output_distribution(p, q).probs() <= p.probs() / 0.6 + TINY).all()


# --- the meter --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RATIO + TRANSFORMED, ids=name)
def test_mean_drift_is_the_distance(rule):
    """Exactly, over all outcomes: the excess is an unbiased estimate, and the closed forms are the distance itself."""
    for seed in range(4):
        target, drafter = pair(3, 3, seed)
        outcomes = round_outcomes(target, ModelDrafter(drafter, SAMPLED), rule, most=2, length=1)
        distribution = outcomes.distribution(outcomes.values[:, 0], 3)
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        assert drift == pytest.approx(distance(distribution, target.table.probs[1]), abs=TINY)


@pytest.mark.parametrize("rule", TOLERANCE, ids=name)
@pytest.mark.parametrize("draw", [most_likely, sampled])
def test_tolerance_meters_its_distance_or_a_bound(rule, draw):
    for seed in range(4):
        target, drafter = pair(3, 3, seed)
        outcomes = round_outcomes(target, ModelDrafter(drafter, Chain(draw)), rule, most=2, length=1)
        spent = distance(outcomes.distribution(outcomes.values[:, 0], 3), target.table.probs[1])
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        assert drift >= spent - TINY
        assert draw is sampled or drift == pytest.approx(spent, abs=TINY)


@pytest.mark.parametrize("rule", GREEDY_LIKE, ids=name)
def test_greedy_like_rules_meter_a_bound(rule):
    for seed in range(4):
        target, drafter = pair(3, 3, seed)
        outcomes = round_outcomes(target, ModelDrafter(drafter, SAMPLED), rule, most=2, length=1)
        distribution, greedy = outcomes.distribution(outcomes.values[:, 0], 3), target.table.greedy().probs[1]
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        assert drift >= distance(distribution, greedy) - TINY


@pytest.mark.parametrize("rule", RATIO + TOLERANCE + TRANSFORMED, ids=name)
def test_drift_bounds_the_distance_of_whole_runs(rule):
    """The promise of the meter: the joint distribution of the output lies no farther from the target's than the mean drift spent."""
    target, drafter = pair(2, 6, 1)
    shaped = ModelDrafter(drafter, SAMPLED)
    outcomes = round_outcomes(target, shaped, rule, most=3, length=2, once=not isinstance(rule, Tolerance))
    mass = torch.zeros(1, dtype=torch.float64)
    for level in range(1, 4):
        mass = target.table.extend(mass, level - 1)
        here = (outcomes.values >= 0).sum(1) == level
        codes = (outcomes.values[here, :level] * 2 ** torch.arange(level - 1, -1, -1)).sum(1)
        mass = mass.index_add(0, codes, outcomes.weights[here])
    drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
    assert distance(mass, target.table.joint(3)) <= drift + TINY


@pytest.mark.parametrize(
    ("rule", "draw", "neighbour"),
    [
        (Ensemble(0.8), sampled, Ensemble(0.77)),
        (Ensemble(0.3), sampled, Ensemble(0.27)),
        (Ensemble(0.6), most_likely, Ensemble(0.57)),
        (Tolerance(3), most_likely, Tolerance(4)),
        (Tolerance(2), most_likely, Tolerance(1)),
        (Lenience(0.5), sampled, Lenience(0.48)),
        (Lenience(0.5), most_likely, Lenience(0.48)),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_drift_measured_online_is_the_distance(rule, draw, neighbour):
    """1e5 independent draws with the real noise: the mean of the meter within 2 % of the true distance; a nearby knob is off."""
    rows = 100_000
    target, drafter = pair(3, 3, 17, zeros=0.0)
    p, q = distributions(target, drafter)
    truth = distance(
        rule.output_distribution(p, q if draw is sampled else Categorical.point(q.mode(), 3, torch.float64)).probs(), p.probs()
    )
    assert truth > 0.05
    noise = Noise.from_seed(0, rows)
    _, verdict = one_round(target, ModelDrafter(drafter, Chain(draw)), rule, noise, rows, 2, 1)
    assert verdict.drift.mean().item() == pytest.approx(truth, rel=0.02)
    first = torch.bincount(verdict.values[:, 0], minlength=3) / rows
    assert distance(first, p.probs()) == pytest.approx(truth, rel=0.05)
    _, other = one_round(target, ModelDrafter(drafter, Chain(draw)), neighbour, noise, rows, 2, 1)
    assert other.drift.mean().item() != pytest.approx(truth, rel=0.02)


# --- knobs and budgets ------------------------------------------------------------------------------------------------

EXACT = [
    (Ensemble(1.0), Token()),
    (Lenience(1.0), Token()),
    (Tolerance(1), Match()),
    (Typical(epsilon=1.0, delta=torch.inf), Greedy()),
    (TopKGap(beta=1), Greedy()),
    (TopKGap(tau=-1.0), Greedy()),
    (TopKFloor(k=1, tau=0.0), Greedy()),
    (TopKFloor(k=3, tau=0.5), Greedy()),
    (ByDistance(0), Greedy()),
    (Rollback(threshold=-1.0), Greedy()),
    (Transformed(Chow(-0.01)), Token()),
    (Transformed(Deferral(-torch.inf)), Token()),
    (Transformed(TokenDeferral(-0.01)), Token()),
    (Transformed(Contrastive(0.0, 0.0)), Token()),
    (Transformed(Contrastive(0.0, 0.0), Block()), Block()),
]
SPENT = [
    (Ensemble(0.3, budget=0), Token()),
    (Lenience(0.3, budget=0), Token()),
    (Tolerance(4, budget=0), Match()),
    (Typical(budget=0), Greedy()),
    (TopKGap(budget=0), Greedy()),
    (TopKFloor(budget=0), Greedy()),
    (ByDistance(budget=0), Greedy()),
    (Rollback(budget=0), Greedy()),
]
ROWS, MOST = 256, 6


def tokens(rule, shape=SAMPLED, seed: int = 0, rows: int = ROWS) -> list[list[int]]:
    target, drafter = pair(3, MOST + 3, 1)
    return run_loop(target, ModelDrafter(drafter, shape), rule, Noise.from_seed(seed, rows), rows, MOST, 3).outputs


@pytest.mark.parametrize(("rule", "exact"), EXACT + SPENT, ids=name)
def test_exact_settings_give_the_tokens_of_the_exact_rule(rule, exact):
    assert tokens(rule) == tokens(exact)
    if not rule.uses_q and not isinstance(rule, Transformed):
        assert tokens(rule, TREE) == tokens(exact, TREE)


@pytest.mark.parametrize(
    "rule",
    [Ensemble(0.3), Lenience(0.3), Tolerance(4), Typical(), TopKGap(), TopKFloor(), ByDistance(1), Rollback(), *TRANSFORMED],
    ids=name,
)
def test_lossy_settings_differ(rule):
    """Power: the comparison above would notice a rule that is not exact."""
    exact = Token() if rule.uses_q else Match() if isinstance(rule, Tolerance) else Greedy()
    assert tokens(rule) != tokens(exact)


@pytest.mark.parametrize(
    "rule", [Ensemble(1.0), Lenience(1.0), Tolerance(1), TopKGap(beta=1), TopKFloor(k=1), Transformed(Contrastive(0.0, 0.0))], ids=name
)
def test_exact_settings_spend_nothing(rule):
    target, drafter = pair(3, 5, 2)
    outcomes = round_outcomes(target, ModelDrafter(drafter, SAMPLED), rule, most=3, length=2, once=not isinstance(rule, Tolerance))
    assert outcomes.extra["drift"].abs().max() < TINY
    assert outcomes.extra["drift"].min() >= 0


@pytest.mark.parametrize("rule", [Ensemble, Lenience])
@pytest.mark.parametrize("draw", [sampled, most_likely])
def test_a_spent_budget_is_exact_from_there_on(rule, draw):
    """Budgets run out inside a round: once a draft token has cost something, the next position follows the target's own conditional."""
    seen = 0
    for seed in range(8):
        target, drafter = pair(3, 5, seed)
        shaped = ModelDrafter(drafter, Chain(draw))
        outcomes = round_outcomes(target, shaped, rule(0.4, budget=1e-12), most=3, length=2)
        values, weights = outcomes.values, outcomes.weights
        p, q = target.table.probs[1], drafter.table.probs[1]
        for first in range(3):
            costs = p[first] < q[first] if draw is sampled else first == q.argmax() and p[first] < 1
            here = (values[:, 0] == first) & (values[:, 1] >= 0)
            if costs and weights[here].sum() > 1e-6:
                second = torch.zeros(3, dtype=torch.float64).index_add_(0, values[here, 1], weights[here])
                assert (second / second.sum() - target.table.probs[3 + first]).abs().max() < 1e-8
                seen += 1
    assert seen >= 4


@pytest.mark.parametrize(
    "rule",
    [Ensemble(0.3, 1.0), Lenience(0.3, 1.0), Tolerance(4, 1.0), Typical(budget=1.0), TopKGap(budget=1.0), TopKFloor(budget=1.0)],
    ids=name,
)
@pytest.mark.parametrize("shape", [SAMPLED, TREE])
def test_budgets_cap_the_drift_of_every_row(rule, shape):
    if rule.uses_q and shape is TREE:
        return
    rows, most = 256, 12
    target = TableTarget(Table.random(3, 6, 5))
    drafter = ModelDrafter(TableTarget(Table.random(3, 6, 6)), shape)

    def spent(rule) -> torch.Tensor:
        total, stopping = torch.zeros(rows, dtype=torch.float64), DefaultStopping(rows, most)
        for step in decode(target, drafter, rule, rows, stopping=stopping, noise=Noise.from_seed(0, rows), control=Fixed(3)):
            total += torch.tensor(step.committed.drift, dtype=torch.float64)
            running = step.verdict.pending.drift.double()
            assert (running - total).abs().max() < 1e-6
        return total

    free = type(rule)(*[getattr(rule, field) for field in rule.__dataclass_fields__ if field != "budget"])
    largest = 1.0 if shape is SAMPLED else 2.0  # what one level can spend: one draft token, or two siblings
    assert spent(free).max() > rule.budget + largest
    assert spent(rule).max() <= rule.budget + largest


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Ensemble(0), "weight is 0"),
        (lambda: Ensemble(1.1), "weight is 1.1"),
        (lambda: Lenience(0), "lenience is 0"),
        (lambda: Lenience(2), "lenience is 2"),
        (lambda: Tolerance(0), "tau is 0"),
        (lambda: TopKGap(0), "beta is 0"),
        (lambda: TopKFloor(0), "k is 0"),
        (lambda: ByDistance(-1), "epsilon is -1"),
        (lambda: TopKFloor(tau=-0.1), "tau is -0.1"),
        (lambda: TopKFloor(tau=1.0), "tau is 1.0"),
        (lambda: TopKFloor(tau=float("nan")), "tau is nan"),
        (lambda: Ensemble(budget=-1), "budget is -1"),
        (lambda: Typical(budget=float("nan")), "budget is nan"),
        (lambda: Rollback(budget=-0.5), "budget is -0.5"),
    ],
)
def test_bad_knobs_are_refused_in_one_line(make, words):
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


# --- top k with a floor -----------------------------------------------------------------------------------------------


def draft_tokens_kept(rule, probs: list[float], draft_tokens: list[int]) -> list[bool]:
    """Which of `draft_tokens`, each judged alone, `rule` keeps where the target's distribution is `probs`; a value committed otherwise is
    the best."""
    rows, best = len(draft_tokens), max(range(len(probs)), key=lambda value: (probs[value], -value))
    root = Draft.root(torch.zeros(rows, dtype=torch.long), torch.zeros(rows, dtype=torch.long))
    draft = root.extend(torch.tensor(draft_tokens)[:, None], torch.zeros(rows, 1, dtype=torch.long), linear=True)
    distribution = torch.tensor(probs, dtype=torch.float64).log().expand(rows, 2, -1)
    verdict = rule(draft, Scored(Categorical(distribution)), Noise.from_seed(0, rows))
    kept = (verdict.accepted == 1).tolist()
    assert [row[0] for row in verdict.values.tolist()] == [x if keep else best for x, keep in zip(draft_tokens, kept, strict=True)]
    return kept


class TopP(TopKFloor):
    """The published bug's name taken at its word: `tau` as a nucleus, the mass of the values ranked ahead."""

    def passes(self, p, x):
        ahead = p.scores > p.scores.gather(-1, x[..., None])
        return (ahead.sum(-1) < self.k) & ((p.probs() * ahead).sum(-1) < self.tau)


class Either(TopKFloor):
    """Rank or floor, where both are asked for."""

    def passes(self, p, x):
        ahead = p.scores > p.scores.gather(-1, x[..., None])
        return (ahead.sum(-1) < self.k) | (p.prob(x) > self.tau)


class Tied(TopKFloor):
    """Ties ranked alike: at k = 1 every value as likely as the best passes."""

    def passes(self, p, x):
        ahead = p.scores > p.scores.gather(-1, x[..., None])
        return (ahead.sum(-1) < self.k) & (p.prob(x) > self.tau)


EVERY = [0, 1, 2, 3, 4]
JUDGED = [
    (2, 0.1, [0.5, 0.3, 0.15, 0.05, 0.0], [True, True, False, False, False]),  # the rank decides
    (3, 0.2, [0.5, 0.3, 0.15, 0.05, 0.0], [True, True, False, False, False]),  # the floor decides
    (2, 0.1, [0.05, 0.91, 0.02, 0.01, 0.01], [False, True, False, False, False]),
    (2, 0.3, [0.2, 0.19, 0.21, 0.2, 0.2], [False, False, True, False, False]),  # nothing above the floor: the best alone
    (1, 0.0, [0.1, 0.3, 0.3, 0.3, 0.0], [False, True, False, False, False]),  # ties rank by number, as the mode does
    (2, 0.0, [0.1, 0.3, 0.3, 0.3, 0.0], [False, True, True, False, False]),
]


def agrees(kind) -> bool:
    """The check: top k AND above the floor, the best always, on every case above."""
    return all(draft_tokens_kept(kind(k, tau), probs, EVERY) == kept for k, tau, probs, kept in JUDGED)


def test_a_draft_token_passes_by_rank_and_floor_and_the_best_always():
    assert agrees(TopKFloor)


@pytest.mark.parametrize("mutant", [TopP, Either, Tied])
def test_published_misreadings_of_the_rule_are_seen(mutant):
    assert not agrees(mutant)


def test_one_position_drifts_by_its_distance_to_greedy_exactly():
    """Not only a bound there: the mean count of departures is the distance between the output distribution and the greedy point mass."""
    for seed in range(6):
        target, drafter = pair(4, 3, seed)
        outcomes = round_outcomes(target, ModelDrafter(drafter, SAMPLED), TopKFloor(3, 0.05), most=2, length=1)
        distribution, greedy = outcomes.distribution(outcomes.values[:, 0], 4), target.table.greedy().probs[1]
        drift = (outcomes.weights * outcomes.extra["drift"]).sum().item()
        assert drift == pytest.approx(distance(distribution, greedy), abs=TINY)


def branches(*, greedy_first: bool) -> Draft:
    """One committed value and two branches of draft tokens: 0 -> 0 and 1 -> 0 -> 0, in either order of their heads."""
    heads = [0, 1] if greedy_first else [1, 0]
    short, long = heads.index(0) + 1, heads.index(1) + 1
    nodes = torch.tensor([[*heads, 0, 0, 0]])
    parents = torch.tensor([[0, 0, short, long, 4]])
    return Draft.root(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)).extend(nodes, parents, width=2, levels=3)


@pytest.mark.parametrize("greedy_first", [True, False])
def test_the_longest_branch_that_passes_wins(greedy_first):
    draft = branches(greedy_first=greedy_first)
    distribution = torch.tensor([0.6, 0.4], dtype=torch.float64).log().expand(1, draft.size, -1)
    verdict = TopKFloor()(draft, Scored(Categorical(distribution)), Noise.from_seed(0, 1))
    assert (verdict.accepted.item(), verdict.values[0, :4].tolist(), verdict.drift.item()) == (3, [1, 0, 0, 0], 1.0)
    verdict = TopKFloor(k=1)(draft, Scored(Categorical(distribution)), Noise.from_seed(0, 1))
    assert (verdict.accepted.item(), verdict.values[0, :3].tolist(), verdict.drift.item()) == (2, [0, 0, 0], 0.0)


def test_distance_is_that_of_numbers():
    """Values 0 to 4, the best is 3, and 4 cannot come: 3 itself passes, and those near it that can."""
    p = Categorical(torch.tensor([0.3, 0.1, 0.1, 0.5, 0.0]).log().expand(5, 5))
    assert ByDistance(1).passes(p, torch.arange(5)).tolist() == [False, False, True, True, False]
    assert ByDistance(2).passes(p, torch.arange(5)).tolist() == [False, True, True, True, False]
