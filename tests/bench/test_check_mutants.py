"""`mmspec check` finds planted mistakes in targets and drafters, says what the likely cause is, and passes the named families."""

from dataclasses import dataclass, replace

import pytest
import torch

from mmspec.bench.check.custom import pair_of_models
from mmspec.bench.check.findings import CAUSES, likely_cause
from mmspec.bench.check.models import check_model
from mmspec.bench.check.targets import check_target
from mmspec.bench.check.verify import Plan, verify
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import pipeline
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.shapes import Chain, sampled
from mmspec.models import session as sessions
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.run.config import Config, RunSection
from tests.families import FAMILIES, build
from tests.proof_mutants import ALTERED, HARMLESS, LAYOUTS, MODELS, dropout_left_on, laid_out, nan_weights, one_percent_noise
from tests.text.test_families import another

NAMED = ("Llama", "Qwen2", "Qwen3", "Mistral", "Gemma-3", "Phi-3", "GPT-2", "GPT-NeoX", "OPT", "T5", "BART", "Whisper")
ALONE = {"drafter": None}


def checked(target, drafter=None, tokens=16, **plan):
    pair = pair_of_models(target, drafter, config=Config(run=RunSection(max_new_tokens=tokens)))
    findings, _ = verify(pair, Plan(pair.examples[:2], seeds=(0,), **plan))
    return findings


def cause_of(findings) -> str:
    assert not all(finding.passed for finding in findings)
    assert all(finding.cause for finding in findings if not finding.passed), [f for f in findings if not f.passed]
    return likely_cause(findings)


@pytest.mark.parametrize("name", NAMED)
def test_the_named_families_pass(name):
    findings = checked(build(FAMILIES[name]), another(name), tokens=8)
    assert all(finding.passed for finding in findings), [finding for finding in findings if not finding.passed]
    assert likely_cause(findings) == ""
    assert len(findings) >= 20


# --- targets ---------------------------------------------------------------------------------------------------------------


TARGETS = {
    "ALiBi by slot": (MODELS["ALiBi by slot"], "tree"),
    "rope switch": (MODELS["rope switch"], "window"),
    "a bidirectional encoder": (MODELS["a bidirectional encoder"], "causal"),
    "NaN logits": (lambda: nan_weights(build(FAMILIES["Llama"])), "nan"),
    "dropout left on": (lambda: dropout_left_on(build(FAMILIES["Llama"])), "repeat"),
    "1 % noise": (lambda: one_percent_noise(build(FAMILIES["Llama"])), "repeat"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_wrong_targets_are_found(name):
    make, kind = TARGETS[name]
    assert cause_of(checked(make(), more=False)) == CAUSES[kind]


@pytest.mark.parametrize(
    ("name", "place"),
    {
        "torch's dynamic int8": "model.layers.0.self_attn.q_proj (torch.ao.",
        "a hook on the last column": "model.layers.1 (LlamaDecoderLayer, which has a forward hook)",
        "an adapter with batch statistics": "model.layers.0.mlp.norm (BatchNorm1d)",
        "one scale for all columns": "model.layers.0.",
    }.items(),
)
def test_the_layer_is_named_whose_columns_depend_on_each_other(monkeypatch, name, place):
    findings = checked(ALTERED[name][0](monkeypatch), another("Llama"), more=False)
    cause = likely_cause(findings)
    assert cause.startswith(place)
    assert cause.endswith(CAUSES["columns"])
    assert not any("drafter" in finding.cause for finding in findings)
    assert not any("both directions" in finding.detail for finding in findings)


@pytest.mark.parametrize("name", HARMLESS)
def test_altered_targets_that_are_exact_pass(name):
    findings = check_model(HARMLESS[name]())
    assert all(finding.passed for finding in findings), [finding for finding in findings if not finding.passed]


@pytest.mark.parametrize(("name", "kind"), zip(LAYOUTS, ("chain", "chain", "tree"), strict=True))
def test_wrong_sessions_are_found(monkeypatch, name, kind):
    monkeypatch.setattr(sessions, "draft_layout", laid_out(LAYOUTS[name]))
    assert cause_of(checked(build(FAMILIES["Llama"]), more=False)) == CAUSES[kind]


# --- drafters --------------------------------------------------------------------------------------------------------------


def drafter_of(shape, model=None):
    """A small model that drafts with `shape`, at the temperature of the checks."""
    model = another("Llama") if model is None else model
    return ModelDrafter(HFTarget(model, family_of(model), pipeline(temperature=0.8)), shape)


def sharper(distribution, keys):
    """Draws at a lower temperature than the q it reports."""
    return Categorical(distribution.scores * 1.3).sample(keys), distribution


@dataclass(frozen=True)
class Leaky(Noise):
    """Numbers for draft tokens are those that will judge them."""

    role: str = "accept"

    def draft_token(self, position, start, branch=0):
        return self.value(position) if self.role == "value" else getattr(self, self.role)(position, start)


@dataclass(frozen=True)
class Leaking(Chain):
    role: str = "accept"

    def grow(self, score, draft, budget, noise):
        return super().grow(score, draft, budget, Leaky(noise.seeds, role=self.role))


def by_inversion(distribution, keys):
    """A draw by the first number of the stream, which is the one that acceptance looks at."""
    return (distribution.probs().cumsum(-1) < keys.uniform()[..., None]).sum(-1).clamp(max=distribution.scores.shape[-1] - 1), distribution


def test_an_honest_drafter_passes():
    findings = checked(build(FAMILIES["Llama"]), drafter_of(Chain(sampled)), logits=False)
    assert all(finding.passed for finding in findings)
    assert sum(finding.name.startswith("drafter:") for finding in findings) == 3


@pytest.mark.parametrize(
    ("drafter", "kind"),
    [
        (lambda: nan_weights(another("Llama")), "drafter nan"),
        (lambda: drafter_of(Chain(sharper)), "q"),
        (lambda: drafter_of(Leaking(sampled)), "noise"),
        (lambda: drafter_of(Leaking(sampled, role="residual")), "noise"),
        (lambda: drafter_of(Leaking(by_inversion)), "noise"),
    ],
    ids=["NaN", "sharper than its q", "leaks acceptance", "leaks replacement", "leaks acceptance by inversion"],
)
def test_wrong_drafters_are_found(drafter, kind):
    assert cause_of(checked(build(FAMILIES["Llama"]), drafter(), logits=False)) == CAUSES[kind]


# --- targets of one's own --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forgetful:
    """A target whose session drops a slot of every draft longer than two."""

    own: HFTarget

    def begin(self, prompt):
        session, pending = self.own.begin(prompt)
        commit = session.commit

        def wrong(keep, most):
            commit(keep, most)
            if keep.shape[1] > 2:
                session.lengths = session.lengths - 1

        session.commit = wrong
        return session, pending


def test_any_target_can_be_checked():
    model = build(FAMILIES["Llama"])
    own = HFTarget(model, family_of(model))
    pair = pair_of_models(model)
    prompts = [pair.inputs(pair.examples[:2]), pair.inputs(pair.examples[2:3])]
    right = check_target(own, prompts, drafter_of(Chain(sampled)), seeds=(0,))
    assert len(right) == 7
    assert all(finding.passed for finding in right)
    wrong = check_target(Forgetful(own), prompts, seeds=(0,))
    assert not all(finding.passed for finding in wrong)
    assert cause_of(wrong) == CAUSES["chain"]
    noisy = check_target(HFTarget(one_percent_noise(build(FAMILIES["Llama"])), own.family), prompts)
    assert cause_of(noisy) == CAUSES["repeat"]


def test_causes_are_those_of_the_first_thing_that_failed():
    findings = checked(build(FAMILIES["Llama"]), more=False)
    late = [replace(f, passed=f.kind not in ("tokens", "tree")) for f in findings]
    assert likely_cause(late) == CAUSES["tree"]
    assert likely_cause([replace(f, passed=f.kind != "tokens") for f in findings]) == CAUSES["engine"]
    assert torch.is_grad_enabled()
