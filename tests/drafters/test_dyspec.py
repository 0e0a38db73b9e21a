"""DySpec's trees: the heap of the paper in plain Python, the target's distribution by enumeration, and plain decoding where greedy."""

from heapq import heappop, heappush
from itertools import count

import pytest
import torch

import mmspec
from mmspec.core.hashing import stream_bits
from mmspec.core.noise import Noise
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.sibling_rules import without_replacement_rule
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.trees.best_first import BestFirst
from mmspec.run.rules import rule_of
from mmspec.run.shapes import shape_of
from tests.drafters.cascades import perturbed
from tests.drafters.runs import random_prompt
from tests.drafters.test_best_first import LEVELS, ROWS, SIZE, TABLE, grown
from tests.drafters.test_search import nodes
from tests.oracles.statistics import FAIL, PASS, chi_square
from tests.oracles.tables import Table, TableTarget, encode, exact_error, one_round, pair, run_loop


def by_heap(row: int, size: int, agreement: float) -> list[tuple[int, ...]]:
    """DySpec's algorithm: take the draw of the largest value, put back the next one at the same node and the first one below.

    DySpec takes a draw to be accepted with the probability it was drawn with: no `agreement` beside that.
    """
    noise, ticket = Noise.from_seed([row], 1), count()
    heap: list[tuple[float, int, tuple[int, ...], torch.Tensor, tuple[int, ...]]] = []

    def offer(value: float, path: tuple[int, ...], code: torch.Tensor, before: tuple[int, ...]) -> None:
        if len(path) < LEVELS and len(before) < SIZE:
            heappush(heap, (-value, next(ticket), path, code, before))

    offer(1.0, (), torch.zeros(1, 1).long(), ())
    drafted: list[tuple[int, ...]] = []
    while heap and len(drafted) < size:
        value, _, path, code, before = heappop(heap)
        history = 0
        for token in (row, *path):
            history = history * SIZE + token
        q = TABLE.probs[history]
        keys = noise.draft_token(torch.tensor([[len(path)]]), torch.tensor([0]), code)
        token = int(keys.choose_distinct(q.log()[None, None], SIZE)[0, 0, len(before)])
        left = 1 - float(q[list(before)].sum())
        drafted.append((*path, token))
        accepted = agreement + (1 - agreement) * float(q[token]) / left
        offer(-value * accepted, (*path, token), stream_bits(code, torch.tensor([len(before)])), ())
        offer(-value * (1 - accepted), path, code, (*before, token))
    return drafted


@pytest.mark.parametrize("width", [1, 3, None])
@pytest.mark.parametrize(("size", "agreement"), [(1, 0), (6, 0), (25, 0), (25, 0.5)])
def test_the_tree_is_the_one_of_the_papers_heap(size, width, agreement):
    """However many nodes a call expands; and the first n draft tokens are the tree of size n."""
    draft, _, calls = grown(BestFirst(size, width=width, children=SIZE, mixed=True, drawn=True, agreement=agreement))
    for row in range(ROWS):
        paths = by_heap(row, size, agreement)
        assert nodes(draft, row) == set(paths)
        assert draft.nodes[row, 1:].tolist() == [path[-1] for path in paths]
    assert calls <= LEVELS + 1 or width is not None


@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "by level"])
def test_a_row_drafts_the_same_alone_and_in_a_batch(mixed):
    shape = BestFirst(20, width=2, threshold=0.001, mixed=mixed, drawn=True)
    draft, _, _ = grown(shape)
    assert draft.q.scores.shape == (ROWS, draft.size - 1, SIZE)
    for row in range(ROWS):
        assert nodes(grown(shape, rows=(row,))[0], 0) == nodes(draft, row)


class ByLevel(TableTarget):
    """A level a call, as trained nets draft."""

    def begin(self, prompt):
        session, pending = super().begin(prompt)
        session.mixes_depths = False
        return session, pending


SHAPES = {
    "one a call": BestFirst(4, width=1, children=2, drawn=True),
    "two a call": BestFirst(5, width=2, children=2, drawn=True, agreement=0),
    "threshold": BestFirst(6, width=None, children=2, threshold=0.3, drawn=True),
}


@pytest.mark.parametrize(("name", "kind"), [*((name, TableTarget) for name in SHAPES), ("one a call", ByLevel), ("two a call", ByLevel)])
def test_the_target_distribution_is_kept(name, kind):
    target, drafter = pair(2, 4, 1)
    drafter = ModelDrafter(kind(drafter.table), SHAPES[name])
    assert exact_error(target, drafter, without_replacement_rule(), most=3, length=6, together=1) < 1e-9


def by_own_value(real):
    """An order that knows the drawn token: what q gives it decides whether it stays in the tree."""

    def siblings(self, *given):
        token, log_q, _ = real(self, *given)
        return token, log_q, log_q

    return siblings


def test_an_order_that_knows_the_token_is_found(monkeypatch):
    monkeypatch.setattr(BestFirst, "_siblings", by_own_value(BestFirst._siblings))
    target, drafter = pair(2, 4, 1)
    shaped = ModelDrafter(drafter, SHAPES["two a call"])
    assert exact_error(target, shaped, without_replacement_rule(), most=3, length=6, whole=False, together=1) > 1e-3


@pytest.mark.parametrize("right", [True, False], ids=["drawn", "mutant"])
def test_real_noise_gives_the_target_distribution(right, monkeypatch):
    if not right:
        monkeypatch.setattr(BestFirst, "_siblings", by_own_value(BestFirst._siblings))
    target, drafter = pair(4, 4, 3)
    drafter, rows = ModelDrafter(drafter, BestFirst(7, width=2, drawn=True, agreement=0.2)), 20_000
    out = run_loop(target, drafter, without_replacement_rule(), Noise.from_seed(7, rows), rows, 3, 7).outputs
    found = chi_square(encode(torch.tensor(out), 4), target.table.joint(3))
    assert found > PASS if right else found < FAIL


def test_a_drafter_equal_to_its_target_is_accepted_whole():
    """The first sibling of every node is kept, down to a leaf."""
    target, noise, rule = TableTarget(Table.random(4, 6, 9)), Noise.from_seed(0, 30), without_replacement_rule()
    draft, verdict = one_round(target, ModelDrafter(target, BestFirst(9, drawn=True)), rule, noise, 30, 5, 9)
    for row, leaf in enumerate(verdict.keep.amax(1).tolist()):
        assert leaf > 0
        assert leaf not in draft.parents[row].tolist()


def test_greedy_it_is_best_first():
    """By name nothing is drawn; drawn from point masses the tree is the same chain."""
    assert shape_of("best-first", Greedy()) == BestFirst()
    assert shape_of("best-first", rule_of("without-replacement", 1.0)) == BestFirst(drawn=True)
    target = TableTarget(TABLE.greedy())
    outs = [
        run_loop(target, ModelDrafter(target, BestFirst(4, drawn=drawn)), Greedy(), Noise.from_seed(0, 5), 5, 6, 4)
        for drawn in (True, False)
    ]
    assert outs[0].outputs == outs[1].outputs


def test_rows_stop_alone_as_in_a_batch(big):
    inputs, drafter = random_prompt(5, 9, 1, seed=8), perturbed(big, 0.05)
    options = {"max_new_tokens": 10, "temperature": 1.0, "accept": "without-replacement", "tree": "best-first", "draft_length": 9}
    out = mmspec.text.generate(big, inputs, drafter, seed=3, stops=[lambda row, ids: len(ids) >= 3 + 3 * row], **options)
    assert out.lengths.tolist() == [3, 6, 9]
    assert out.stats.accepted > 0
    for row in range(3):
        length = int(inputs["attention_mask"][row].sum())
        alone = {name: part[row : row + 1, -length:] for name, part in inputs.items()}
        again = mmspec.text.generate(big, alone, drafter, seed=3 + row, **options)
        assert again.tokens[0, : out.lengths[row]].tolist() == out.tokens[row, : out.lengths[row]].tolist()


@pytest.mark.parametrize("accept", ["with-replacement", "kseq", "hybrid"])
def test_rules_for_other_siblings_are_refused(accept):
    with pytest.raises(ValueError, match=r"tree 'best-first' draws siblings without replacement, but .* needs others"):
        shape_of("best-first", rule_of(accept, 1.0))
