"""Whatever grows, on however many roots, says truly how long its paths are: columns see all their ancestors and nothing else."""

from dataclasses import replace

import pytest
import torch

from mmspec.core.noise import Noise
from mmspec.core.records import Budget, validate
from mmspec.core.rules.sibling_rules import topk_rule, without_replacement_rule
from mmspec.drafters.heads.viterbi import JointPath
from mmspec.drafters.model.drafter import ModelDrafter, committed_values
from mmspec.drafters.retrieval.bigrams import Bigrams
from mmspec.drafters.shapes import Chain, Comb, ConfidentComb, draw_with_replacement, top
from mmspec.drafters.trees.best_first import BestFirst
from mmspec.drafters.trees.search import BeamTree, ExpandRerank
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.run.shapes import pick_for
from tests.core.test_records import path
from tests.oracles.tables import Table, TableTarget, exact_error, pair

SHAPES = {
    "chain": Chain(),
    "comb": Comb(3),
    "wide": StaticTree(Template.branching((3, 2, 2))),
    "deep": StaticTree(Template(((0,), (1,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (1, 0))), draw_with_replacement),
    "search": ExpandRerank(width=3, depth=4, nodes=9),
    "beams": BeamTree(width=3, depth=4),
    "best-first": BestFirst(nodes=9, width=2),
    "cape": ConfidentComb(4, bounds=((0.5, 1), (0.3, 2))),
    "joint-paths": JointPath(Bigrams.count([torch.arange(4)], 4), k=3, paths=4),
}


def true_to_its_parents(draft) -> None:
    validate(draft)
    ancestors = draft.ancestors()
    for row in range(len(draft.start)):
        for node in range(draft.size):
            columns = path(draft, row, node) if draft.valid[row, node] else [node]
            assert ancestors[row, node].nonzero().flatten().tolist() == columns


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("roots", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_ancestors_of_what_shapes_grow(shape, roots, length):
    """Roots one behind the other, some rows with fewer, one that has ended."""
    rows, seen = 4, []
    _, small = pair(4, 5, 1)
    session, _ = small.begin(rows)
    real = torch.tensor([[column >= missing for column in range(roots)] for missing in (0, 1, 0, 2)])
    real[:, -1] = True
    real[2, -1] = False
    draft = committed_values(torch.ones(rows, roots).long(), real, torch.zeros(rows).long())

    def score(growing):
        seen.append(growing)
        return session.score(growing)

    final, origin = shape.grow(score, draft, Budget(torch.tensor([9, 2, 0, 4]), length), Noise.from_seed(0, rows))
    for grown in (*seen, final):
        true_to_its_parents(grown)
    assert origin.shape == (rows, final.size - final.roots)
    assert not final.valid[2, roots:].any()


# --- siblings by confidence -------------------------------------------------------------------------------------------

SURE = ConfidentComb(3, bounds=((0.6, 1), (0.45, 2)))


def test_a_sure_drafter_drafts_fewer_siblings():
    q = torch.tensor([[0.9, 0.06, 0.04], [0.5, 0.3, 0.2], [0.4, 0.3, 0.3]], dtype=torch.float64)
    session, pending = TableTarget(Table(q)).begin(3)
    pending.nodes[:, 0] = torch.arange(3)
    draft, _ = replace(SURE, pick=top).grow(session.score, pending, Budget(torch.full((3,), 9), 1), Noise.from_seed(0, 3))
    assert draft.valid[:, 1:].sum(1).tolist() == [1, 2, 3]


@pytest.mark.parametrize("bounds", [((0.3, 5), (0.6, 3)), ((1.0, 1),), ((0.5, 0),)])
def test_bounds_that_are_none_are_refused(bounds):
    with pytest.raises(ValueError, match="give pairs of a probability below 1, falling, and a number of siblings"):
        ConfidentComb(bounds=bounds)


@pytest.mark.parametrize("rule", [without_replacement_rule(), topk_rule()], ids=["drawn", "topk"])
def test_siblings_by_confidence_keep_their_distribution(rule):
    """The number of siblings is a function of the drafter's distribution, so the sibling rules stay exact."""
    target, drafter = pair(3, 5, 1)
    shape = ConfidentComb(2, pick_for(rule), ((0.6, 1),))
    assert exact_error(target, ModelDrafter(drafter, shape), rule, most=2, length=2, once=True) < 1e-9
