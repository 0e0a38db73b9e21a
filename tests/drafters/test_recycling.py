import pytest
import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.records import CONTEXT, PAD, Draft, Scored, Verdict
from mmspec.drafters.retrieval.recycling import Recycling, _newest, likeliest_tree
from tests.drafters.runs import fives, markov, prompt_of, random_prompt, run


def test_the_template_is_a_tree_of_the_likeliest_paths():
    levels = likeliest_tree(3, 12, 4)
    assert sum(len(ranks) for _, ranks in levels) == 12
    sizes = [1, *(len(ranks) for _, ranks in levels)]
    for (above, ranks), size in zip(levels, sizes, strict=False):
        assert all(0 <= parent < size for parent in above)
        nodes = set(zip(above, ranks, strict=True))
        assert all(rank == 0 or (parent, rank - 1) in nodes for parent, rank in nodes)
        assert len(nodes) == len(ranks)
    assert len(likeliest_tree(2, 100, 1)[0][1]) == 2  # one level has no more than its two candidates
    assert len(likeliest_tree(1, 5, 8)) == 5  # one candidate each: a chain


def test_a_cycle_is_learnt_in_one_turn():
    out = run(markov(fives), Recycling(width=2, nodes=8), prompt_of([5, 6]), new=45, length=4)
    # five rounds to see every token once, then at least four draft tokens a round are right
    assert out.stats.target_calls <= 5 + 40 // 5 + 1


def test_runners_up_raise_what_is_accepted(big):
    inputs = random_prompt(9, 7, seed=1)
    calls = [run(big, Recycling(width, nodes=24), inputs, new=60).stats.target_calls for width in (1, 6)]
    assert calls[1] < calls[0] < 60


def test_the_kept_node_speaks_for_its_value_and_writes_never_collide():
    nodes = torch.tensor([[7, 3, 3, 7, 4], [7, 3, 3, 3, 4]])
    parents = torch.tensor([[CONTEXT, 0, 0, 1, PAD], [CONTEXT, 0, 0, 1, 2]])
    draft = Draft(nodes, parents, torch.zeros(2), linear=False)
    keep = torch.tensor([[0, 1, 3, -1], [0, -1, -1, -1]])
    verdict = Verdict(keep, nodes, torch.ones(2), draft, torch.zeros(2), torch.zeros(2))
    assert _newest(draft, verdict).tolist() == [[False, True, False, True, False], [True, False, False, True, True]]


def test_what_is_remembered_comes_from_the_kept_node():
    nodes, parents = torch.tensor([[7, 3, 3, 5]]), torch.tensor([[CONTEXT, 0, 0, PAD]])
    draft = Draft(nodes, parents, torch.zeros(1), linear=False)
    distribution = Categorical(torch.eye(8)[None, [1, 2, 4, 6]])  # the likeliest value after each column
    verdict = Verdict(torch.tensor([[0, 1, -1, -1]]), nodes, torch.ones(1), draft, torch.ones(1), torch.ones(1))
    session = Recycling(width=1).begin(None, None)
    session.observe(draft, Scored(distribution), verdict, None)
    assert session.links[0, :8, 0].tolist() == [-1, -1, -1, 2, -1, -1, -1, 1]


def test_impossible_values_are_not_drafted(big):
    """At temperature 0 the distribution is a point mass, so every node has one child at most."""
    widest = []

    def count(step):
        parents = step.draft.parents[0].tolist()
        widest.append(max((parents.count(p) for p in parents if p >= 0), default=0))

    run(big, Recycling(width=4, nodes=16), random_prompt(9), temperature=0.0, new=60, on_step=count)
    assert max(widest) == 1


@pytest.mark.parametrize("options", [{"width": 0}, {"nodes": 0}])
def test_options_are_checked(options):
    with pytest.raises(ValueError, match="width and nodes"):
        Recycling(**options)
