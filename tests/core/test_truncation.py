"""Distributions on their support equal tables, bit for bit: values that stay, draws, and everything that rules ask."""

import itertools

import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.distributions.deferred import DeferredCategorical
from mmspec.core.distributions.sparse import SparseCategorical
from mmspec.core.gumbel import LARGE
from mmspec.core.noise import Noise
from mmspec.core.processors import truncation
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline, Suppress, TopK, TopP, pipeline
from mmspec.core.processors.truncation import distribution_of
from mmspec.core.records import Draft, Scored
from mmspec.core.rules.match import Match
from mmspec.core.rules.token import Token
from mmspec.models.guidance import Guided

TEMPERATURES = (None, 0.7, (0.5, 1.1))
TOP_K = (None, 1, 50, (20, 40))
TOP_P = (None, 0.9, (0.3, 0.95))
MIN_P = (None, 0.05)
ROWS, NODES = 2, 3
HISTORY = History(torch.zeros(ROWS, 1).long(), torch.ones(ROWS, NODES, 1).bool(), torch.zeros(ROWS, NODES).long())
KEYS = Noise.from_seed(5, ROWS).value(torch.arange(NODES).expand(ROWS, NODES))


def logits(seed: int, size: int = LARGE, scale: float = 5.0, coarse: bool = False) -> torch.Tensor:
    drawn = scale * torch.randn(ROWS, NODES, size, generator=torch.Generator().manual_seed(seed))
    return drawn.bfloat16().float() if coarse else drawn


def settings() -> list[dict]:
    every = itertools.product(TEMPERATURES, TOP_K, TOP_P, MIN_P)
    return [dict(zip(("temperature", "top_k", "top_p", "min_p"), each, strict=True)) for each in every if any(each[1:])]


def pair(steps: Pipeline, scores: torch.Tensor) -> tuple[Categorical, SparseCategorical]:
    found = distribution_of(steps, scores, HISTORY)
    assert isinstance(found, SparseCategorical)
    return Categorical(steps(scores, HISTORY)), found


@pytest.mark.parametrize("coarse", [False, True], ids=["all scores distinct", "many equal scores"])
@pytest.mark.parametrize("size", [LARGE, LARGE + 77])
@pytest.mark.parametrize("given", settings(), ids=str)
def test_values_that_stay_and_draws(given, size, coarse):
    table, found = pair(pipeline(**given), logits(1, size, coarse=coarse))
    assert torch.equal(found.scores, table.scores)
    assert torch.equal(found.sample(KEYS), table.sample(KEYS))
    assert torch.equal(found.mode(), table.mode())


@pytest.mark.parametrize("given", [{"top_k": 50}, {"min_p": 0.05}, {"top_p": 0.9}, {"temperature": 0.7, "top_k": (20, 40)}], ids=str)
def test_a_bound_that_leaves_out_values_is_found(given, monkeypatch):
    real = truncation._bound

    def higher(*each):
        bound, total = real(*each)
        return bound + 0.5, total

    monkeypatch.setattr(truncation, "_bound", higher)
    table, found = pair(pipeline(**given), logits(1))
    assert not torch.equal(found.scores, table.scores)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_top_p_at_the_edge_of_a_value_is_decided_in_double_precision(share, monkeypatch):
    """Four values of equal weight and a little more: whether the next one stays hangs on sums in double precision."""
    scores = torch.full((ROWS, NODES, LARGE), -torch.inf)
    scores[..., [5, 900, 901, 8000]] = 2.0
    scores[1, ..., 77] = -18.0
    sums, real = [], truncation._Table.mass
    monkeypatch.setattr(truncation._Table, "mass", lambda table, *given: sums.append(given) or real(table, *given))
    table, found = pair(pipeline(top_p=share), scores)
    assert torch.equal(found.scores, table.scores)
    assert sums == [()]


@pytest.mark.parametrize("size", [16 * LARGE, 16 * LARGE + 77])
def test_all_weights_are_summed_only_where_their_bounds_leave_open_what_stays(size, monkeypatch):
    sums, real = [], truncation._Table.mass
    monkeypatch.setattr(truncation._Table, "mass", lambda table: sums.append(1) or real(table))
    steps = pipeline(temperature=0.7, top_p=0.9)
    peaked = logits(7, size, scale=0.5)
    peaked[..., 3:40] += torch.linspace(12, 15, 37)
    table, found = pair(steps, peaked)
    assert torch.equal(found.scores, table.scores)
    assert not sums
    table, found = pair(steps, logits(7, size, scale=3.5))  # the likely groups hold little of the weight
    assert torch.equal(found.scores, table.scores)
    assert sums


def test_bounds_that_are_wrong_are_found(monkeypatch):
    real = truncation._Table.mass_bounds

    def narrow(table, *given):
        bounds = real(table, *given)
        return truncation._Bounds(0.8 * bounds.least, 0.8 * bounds.least)

    monkeypatch.setattr(truncation._Table, "mass_bounds", narrow)
    table, found = pair(pipeline(top_p=0.9), logits(1, 16 * LARGE, scale=3.5))
    assert not torch.equal(found.scores, table.scores)


def test_few_values_are_compared(monkeypatch):
    widths, real = [], truncation.at_least

    def counted(*given):
        found = real(*given)
        widths.append(found[0].shape[1])
        return found

    monkeypatch.setattr(truncation, "at_least", counted)
    for given in ({"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}):
        pair(pipeline(**given), logits(3, 100_000))
    assert max(widths) < 400


def nearly(one: torch.Tensor, two: torch.Tensor) -> bool:
    return torch.allclose(one, two, atol=2e-6)


@pytest.mark.parametrize("against", ["a table", "a support", "itself", "one value"])
def test_everything_that_rules_ask(against):
    steps = pipeline(temperature=0.8, top_p=0.95)
    table, found = pair(steps, logits(2))
    theirs = {
        "a table": lambda: Categorical(logits(3)),
        "a support": lambda: distribution_of(steps, logits(2) + 0.7 * logits(4), HISTORY),
        "itself": lambda: found,
        "one value": lambda: None,
    }[against]()
    plain = None if theirs is None else Categorical(theirs.scores)
    x = found.sample(KEYS) if theirs is None else theirs.sample(KEYS)
    weight = torch.full(x.shape, 0.8)
    assert nearly(found.log_prob(x).exp(), table.log_prob(x).exp())
    assert nearly(found.probs(), table.probs())
    assert torch.equal(found.without(x).scores, table.without(x).scores)
    assert nearly(found.residual(theirs, x).probs(), table.residual(plain, x).probs())
    assert nearly(found.residual(theirs, x, weight).probs(), table.residual(plain, x, weight).probs())
    assert nearly(found.tv(theirs, x), table.tv(plain, x))
    assert nearly(found.log_ratio(theirs, x).exp(), table.log_ratio(plain, x).exp())
    if theirs is not None and plain is not None:
        assert nearly(found.mass(theirs, x, weight), table.mass(plain, x, weight))
        assert nearly(theirs.residual(found, x).probs(), plain.residual(table, x).probs())
        mask = torch.tensor([[True, False, True], [False, True, False]])
        assert torch.equal(found.where(mask, theirs).scores, table.where(mask, plain).scores)
        assert torch.equal(theirs.where(mask, found).scores, plain.where(mask, table).scores)
        assert torch.equal(found.cat(theirs).scores, table.cat(plain).scores)
        assert torch.equal(theirs.cat(found).scores, plain.cat(table).scores)


def test_selections_and_several_values():
    table, found = pair(pipeline(top_k=7), logits(5))
    index = torch.tensor([[2, 0], [1, 1]])
    rows, columns = torch.tensor([[1], [0]]), torch.tensor([[2], [0]])
    for one, two in (
        (found.at(index), table.at(index)),
        (found.last(2), table.last(2)),
        (found.picked(rows, columns), table.picked(rows, columns)),
    ):
        assert torch.equal(one.scores, two.scores)
        assert one.size == two.size == LARGE
    for count in (1, 5, 12):  # more than there are: those of no probability are not real
        for (values, scores), (wanted, expected) in (
            (found.distinct(KEYS, count), table.distinct(KEYS, count)),
            (found.top(count)[::-1], table.top(count)[::-1]),
        ):
            real = expected > -torch.inf
            assert torch.equal(scores > -torch.inf, real)
            assert torch.equal(values[real], wanted[real])
            assert values.max() < LARGE


@pytest.mark.parametrize(
    "steps",
    [
        pipeline(temperature=0.7),
        pipeline(temperature=0.0, top_k=50),
        pipeline(temperature=(0.0, 1.0), top_p=0.9),
        pipeline(top_k=LARGE // 2),
        pipeline(top_k=(0, 5)),
        Pipeline((TopP(0.8), TopK(25))),
        pipeline(top_p=0.99, temperature=50.0),
    ],
    ids=["no truncation", "greedy", "one greedy row", "most values stay", "a row without top-k", "another order", "flat"],
)
def test_tables_where_a_support_does_not_pay(steps):
    found = distribution_of(steps, logits(6), HISTORY)
    assert not isinstance(found, SparseCategorical)
    assert torch.equal(found.scores, steps(logits(6), HISTORY))


def test_small_vocabularies_and_other_processors_give_tables():
    steps = pipeline(top_k=5)
    small = logits(7, 100)
    assert type(distribution_of(steps, small, HISTORY)) is Categorical
    assert torch.equal(distribution_of(lambda scores, history: scores + 1, small, HISTORY).scores, small + 1)


def test_steps_before_the_truncations_and_guided_pairs():
    steps = pipeline(repetition_penalty=1.3, suppress=(3, 4), temperature=0.7, top_k=20)
    table, found = pair(steps, logits(8))
    assert torch.equal(found.scores, table.scores)
    assert (found.scores[..., [3, 4]] == -torch.inf).all()
    pairs = Guided((Suppress((1,)), TopK(9)), scale=3.0)
    guided = distribution_of(pairs, logits(9), HISTORY)
    assert isinstance(guided, SparseCategorical)
    assert torch.equal(guided.scores, pairs(logits(9), HISTORY))


@pytest.mark.parametrize(
    "given", [{"temperature": 0.7, "top_p": 0.9}, {"temperature": (0.5, 1.1), "top_k": (20, 40), "top_p": (0.3, 0.95)}], ids=str
)
@pytest.mark.parametrize("made", [False, True], ids=["first", "after all were made"])
def test_deferred_distributions(given, made):
    steps, scores = pipeline(**given), logits(8)
    table, found = Categorical(steps(scores, HISTORY)), distribution_of(steps, scores, HISTORY, deferred=True)
    assert isinstance(found, DeferredCategorical)
    if made:
        assert torch.equal(found.sample(KEYS), table.sample(KEYS))
    rows, columns = torch.tensor([[1]]), torch.tensor([[2]])
    for one, two in (
        (found.picked(rows, columns), table.picked(rows, columns)),
        (found.at(torch.tensor([[2], [0]])), table.at(torch.tensor([[2], [0]]))),
        (found.last(1), table.last(1)),
        (found.at(torch.tensor([[2, 0], [1, 1]])), table.at(torch.tensor([[2, 0], [1, 1]]))),
        (found.last(2), table.last(2)),
        (found, table),
    ):
        assert torch.equal(one.scores, two.scores)
        assert one.size == LARGE


def test_a_rule_that_walks_makes_the_distributions_of_its_path(monkeypatch):
    made, real = [], truncation._on_support
    monkeypatch.setattr(truncation, "_on_support", lambda scores, *given: made.append(tuple(scores.shape[:2])) or real(scores, *given))
    steps, scores = pipeline(temperature=0.7, top_p=0.9), logits(9)
    drawn = Categorical(steps(scores, HISTORY)).sample(KEYS)
    nodes = torch.tensor([[0, drawn[0, 0], drawn[0, 1]], [0, drawn[1, 0] + 1, 7]])
    draft = Draft.root(nodes[:, 0], torch.zeros(ROWS).long()).extend_chain(nodes[:, 1:], torch.full((ROWS,), 2))
    verdict = Match()(draft, Scored(distribution_of(steps, scores, HISTORY, deferred=True)), Noise.from_seed(5, ROWS))
    assert verdict.count.tolist() == [3, 1]
    assert verdict.values[0].tolist() == drawn[0].tolist()
    assert verdict.values[1, 0] == drawn[1, 0]
    assert made == [(2, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize("seed", range(6))
def test_a_chain_is_judged_alike_in_turn_and_at_once(seed):
    steps, scores = pipeline(temperature=0.7, top_p=0.9), logits(10 + seed, scale=2.0)
    near = distribution_of(steps, scores + 0.5 * logits(30 + seed, scale=2.0), HISTORY).at(torch.tensor([[0, 1], [0, 1]]))
    noise = Noise.from_seed(seed, ROWS)
    tokens = near.sample(noise.value(torch.arange(2).expand(ROWS, 2)).branch(1)[..., 0])
    draft = Draft.root(torch.zeros(ROWS).long(), torch.zeros(ROWS).long()).extend_chain(tokens, torch.tensor([2, 1 + seed % 2]), near)
    one, two = (Token()(draft, Scored(distribution_of(steps, scores, HISTORY, late)), noise) for late in (False, True))
    for name in ("keep", "values", "count", "judged"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert torch.allclose(one.expected, two.expected, atol=1e-6)


def test_a_chain_makes_the_distributions_up_to_its_first_rejection(monkeypatch):
    made, real = [], truncation._on_support
    monkeypatch.setattr(truncation, "_on_support", lambda scores, *given: made.append(scores.shape[1]) or real(scores, *given))
    steps, scores = pipeline(temperature=0.7, top_p=0.9), logits(9)
    never = Categorical(steps(scores, HISTORY)).scores.argmin(-1)[:, :2]
    draft = Draft.root(torch.zeros(ROWS).long(), torch.zeros(ROWS).long()).extend_chain(never, torch.full((ROWS,), 2))
    verdict = Token()(draft, Scored(distribution_of(steps, scores, HISTORY, deferred=True)), Noise.from_seed(5, ROWS))
    assert verdict.count.tolist() == [1, 1]
    assert made == [1, 1]  # judged, and drawn from
