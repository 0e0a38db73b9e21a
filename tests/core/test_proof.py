"""An architecture that mmspec's tests do not cover is tested before it runs, and refused, or without trees, where it differs."""

import json
from dataclasses import replace

import accelerate
import pytest
import torch
import transformers as hf

import mmspec
from mmspec.bench.check.custom import pair_of_models
from mmspec.bench.check.drafters import check_drafter
from mmspec.core.rules.greedy import Greedy
from mmspec.core.rules.token import Token
from mmspec.models import session as sessions
from mmspec.models.alterations import alterations
from mmspec.models.families.base import DecoderOnly
from mmspec.models.families.registry import family_of
from mmspec.models.proof import cases as proof_cases
from mmspec.models.proof import facts as proof_facts
from mmspec.models.proof import require as proof
from mmspec.models.proof import store as proof_store
from mmspec.models.proof.probes import Probe
from mmspec.models.proof.require import Proof, prove, require
from mmspec.models.target import HFTarget
from mmspec.run.config import Config, RunSection
from mmspec.run.drafters import drafter_of
from tests.families import FAMILIES, build, inputs_for
from tests.hybrids import HYBRIDS
from tests.proof_mutants import ALTERED, HARMLESS, LAYOUTS, MODELS, laid_out, last_column_hooked, one_percent_noise, untested
from tests.sizes import LLAMA, STATES, Case

LIMITED = ("Nemotron-H", "Zamba2")
"""Their configs may limit time steps, which the settings that are listed do not tell: each is tested before it runs."""
NAMED = ("Llama", "Qwen2", "Qwen3", "Mistral", "Gemma-3", "Phi-3", "GPT-2", "GPT-NeoX", "OPT", "T5", "BART", "Whisper")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch, tmp_path):
    """Every test starts with nothing known and a folder of its own."""
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(proof, "_known", {})
    monkeypatch.setattr(proof, "_seen", type(proof._seen)())


def ids(*lengths):
    return {"input_ids": torch.randint(3, 50, (len(lengths), max(lengths))), "attention_mask": torch.ones(len(lengths), max(lengths))}


# --- what is tested ------------------------------------------------------------------------------------------------------


def test_every_entry_of_the_list_is_a_family_of_the_suite():
    found = {}
    listed = [case for name, case in HYBRIDS.items() if name not in LIMITED]
    for case in (*FAMILIES.values(), *listed):
        model = build(case)
        found.setdefault(type(model).__name__, set()).add(proof_facts.facts(model))
    tested = {name: set(settings) for name, settings in proof_facts.TESTED.items() if STATES or name in found}
    assert tested == found


@pytest.mark.parametrize("name", NAMED)
def test_the_named_families_pass_the_self_test(monkeypatch, name):
    monkeypatch.setattr(proof_facts, "TESTED", {})
    assert prove(build(FAMILIES[name])) == Proof(True, True)


def test_tested_models_are_not_run(monkeypatch):
    model = build(FAMILIES["Llama"])
    monkeypatch.setattr(proof_cases, "Probe", None)
    assert require(model, trees=True) == Proof(True, True)


def test_a_class_of_the_same_name_is_not_trusted():
    kind = type("LlamaForCausalLM", (hf.LlamaForCausalLM,), {"__module__": "elsewhere"})
    assert not proof_facts.tested(build(Case(lambda: kind(hf.LlamaConfig(**LLAMA)), "decoder")))


# --- what is found -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_wrong_models_are_found(name):
    found = prove(MODELS[name]())
    words = {
        "ALiBi by slot": "branching",
        "rope switch": "over more positions",
        "a bidirectional encoder": "not causal",
        "dropout left on": "is in training mode",
        "1 % noise": "two identical forwards differ",
        "NaN logits": "NaN",
    }
    assert found.exact is (name == "ALiBi by slot")
    assert not found.trees
    assert words[name] in found.seen
    assert "\n" not in found.seen


@pytest.mark.parametrize("name", LAYOUTS)
def test_wrong_sessions_are_found(monkeypatch, name):
    monkeypatch.setattr(sessions, "draft_layout", laid_out(LAYOUTS[name]))
    found = prove(untested())
    assert (found.exact, found.trees) == (name == "sibling seen", False)
    assert "differ by" in found.seen


def test_a_window_off_by_one_is_found(monkeypatch):
    model = build(Case(lambda: hf.MistralForCausalLM(hf.MistralConfig(**LLAMA, sliding_window=4096)), "decoder"))
    monkeypatch.setattr(proof_facts, "TESTED", {})
    assert prove(model).exact
    real = DecoderOnly._masks
    wider = lambda self, *args: real(replace(self, window=self.window + 1), *args)  # noqa: E731
    monkeypatch.setattr(DecoderOnly, "_masks", wider)
    monkeypatch.setattr(proof, "_known", {})
    monkeypatch.setattr(proof, "_seen", type(proof._seen)())
    monkeypatch.setattr(proof_store, "read_proof", lambda digest: None)
    found = prove(model)
    assert not found.exact
    assert "across its sliding window" in found.seen


@pytest.mark.parametrize("name", ALTERED)
def test_altered_models_of_covered_classes_are_found(monkeypatch, name):
    make, words = ALTERED[name]
    model = make(monkeypatch)
    assert proof_facts.tested(model)  # by class and config alone
    found = prove(model)
    assert not found.exact
    assert words in found.seen
    assert "\n" not in found.seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", HARMLESS)
def test_altered_models_that_are_exact_are_accepted(monkeypatch, name, dtype):
    probes = []
    monkeypatch.setattr(proof_cases, "Probe", lambda *args, **more: probes.append(args) or Probe(*args, **more))
    assert prove(HARMLESS[name]().to(dtype)) == Proof(True, True)
    assert len(probes) == 1  # it was tested itself


@pytest.mark.parametrize("name", FAMILIES)
def test_a_hook_that_only_looks_refuses_no_family(name):
    model = build(FAMILIES[name])
    model.get_decoder().register_forward_hook(lambda *args: None)
    assert prove(model).exact


@pytest.mark.parametrize(
    "name", ["accelerate's hooks", "weights elsewhere", "compiled", "a compiled layer", "recorded states", "shared weights"]
)
def test_what_libraries_do_without_changing_a_result_is_no_alteration(monkeypatch, tmp_path, name):
    model = build(FAMILIES["Llama"])
    monkeypatch.setattr(proof_cases, "Probe", None)
    if name == "hooks":
        accelerate.hooks.attach_align_device_hook(model, execution_device=torch.device("cpu"))
    elif name == "weights elsewhere":
        model = accelerate.cpu_offload(model, torch.device("cpu"))
    elif name == "compiled":
        model.compile()
    elif name == "a compiled layer":
        model.model.layers[0] = torch.compile(model.model.layers[0])
        model.model.layers[1].forward = torch.compile(model.model.layers[1].forward)
    elif name == "recorded states":
        model(torch.tensor([[3, 4]]), output_hidden_states=True, output_attentions=True)
    else:
        model.lm_head.weight = model.model.embed_tokens.weight
    assert not list(alterations(model))
    assert prove(model) == Proof(True, True)


@pytest.mark.parametrize("name", ["torch's dynamic int8", "a hook on the last column", "an adapter with batch statistics"])
@pytest.mark.parametrize("accept", ["exact", "token"])
def test_an_altered_drafter_changes_nothing_but_acceptance(monkeypatch, name, accept):
    target, inputs = build(FAMILIES["Llama"], seed=1), inputs_for("Llama", 2)
    drafter = ALTERED[name][0](monkeypatch)
    if accept == "exact":
        options = {"max_new_tokens": 8, "temperature": 0.7, "seed": 3}
        out = mmspec.text.generate(target, inputs, drafter=drafter, draft_length=3, **options)
        assert torch.equal(out.tokens, mmspec.text.generate(target, inputs, **options).tokens)
        assert out.stats.drafted > 0
    else:
        config = Config(run=RunSection(max_new_tokens=16, temperature=0.8))
        pair = pair_of_models(target, drafter, accept=Token(), config=config)
        found = check_drafter(pair, pair.examples[:2])
        assert {finding.name for finding in found} >= {"drafter: draws from its q"}
        assert all(finding.passed and "nothing to test" not in finding.detail for finding in found), found


def test_a_covered_class_is_looked_at_anew_when_its_model_changes(monkeypatch):
    model = build(FAMILIES["Llama"])
    assert prove(model).exact
    last_column_hooked(model)
    assert not prove(model).exact
    monkeypatch.setattr(proof_cases, "Probe", None)  # what was found is kept
    assert not prove(model).exact
    model.model.layers[1]._forward_hooks.clear()
    assert prove(model).exact


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_as_its_class_makes_it_is_not_altered(name):
    model, state = build(FAMILIES[name]), torch.get_rng_state()
    assert not list(alterations(model))
    assert torch.equal(torch.get_rng_state(), state)


def test_lower_precision_is_held_to_its_own_rounding():
    for dtype in (torch.bfloat16, torch.float16):
        assert prove(untested().to(dtype)) == Proof(True, True)


# --- what follows --------------------------------------------------------------------------------------------------------


def test_a_wrong_model_is_refused_in_one_line_before_anything_runs():
    model = MODELS["rope switch"]()
    for call in (
        lambda: mmspec.text.generate(model, ids(4), max_new_tokens=4),
        lambda: model.generate(**ids(4), max_new_tokens=4, custom_generate=mmspec.text.speculate()),
    ):
        with pytest.raises(ValueError, match="use plain transformers generation") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_model_without_trees_drafts_chains():
    model = MODELS["ALiBi by slot"]()
    inputs = {"input_ids": torch.randint(3, 50, (1, 6))}
    expected = inputs["input_ids"]
    for _ in range(8):
        expected = torch.cat([expected, model(expected, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    out = mmspec.text.generate(model, inputs, drafter=model, draft_length=3, max_new_tokens=8)
    assert torch.equal(out.sequences, expected[:, 6:])
    with pytest.raises(ValueError, match="leave tree out"):
        mmspec.text.generate(model, inputs, drafter=model, tree=(2, 2), max_new_tokens=8)
    branching = drafter_of(model, HFTarget(model, family_of(model)), Greedy(), (2, 2))
    with pytest.raises(ValueError, match="the draft branches"):
        mmspec.text.generate(model, inputs, drafter=branching, draft_length=2, max_new_tokens=8)


def test_a_family_may_say_that_it_has_no_trees(monkeypatch):
    monkeypatch.setattr(DecoderOnly, "trees", False, raising=False)
    model, inputs = build(FAMILIES["Llama"]), inputs_for("Llama", 1)
    assert mmspec.text.generate(model, inputs, drafter=model, draft_length=2, max_new_tokens=4).lengths.tolist() == [4]
    with pytest.raises(ValueError, match="leave tree out"):
        mmspec.text.generate(model, inputs, drafter=model, tree="comb", max_new_tokens=4)


def test_a_model_without_a_twin_is_tested_itself(monkeypatch):
    def none(model, seed=0):
        raise ValueError("sizes")

    monkeypatch.setattr(proof_cases, "twin_of", none)
    near = lambda window: hf.MistralForCausalLM(hf.MistralConfig(**LLAMA, sliding_window=window))  # noqa: E731
    monkeypatch.setattr(proof_facts, "TESTED", {})
    assert prove(build(Case(lambda: near(8), "decoder"))) == Proof(True, True)
    far = build(Case(lambda: near(120), "decoder"))
    found = prove(far)
    assert (found.exact, found.trees, found.reach) == (True, True, 120)
    with pytest.raises(ValueError, match="take 120 positions together, but take 124"):
        mmspec.text.generate(far, ids(114), max_new_tokens=10)
    assert mmspec.text.generate(far, ids(6), max_new_tokens=2).lengths.tolist() == [2]
    assert not prove(MODELS["a bidirectional encoder"]()).exact


# --- what is kept --------------------------------------------------------------------------------------------------------


def test_a_proof_is_kept_in_the_process_and_on_disk(monkeypatch, tmp_path):
    runs = []
    real = proof_cases.check_twin
    monkeypatch.setattr(proof, "check_twin", lambda model: runs.append(model) or real(model))
    assert prove(untested()) == Proof(True, True)
    (file,) = (tmp_path / "proofs").iterdir()
    assert json.loads(file.read_text()) == {"exact": True, "trees": True, "seen": "", "reach": None}
    assert prove(untested()) == Proof(True, True)
    monkeypatch.setattr(proof, "_known", {})
    assert prove(untested()) == Proof(True, True)
    assert len(runs) == 1
    file.write_text("{ not json")
    monkeypatch.setattr(proof, "_known", {})
    assert prove(untested()) == Proof(True, True)
    assert len(runs) == 2


def test_weights_are_looked_at_even_where_the_class_is_known():
    assert prove(untested()).exact
    assert not prove(MODELS["NaN logits"]()).exact
    assert not prove(MODELS["dropout left on"]()).exact
    assert not prove(MODELS["1 % noise"]()).exact
    assert prove(untested()).exact


def test_a_model_that_has_changed_is_looked_at_anew():
    model = untested()
    assert prove(model).exact
    found = prove(one_percent_noise(model))
    assert not found.exact
    assert "two identical forwards differ" in found.seen


def test_nothing_is_lost_where_nothing_can_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "file"))
    assert prove(untested()) == Proof(True, True)


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    assert proof_store.folder() == tmp_path / "proofs"
    monkeypatch.delenv("MMSPEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert proof_store.folder() == tmp_path / "shared" / "mmspec" / "proofs"


def test_the_model_and_the_random_state_stay_as_they_were():
    model = untested()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state, config = torch.get_rng_state(), model.config.to_dict()
    prove(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.config.to_dict() == config
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())
