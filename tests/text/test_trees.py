"""`tree=` of the public call: every spelling, on a model, with the tokens of plain decoding."""

import json
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.commands.common import config_of
from mmspec.core.control import Fixed
from mmspec.core.draft_length.break_even import BreakEven
from mmspec.core.draft_length.throughput import Throughput
from mmspec.core.draft_length.tree_size import TreeSize
from mmspec.drafters import shapes
from mmspec.drafters.trees.best_first import BestFirst
from mmspec.drafters.trees.search import DynamicDepth, ExpandRerank, OptTree
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.run.draft_length import control_of
from mmspec.run.drafters import drafter_of
from mmspec.run.rules import rule_of
from mmspec.run.shapes import shape_of
from tests.names import named

FORM = Template(((0,), (1,), (0, 0), (1, 0), (0, 0, 0)))


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trees") / "tree.json"
    path.write_text(json.dumps(FORM.to_json()))
    return path


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "tree",
    ["comb", "cape", "expand", "opt", "dynamic", "beams", "best-first", (2, 2, 1), FORM, "file", StaticTree(FORM, shapes.top)],
    ids=named,
)
def test_every_spelling_gives_the_tokens_of_plain_decoding(big, tree, temperature, written):
    ids = torch.randint(3, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    tree = str(written) if tree == "file" else tree
    options = {"max_new_tokens": 16, "temperature": temperature, "seed": 3}
    plain = mmspec.text.generate(big, inputs, **options)
    out = mmspec.text.generate(big, inputs, big, tree=tree, draft_length=3, **options)  # "auto" would stop a drafter as slow as its target
    assert torch.equal(out.sequences, plain.sequences)
    assert out.stats.target_calls < plain.stats.target_calls
    dropped = big.generate(**inputs, max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None)
    dropin = mmspec.text.speculate(drafter=big, tree=tree)
    again = big.generate(**inputs, max_new_tokens=8, do_sample=False, pad_token_id=0, eos_token_id=None, custom_generate=dropin)
    assert torch.equal(again, dropped)


def test_what_a_spelling_means(written):
    exact, match, drawn, hybrid = (rule_of(name, 1.0) for name in ("exact", "match", "without-replacement", "hybrid"))
    assert shape_of("opt", match) == ExpandRerank(depth=8, stop=OptTree())
    assert shape_of("dynamic", match) == ExpandRerank(depth=8, stop=DynamicDepth())
    for tree in (written, str(written), FORM):
        assert shape_of(tree, exact) == StaticTree(FORM, shapes.draw_without_replacement)  # the default when sampling
        assert shape_of(tree, drawn) == StaticTree(FORM, shapes.draw_without_replacement)
        assert shape_of(tree, match) == StaticTree(FORM, shapes.top)
        assert shape_of(tree, hybrid) == StaticTree(FORM, shapes.top_and_one)
        assert shape_of(tree, rule_of("exact", 0.0)) == StaticTree(FORM, shapes.top)
    assert shape_of([3, 1], exact) == StaticTree(Template.branching((3, 1)))


def test_trees_are_cut_to_what_pays(big):
    rule = rule_of("exact", 0.0)
    for tree, depth in ((FORM, 3), ((4, 2), 2), ("expand", 4), ("opt", 8)):
        assert control_of("auto", drafter_of(big, _target(big), rule, tree)) == BreakEven(Throughput(tuple(range(depth + 1)), depth))
    assert control_of(2, drafter_of(big, _target(big), rule, FORM)) == Fixed(2)
    sized = BreakEven(TreeSize((0, 1, 2, 4, 8, 16, 32), first=16))
    assert control_of("auto", drafter_of(big, _target(big), rule, BestFirst(40))) == sized
    for tree in (None, "comb"):
        assert control_of("auto", drafter_of(big, _target(big), rule, tree)) == BreakEven(Throughput())


def _target(model):
    from mmspec.models.families.registry import family_of
    from mmspec.models.target import HFTarget

    return HFTarget(model, family_of(model))


@pytest.mark.parametrize(
    ("tree", "accept", "words"),
    [
        (
            "bush",
            "exact",
            "unknown tree 'bush'; valid: 'comb', 'cape', 'expand', 'opt', 'dynamic', 'beams', 'best-first', children per level",
        ),
        ("nowhere.json", "exact", "template nowhere.json does not exist: write one with mmspec recipe text/plan_tree"),
        ((0, 2), "exact", r"branching of the tree is \(0, 2\): give at least one level"),
        ("opt", "without-replacement", "tree 'opt' takes the most likely nodes, but WithoutReplacement needs drawn ones"),
        (FORM, "block", "Block judges chains only"),
    ],
)
def test_mistakes_are_told_in_one_line(tree, accept, words):
    with pytest.raises(ValueError, match=words) as caught:
        shape_of(tree, rule_of(accept, 1.0))
    assert "\n" not in str(caught.value)


def test_the_command_line_takes_the_same(written):
    for text, tree in (("opt", "opt"), ("dynamic", "dynamic"), (str(written), str(written)), ("4,2", [4, 2]), ("none", None)):
        assert config_of({"tree": text}).drafter.tree == tree
    with pytest.raises(
        ValueError,
        match=r"unknown tree 'oak'; valid: comb, cape, expand, opt, dynamic, beams, best-first, none, children per level .* a template",
    ):
        config_of({"tree": "oak"})
