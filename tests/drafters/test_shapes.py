"""Whatever grows, on however many roots, says truly how long its paths are: columns see all their ancestors and nothing else."""

import pytest
import torch

from mmspec.core.noise import Noise
from mmspec.core.records import Budget, validate
from mmspec.drafters.model.drafter import committed_values
from mmspec.drafters.shapes import Chain, Comb, draw_with_replacement
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.drafters.trees.static import StaticTree, Template
from tests.core.test_records import path
from tests.oracles.tables import pair

SHAPES = {
    "chain": Chain(),
    "comb": Comb(3),
    "wide": StaticTree(Template.branching((3, 2, 2))),
    "deep": StaticTree(Template(((0,), (1,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (1, 0))), draw_with_replacement),
    "search": ExpandRerank(width=3, depth=4, nodes=9),
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
