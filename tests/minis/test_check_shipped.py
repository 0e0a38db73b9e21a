"""`mmspec check` over the shipped text drafters and every public tree: what is shipped is lossless in all of them."""

from types import SimpleNamespace

import pytest

import mmspec
from mmspec.bench.check import verify as module
from mmspec.bench.check.verify import Plan, verify
from mmspec.drafters.trees import search
from mmspec.loading.text import load_pair
from mmspec.minis import shipped_drafters
from mmspec.run.config import Config, DrafterSection, RunSection

DRAFTERS = ("model", *shipped_drafters("text"))
TREES = {"chain": None, "comb": "comb", "children": [3, 2, 1], "expand": "expand", "opt": "opt", "dynamic": "dynamic"}


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("text")


@pytest.fixture(scope="module")
def plain():
    """References by what was asked: no drafter has a part in them."""
    return {}


@pytest.fixture
def findings_of(mini, plain, monkeypatch):
    """The findings of `mmspec check` for a drafter in a tree, over few and short outputs; mini and references are made once."""
    monkeypatch.setattr(mmspec, "load", lambda name: mini)
    run_transformers, alone = module.run_transformers, module._alone

    def reference(pair, inputs, seed, assist):
        key = ("transformers", str(inputs["input_ids"].tolist()), pair.config.run.max_new_tokens)
        if key not in plain:
            plain[key] = run_transformers(pair, inputs, seed, assist).tokens
        return SimpleNamespace(tokens=[list(row) for row in plain[key]])

    def sampled(pair, plan, seeds, known, *, plain: bool, kept=plain):
        run = pair.config.run
        key = ("plain", tuple(plan.prompts), tuple(seeds), run.temperature, run.max_new_tokens)
        if not plain:
            return alone(pair, plan, seeds, known, plain=False)
        if key not in kept:
            kept[key] = alone(pair, plan, seeds, known, plain=True)
        return kept[key]

    monkeypatch.setattr(module, "run_transformers", reference)
    monkeypatch.setattr(module, "_alone", sampled)

    def check(drafter, tree, new=8, prompts=2, letters=60):
        section = DrafterSection(kind=drafter, length=4, tree=TREES[tree])
        pair = load_pair(Config(drafter=section, run=RunSection(max_new_tokens=new)))
        asked = [prompt[:letters] for prompt in pair.examples[:prompts]]
        return verify(pair, Plan(asked, seeds=(0,), logits=False, more=False))[0]

    return check


def test_all_shipped_drafters_are_here(mini):
    assert set(mini.drafters) == set(DRAFTERS)
    assert len(DRAFTERS) == 7


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_check_passes(findings_of, drafter, tree):
    findings = findings_of(drafter, tree)
    assert len(findings) == 4
    for finding in findings:
        assert finding.passed, f"{finding.name}: {finding.detail}"
        assert f"{finding.compared} of {finding.compared} identical" in finding.detail


@pytest.mark.parametrize("tree", ["opt", "dynamic"])
def test_mutant_columns_of_stopped_rows_fail_the_check(findings_of, tree, monkeypatch):
    """As it was: the shipped Kangaroo wrote wrong tokens in these two trees, in batches."""
    monkeypatch.setattr(search, "_expanded", lambda columns, chosen, below, runs: columns.scatter(1, chosen, below))
    failed = {finding.name for finding in findings_of("kangaroo", tree, new=12, prompts=3, letters=None) if not finding.passed}
    assert failed
    assert all("batch of 3" in name for name in failed)
