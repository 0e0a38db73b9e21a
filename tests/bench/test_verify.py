"""The losslessness check passes what is lossless and fails what is not."""

import json
from dataclasses import dataclass

import pytest
import torch

from mmspec.bench.check import verify as module
from mmspec.bench.check.verify import Plan, verify
from mmspec.bench.compare.peers import run_transformers
from mmspec.cli import app
from mmspec.core.rules.token import Token
from mmspec.loading.text import load_pair
from mmspec.run.config import AcceptSection, Config, DrafterSection, RunSection, TargetSection


@dataclass(frozen=True)
class Generous(Token):
    """Claims to be distribution-exact and keeps too many draft tokens."""

    def accept_prob(self, p, q, x):
        return super().accept_prob(p, q, x) ** 0.1


def pair_of(accept="exact", temperature=0.0, dtype="float32", **drafter):
    return load_pair(
        Config(
            target=TargetSection(dtype=dtype),
            drafter=DrafterSection(**({"kind": "model", "length": 3} | drafter)),
            accept=AcceptSection(kind=accept),
            run=RunSection(max_new_tokens=8, temperature=temperature),
            allow_code=True,
        )
    )


def findings_of(pair, **plan):
    """Of two short prompts: the tests of distributions run 64 rows of each."""
    prompts = [prompt[:40] for prompt in pair.examples[:2]]
    return {f.name: f for f in verify(pair, Plan(prompts, seeds=(0,), **({"logits": False, "more": False} | plan)))[0]}


@pytest.mark.parametrize("drafter", [{"kind": "model"}, {"kind": "suffix"}, {"kind": "model", "tree": [3, 1]}])
def test_a_lossless_pair_passes(drafter):
    found = findings_of(pair_of(**drafter))
    assert len(found) == 4
    assert all(f.passed and f.compared == 2 and "2 of 2 identical" in f.detail for f in found.values())


def test_distribution_exact_rules_are_held_to_the_distribution():
    for rule, passes in (("block", True), ("tests.bench.test_verify:Generous", False)):
        found = findings_of(pair_of(rule, temperature=1.0))
        assert found[f"{rule}: draws from the target's distribution"].passed is passes


def test_a_lossy_rule_fails_and_tells_its_drift():
    found = findings_of(pair_of("lenience", temperature=1.0))["the rule is lossless"]
    assert not found.passed
    assert "lossy by design: drift" in found.detail


def other_last_token(pair, inputs, seed, assist):
    """transformers with a worse last token."""
    outcome = run_transformers(pair, inputs, seed, assist)
    outcome.tokens[0][-1] = (outcome.tokens[0][-1] + 1) % 2000
    return outcome


def test_a_difference_fails_unless_it_is_a_near_tie(monkeypatch):
    monkeypatch.setattr(module, "run_transformers", other_last_token)
    pair, name = pair_of(), "greedy: as transformers generate"
    found = findings_of(pair)[name]
    assert not found.passed
    assert "0 of 2 identical" in found.detail
    assert "differs at token" in found.detail
    assert "apart: not a tie" in found.detail
    found = findings_of(pair, margin=1e6)[name]
    assert found.passed
    assert "apart: a near tie" in found.detail


def test_outputs_of_different_length_are_never_a_tie(monkeypatch):
    def shorter(pair, inputs, seed, assist):
        outcome = run_transformers(pair, inputs, seed, assist)
        del outcome.tokens[0][-1]
        return outcome

    monkeypatch.setattr(module, "run_transformers", shorter)
    assert not findings_of(pair_of(), margin=1e6)["greedy: as transformers generate"].passed


def test_lower_precision_is_judged_by_the_margin():
    pair = pair_of(dtype="bfloat16")
    assert pair.target.dtype is torch.bfloat16
    assert all(f.passed and "of the best score" in f.detail for f in findings_of(pair).values())
    assert not all(f.passed for f in findings_of(pair, margin=-1.0).values())


@pytest.mark.parametrize(("rule", "code"), [("exact", 0), ("typical", 1)])
def test_the_command_exits_by_its_verdict(capsys, monkeypatch, rule, code):
    args = ["check", "--accept", rule, "--limit", "1", "--max-new-tokens", "6", "--draft-length", "3"]
    findings, real = [], module.verify
    monkeypatch.setattr(module, "verify", lambda *given: findings.append(real(*given)) or findings[-1])
    with pytest.raises(SystemExit) as stopped:
        app([*args, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert stopped.value.code == code
    assert found["passed"] is (code == 0)
    assert {"model", "drafter", "exactness", "settings", "stats", "provenance"} < set(found)
    monkeypatch.setattr(module, "verify", lambda *given: findings[-1])  # the same findings, for people
    with pytest.raises(SystemExit) as stopped:
        app(args)
    assert stopped.value.code == code
    assert ("all checks passed" if code == 0 else "1 of ") in capsys.readouterr().out


def test_what_the_budget_leaves_out_is_said():
    ticks = iter(range(100))
    steps, pair = [], pair_of()
    done = lambda amount=1, name="": steps.append((amount, name))  # noqa: E731
    found = findings_of(pair, budget=2.5, clock=lambda: next(ticks), done=done)  # a second a look: two looks are within it
    assert [name for amount, name in steps if amount == 0] == ["greedy", "coupled, seed 0", "greedy in a batch", "coupled in a batch"]
    assert "left out" not in found
    ticks = iter(range(0, 100, 10))
    steps.clear()
    found = findings_of(pair, budget=2.5, clock=lambda: next(ticks), done=done)
    assert steps == [(0, "greedy"), (1, ""), (0, "coupled, seed 0"), (1, "")]  # two checks always run
    assert found["left out"].passed
    assert "greedy in a batch; coupled in a batch" in found["left out"].detail


def test_the_command_takes_a_budget(capsys, monkeypatch):
    plans, cut = [], module.Finding("left out", True, 0, "the budget of 5 seconds was spent before: the rule")
    monkeypatch.setattr(module, "verify", lambda pair, plan: plans.append(plan) or ([cut], module.Stats()))
    for args, budget in (([], 120), (["--budget", "5"], 5), (["--budget", "0"], None)):
        with pytest.raises(SystemExit):
            app(["check", *args, "--json"])
        assert plans[-1].budget == budget
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["complete"] is False
    with pytest.raises(SystemExit):
        app(["check"])
    assert "--budget 0 runs all" in " ".join(capsys.readouterr().out.split())
    for wrong in ("-1", "nan", "inf"):
        with pytest.raises(SystemExit) as stopped:
            app(["check", "--budget", wrong])
        assert stopped.value.code == 2
