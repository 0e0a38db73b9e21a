"""Sizes and counts hold exactly what they say: ranks of rules, draft tokens of drafters and trees, outputs, rows; and tables fit a target.

Ties, even and odd sizes, 1 and the largest are where one more or one less hides.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.processors.pipeline import TopK
from mmspec.core.rules.groups import Groups
from mmspec.core.rules.lossy.grouped import Grouped, grouped_tree
from mmspec.core.rules.lossy.lantern import Lantern, LanternGreedy, Neighbours, lantern_tree
from mmspec.core.rules.lossy.membership import Membership
from mmspec.core.rules.lossy.pcg import PCG
from mmspec.core.rules.lossy.top_k import ByDistance, TopKFloor, TopKGap
from mmspec.drafters.jacobi.decoding import Jacobi
from mmspec.drafters.retrieval.recycling import Recycling
from mmspec.drafters.shapes import Comb
from mmspec.drafters.trees.best_first import BestFirst
from mmspec.models.families.base import DecoderOnly
from tests.beam_world import make, shop, users
from tests.conftest import llama

VALUES, MIDDLE = 40, 20
SIZES = (1, 2, 3, 4, 7, 8, VALUES)
RISING, TIED, RANDOM = torch.linspace(-2, 2, VALUES), torch.zeros(VALUES), torch.randn(VALUES, generator=torch.Generator().manual_seed(0))
POINTS = torch.arange(VALUES, dtype=torch.float64)[:, None]


def passing(rule: Any, scores: Tensor) -> int:
    """Draft tokens that a rule lets pass after one distribution."""
    return int(rule.passes(Categorical(scores.expand(VALUES, -1)), torch.arange(VALUES)).sum())


def in_group(size: int, scores: Tensor) -> int:
    """Values of the group of the value in the middle of the order, where a group fits."""
    x = scores.sort(stable=True).indices[MIDDLE]
    return int(Grouped(None, size, p_gap=1.0).group(Categorical(scores), x)[1].sum())


RANKS: dict[str, tuple[Callable[[int, Tensor], int], Callable[[int], int]]] = {  # what is counted, and how many size n says
    "TopKGap": (lambda n, p: passing(TopKGap(beta=n, tau=99.0), p), lambda n: n),
    "TopKFloor": (lambda n, p: passing(TopKFloor(k=n, tau=0.0), p), lambda n: n),
    "Membership": (lambda n, p: int(Membership(k=n).members(Categorical(p)).sum()), lambda n: n),
    "Grouped": (in_group, lambda n: min(n, MIDDLE + (n + 1) // 2)),
    "Groups.nearest": (lambda n, p: int(Groups.nearest(POINTS, n - 1).sizes()[MIDDLE]), lambda n: n),
    "Neighbours": (lambda n, p: Neighbours.of(POINTS, min(n, VALUES - 1)).k, lambda n: min(n, VALUES - 1)),
}


@pytest.mark.parametrize("scores", [RISING, TIED, RANDOM], ids=["rising", "tied", "random"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", RANKS)
def test_a_rank_or_group_holds_as_many_values_as_it_says(name, size, scores):
    count, said = RANKS[name]
    assert count(size, scores) == said(size)


@pytest.mark.parametrize("size", SIZES)
def test_top_k_leaves_k_logits_and_a_distance_reaches_both_ways(size):
    for scores in (RISING, RANDOM):  # values tied with the k-th stay, as in transformers
        for k in (size, [size]):
            assert int(TopK(k)(scores[None, None], None).isfinite().sum()) == size  # type: ignore[arg-type]
    best = torch.zeros(VALUES).index_fill_(0, torch.tensor(MIDDLE), 1.0)
    assert passing(ByDistance(size), best) == sum(abs(value - MIDDLE) <= size for value in range(VALUES))


LOOPED = {"input_ids": torch.tensor([[3, 4, 5] * 5]), "attention_mask": torch.ones(1, 15, dtype=torch.long)}
DRAFTS: dict[str, tuple[Callable[[Any, int], tuple[Any, dict[str, Any]]], Callable[[int], int]]] = {  # drafter and options; draft tokens
    "chain": (lambda model, n: (model, {}), lambda n: n),
    "comb": (lambda model, n: (model, {"tree": "comb"}), lambda n: 3 * n),
    "comb of a width": (lambda model, n: (model, {"tree": Comb(5)}), lambda n: 5 * n),
    "best first": (lambda model, n: (model, {"tree": BestFirst(nodes=n)}), lambda n: n),
    "levels": (lambda model, n: (model, {"tree": (n, 2), "draft_length": 2}), lambda n: 3 * n),
    "lookup": (lambda model, n: ("lookup", {}), lambda n: n),
    "jacobi": (lambda model, n: (Jacobi(window=n), {}), lambda n: n),
    "recycling": (lambda model, n: (Recycling(nodes=n), {}), lambda n: n),
}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("name", DRAFTS)
def test_a_draft_has_as_many_tokens_as_its_size_says(name, size):
    """The most of any round: a model of few values repeats itself, so that every source has enough to draft from."""
    model, seen = llama(2, seed=0), [0]
    (drafter, options), said = DRAFTS[name][0](model, size), DRAFTS[name][1]
    for new in (1, 48):
        out = mmspec.text.generate(
            model, LOOPED, drafter, max_new_tokens=new, repetition_penalty=0.4, **{"draft_length": size} | options,
            on_step=lambda step: seen.append(int(step.draft.valid[:, step.draft.roots :].sum())),
        )  # fmt: skip
        assert out.lengths.tolist() == [new]
    assert max(seen) == said(size)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_outputs_and_rows_are_as_many_as_was_asked_for(size, monkeypatch):
    catalogue, model = shop(), make("qwen2")
    found = mmspec.recsys.recommend(model, users(catalogue, 3), k=size, catalogue=catalogue)
    assert [len(set(items)) for items in found.items] == [size] * 3
    target, rows = llama(2, seed=0), []
    forward = DecoderOnly.forward

    def counted(self: Any, own: Any, layout: Any, *rest: Any) -> Any:
        rows.append(len(layout.ids))
        return forward(self, own, layout, *rest)

    monkeypatch.setattr(DecoderOnly, "forward", counted)
    with mmspec.Engine(target, max_rows=size) as engine:
        handles = [engine.submit(LOOPED, max_new_tokens=size + 3) for _ in range(7)]
        assert {int(handle.result().lengths[0]) for handle in handles} == {size + 3}
    assert max(rows) == size


TABLES: dict[str, Callable[[Tensor], Any]] = {
    "grouped": Grouped,
    "grouped tree": grouped_tree,
    "lantern": lambda points: Lantern(Neighbours.of(points, 3), k=2),
    "lantern greedy": lambda points: LanternGreedy(Lantern(Neighbours.of(points, 3), k=2)),
    "lantern tree": lambda points: lantern_tree(Neighbours.of(points, 3), k=2),
    "pcg": lambda points: PCG(Groups.nearest(points, 2)),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_another_codebook_is_refused_in_one_line(name):
    mini, model = mmspec.load("vision"), llama(2, seed=0)
    codes, vocabulary, drafter = mini.target.raster.codes, model.config.vocab_size, mini.drafters["model"]
    points = torch.randn(vocabulary + codes + 9, 3, generator=torch.Generator().manual_seed(0))
    calls = {
        codes - 1: lambda rule: mmspec.vision.generate(mini.target, mini.examples[:1], drafter, accept=rule, method="assisted"),
        codes + 9: lambda rule: mmspec.vision.generate(
            mini.target, mini.examples[:1], drafter, accept=rule, method="assisted", guidance=2.0
        ),
        vocabulary + 9: lambda rule: mmspec.text.generate(model, LOOPED, model, accept=rule, max_new_tokens=3, draft_length=2),
    }
    for size, call in calls.items():
        with pytest.raises(ValueError, match=rf"has a table of {size} values, and the target has \d+ (codes|values): make") as caught:
            call(TABLES[name](points[:size]))
        assert "\n" not in str(caught.value)
    calls[vocabulary + 9](TABLES[name](points[:vocabulary]))
