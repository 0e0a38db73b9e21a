"""Trees planned for trained drafters: counted node by node, written where `generate` reads them, and exact."""

import json
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec import text
from mmspec.bench.planned_trees import measure_tree, measure_tree_costs, most_levels
from mmspec.core.decode import each
from mmspec.drafters.checkpoints.load import save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.drafters.heads.medusa import Medusa
from mmspec.drafters.trees.calibration import Calibration, broad
from mmspec.drafters.trees.planned import NodeAcceptance, TimedDrafter
from mmspec.drafters.trees.static import Template
from mmspec.loading.text import load_pair
from mmspec.minis import HOME
from mmspec.run.config import Config, DrafterSection, RunSection
from tests.drafters.runs import random_prompt
from tests.drafters.test_guided import lively
from tests.forked import Started

ROOT = Path(__file__).parents[2]
TREE = Template(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))


@pytest.fixture(scope="module")
def heads():
    return lively(Medusa(32, 3))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nodes_are_counted_as_levels_and_ranks_are(big, heads, temperature):
    """Summed over the nodes of a level and rank, the counts are the calibration's; a node is judged when its parent was kept."""
    nodes, levels, inputs = NodeAcceptance(TREE), Calibration(), random_prompt(4, 7, 5, seed=3)
    settings = {"temperature": temperature, "max_new_tokens": 40, "draft_length": 3, "tree": TREE, "on_step": each(nodes, levels)}
    stats = text.generate(big, inputs, drafter=heads, **settings).stats
    assert sum(nodes.hits) == stats.accepted > 0
    for counts, expected in ((nodes.hits, levels.hits), (nodes.tries, levels.tries)):
        table = [[0] * len(row) for row in expected]
        for path, count in zip(TREE.paths, counts, strict=True):
            table[len(path) - 1][path[-1]] += count
        assert table == expected
    at = {path: index for index, path in enumerate(TREE.paths)}
    for path, index in at.items():
        if len(path) > 1:
            assert nodes.tries[index] <= nodes.hits[at[path[:-1]]]
    chances = nodes.on_path()
    assert chances[(0,)] == nodes.hits[0] / nodes.tries[0]
    assert sum(chances.values()) == pytest.approx(stats.accepted / nodes.tries[0], rel=0.2)  # rows that end count no child


def test_a_timed_drafter_drafts_what_the_drafter_drafts(big, heads):
    from mmspec.core.rules.greedy import Greedy
    from mmspec.models.families.registry import family_of
    from mmspec.models.target import HFTarget
    from mmspec.run.drafters import drafter_of

    inputs, plain = random_prompt(4, 7, seed=3), drafter_of(heads, HFTarget(big, family_of(big)), Greedy(), TREE)
    timed = TimedDrafter(plain)
    runs = [text.generate(big, inputs, drafter=drafter, draft_length=3, max_new_tokens=20) for drafter in (plain, timed)]
    assert runs[0].stats.histogram == runs[1].stats.histogram
    assert len(timed.seconds) > 3
    assert timed.seconds_a_level(3) > 0
    with pytest.raises(ValueError, match="the drafter drafted nothing"):
        TimedDrafter(plain).seconds_a_level(3)


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("text")


@pytest.mark.parametrize("kind", ["medusa", "eagle3", "mtp", "recurrent"])
def test_trees_of_trained_drafters_are_measured(mini, kind, tmp_path):
    """A shipped drafter, or an untrained one: whatever it drafts, costs and acceptance are found, and the tree is exact."""
    folder = HOME / "text" / "drafters" / kind
    if not folder.exists():
        torch.manual_seed(0)
        folder = tmp_path / kind
        save_drafter(new_net(kind, mini.target), folder)
    run = RunSection(max_new_tokens=8)
    pair = load_pair(Config(drafter=DrafterSection(kind="trained", path=str(folder)), run=run))
    depth = most_levels(pair, 3)
    costs = measure_tree_costs(pair, pair.examples[0], 4)
    assert costs.draft_seconds > 0
    assert sorted(costs.verify_seconds) == [0, 1, 2, 4]
    tree = broad(4, depth)
    stats, calibration, nodes = measure_tree(pair, pair.examples[:2], tree, batch_size=2)
    assert sum(nodes.hits) == sum(map(sum, calibration.hits)) == stats.accepted
    assert nodes.tries[0] > 0
    inputs = pair.inputs(list(pair.examples[:2]))
    planned = pair.generate(inputs, tree=tree)
    assert planned.tokens.tolist() == pair.generate(inputs, drafter=None).tokens.tolist()


def test_the_recipe_writes_the_tree_beside_the_drafter(mini, tmp_path):
    save_drafter(mmspec.load_drafter(HOME / "text" / "drafters" / "medusa"), tmp_path / "medusa")
    done = Started(ROOT / "text" / "plan_tree.py", "--drafter", tmp_path / "medusa", "--smoke", cwd=tmp_path, folder=tmp_path).finish(240)
    assert done.returncode == 0, done.stderr[-2000:]
    path = tmp_path / "medusa" / "tree.json"
    assert f"tree={str(path)!r}" in done.stdout
    for node in json.loads(path.read_text()):
        assert f"| {' '.join(map(str, node))} | " in done.stdout
    drafter = mmspec.load_drafter(tmp_path / "medusa", mini.target)
    inputs = {key: value[:1] for key, value in mini.examples.items()}
    out = text.generate(mini.target, inputs, drafter, tree=path, draft_length=3, max_new_tokens=16)
    assert out.tokens.tolist() == text.generate(mini.target, inputs, max_new_tokens=16).tokens.tolist()
    assert out.stats.accepted > 0


def test_a_drafter_without_trees_is_refused_in_one_line(tmp_path):
    done = Started(ROOT / "text" / "plan_tree.py", "--drafter", "lookup", "--smoke", cwd=tmp_path, folder=tmp_path).finish(240)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("drafter 'lookup' grows no trees: give a model or a trained drafter")
    assert "Traceback" not in done.stderr
