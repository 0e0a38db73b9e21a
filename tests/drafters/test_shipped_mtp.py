"""`drafter="mtp"`: the modules in a target's checkpoint, beside transformers' own generation with them."""

from typing import Any

import pytest
import torch
from transformers.cache_utils import MtpCache
from transformers.generation.candidate_generator import MTPCandidateGenerator
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import mmspec
from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.noise import Noise
from mmspec.core.records import Step
from mmspec.core.rules.greedy import Greedy
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.heads.shipped_mtp import ShippedMTP
from mmspec.drafters.shapes import Chain, most_likely
from mmspec.loading.text import load_pair, named_drafter
from mmspec.models.compat.mtp import UNDECLARED, shipped_modules
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.run.config import Config, DrafterSection, TargetSection
from tests.hybrids import prompts, row_of
from tests.shipped_mtp import SHIPPED, folder_of, loaded
from tests.tiny import llama

TOKENS = 14
LENGTHS = (7, 12, 2)
DECLARED = ("DeepSeek-V3", "DeepSeek-V3 two", "GLM-4.5", "Mellum", "Step-3.7")
"""Those that transformers' own `generate(use_mtp=True)` runs."""
REFUSED = {
    "bailing_hybrid": "transformers' config does not say what kind its module is",
    "inkling_text": "its layers have a convolution that cannot be rolled back",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("mtp")


@pytest.fixture(scope="module")
def models(root):
    """A model by its name and strength, made once."""
    found: dict[tuple[str, float], Any] = {}

    def model(name: str, strength: float = 0.6) -> Any:
        if (name, strength) not in found:
            found[name, strength] = loaded(folder_of(name, root, strength))
        return found[name, strength]

    return model


def alone(model: Any, **options: Any) -> list[list[int]]:
    """The new tokens of the class's own `generate` on every prompt alone."""
    found = []
    for row in range(len(LENGTHS)):
        own = row_of(prompts(LENGTHS), row)
        out = model.generate(**own, do_sample=False, max_new_tokens=TOKENS, **options)
        found.append(out[0, own["input_ids"].shape[1] :].tolist())
    return found


@pytest.mark.parametrize("name", SHIPPED)
def test_text_is_that_of_generate_and_of_plain_sampling(models, name):
    model, inputs = models(name), prompts(LENGTHS)
    expected, accepted = alone(model), 0
    sampled = mmspec.text.generate(model, inputs, max_new_tokens=TOKENS, temperature=1.0, seed=3).tokens.tolist()
    for length in (1, 2, 5):
        out = mmspec.text.generate(model, inputs, drafter="mtp", draft_length=length, max_new_tokens=TOKENS)
        assert out.tokens.tolist() == expected, f"drafts of {length}"
        assert 0 < out.stats.accepted < out.stats.drafted
        accepted += out.stats.accepted
        out = mmspec.text.generate(model, inputs, drafter="mtp", draft_length=length, max_new_tokens=TOKENS, temperature=1.0, seed=3)
        assert out.tokens.tolist() == sampled, f"drafts of {length}"
    assert mmspec.text.generate(model, inputs, drafter="mtp", tree=(3, 2, 1), max_new_tokens=TOKENS).tokens.tolist() == expected
    single = mmspec.text.generate(model, row_of(inputs, 1), drafter="mtp", draft_length=3, max_new_tokens=TOKENS)
    assert single.tokens.tolist() == [expected[1]]


@pytest.mark.parametrize("name", SHIPPED)
def test_modules_that_are_always_right_are_accepted_as_a_whole(models, name):
    """Where the next token depends on the token alone, modules that read only the token are right however far ahead they draft."""
    model = models(name, 0.0)
    out = mmspec.text.generate(model, prompts(LENGTHS), drafter="mtp", draft_length=4, max_new_tokens=16)
    assert out.stats.accepted == out.stats.drafted > 0
    assert out.stats.tokens_per_call > 3.9


@pytest.mark.parametrize("name", DECLARED)
def test_draft_tokens_are_those_of_transformers_round_by_round(models, name, monkeypatch):
    model, theirs = models(name), []
    candidates = MTPCandidateGenerator.get_candidates

    def recorded(self, input_ids, **rest):
        found = candidates(self, input_ids, **rest)
        theirs[-1].append(found[0][0, input_ids.shape[1] :].tolist())
        return found

    monkeypatch.setattr(MTPCandidateGenerator, "get_candidates", recorded)
    accepted = 0
    for row in range(len(LENGTHS)):
        theirs.append([])
        own = row_of(prompts(LENGTHS), row)
        text = model.generate(**own, do_sample=False, max_new_tokens=24, use_mtp=True)[0, own["input_ids"].shape[1] :].tolist()
        ours = rounds(model, own, model.config.get_text_config().num_mtp_layers, 24)
        assert [token for step in ours for token in step.committed.values[0]] == text
        assert len(ours) == len(theirs[-1])
        for step, draft in zip(ours, theirs[-1], strict=True):
            mine = step.draft.nodes[0, 1:].tolist()
            assert mine == draft[: len(mine)]
        accepted += len(text) - len(ours)
    assert accepted > 0


def rounds(model: Any, inputs: Any, length: int, new: int) -> list[Step]:
    """Every round of a greedy generation with chains of `length`."""
    found: list[Step] = []
    drafter = GuidedDrafter(ShippedMTP(), Chain(most_likely))
    stopping, noise = DefaultStopping(1, new, ()), Noise.from_seed(0, 1)
    target = HFTarget(model, family_of(model))
    generate(target, drafter, Greedy(), inputs, stopping=stopping, noise=noise, control=Fixed(length), on_step=found.append)
    return found


@pytest.mark.parametrize("name", ["GLM-4.7-Flash", "Qwen3-Next", "Qwen3.5"])
def test_an_undeclared_module_computes_what_transformers_would(models, name):
    """Each draft token of one is the likeliest after the module's forward on the whole text before it."""
    model, own = models(name), row_of(prompts(LENGTHS), 1)
    theirs, text = shipped_modules(model), own["input_ids"]
    checked = 0
    for step in rounds(model, own, 1, TOKENS):
        if step.draft.size > 1:
            hidden = model(text[:, :-1], output_hidden_states=True).hidden_states[-1]
            positions = torch.arange(1, text.shape[1])[None]
            state = theirs.forward_layer(0, hidden, positions, MtpCache(config=theirs.config), input_ids=text[:, 1:])
            assert int(model.lm_head(state[0, -1]).argmax()) == int(step.draft.nodes[0, 1])
            checked += 1
        text = torch.cat([text, torch.tensor([step.committed.values[0]])], 1)
    assert checked > 5


def test_the_families_are_those_that_transformers_names():
    """Configs with a number of modules are transformers' own list of families that `MtpModel` can run."""
    named = set()
    for kind in CONFIG_MAPPING:
        config = CONFIG_MAPPING[kind]
        if hasattr(config, "num_mtp_layers") or "num_mtp_layers" in config.attribute_map:
            named.add(kind)
    run = {SHIPPED[name]().config.get_text_config().model_type for name in SHIPPED}
    assert run - named == set(UNDECLARED) - {"qwen3_5_moe_text"}  # whose decoder layer is qwen3_next's
    assert named - run == set(REFUSED)


def test_refusals(tmp_path, models):
    inputs = prompts((4,))
    with pytest.raises(ValueError, match="LlamaForCausalLM declares no multi-token prediction modules"):
        mmspec.text.generate(llama(), inputs, drafter="mtp", max_new_tokens=4)
    built = SHIPPED["DeepSeek-V3"]().eval()
    with pytest.raises(ValueError, match="it was not loaded from a checkpoint"):
        mmspec.text.generate(built, inputs, drafter="mtp", max_new_tokens=4)
    for name in ("GLM-4.5", "Qwen3-Next"):
        built = SHIPPED[name]()
        built.save_pretrained(tmp_path / name)
        model = loaded(tmp_path / name)
        with pytest.raises(ValueError, match=f"{name} holds no multi-token prediction modules of") as caught:
            mmspec.text.generate(model, inputs, drafter="mtp", max_new_tokens=4)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="view applies to drafters that are transformers models"):
        mmspec.text.generate(models("GLM-4.5"), inputs, drafter="mtp", view="drop", max_new_tokens=4)


def test_the_command_line_takes_the_name_with_a_tree(tmp_path):
    folder = folder_of("Qwen3-Next", tmp_path, 0.6)
    mmspec.load("text").processor.save_pretrained(folder)
    assert named_drafter("mtp") == ("mtp", None)
    for section in (DrafterSection(kind="mtp", length=3), DrafterSection(kind="mtp", tree=(3, 2), options={})):
        pair = load_pair(Config(target=TargetSection(path=str(folder)), drafter=section))
        out = pair.generate(prompts(LENGTHS), max_new_tokens=TOKENS)
        assert out.tokens.tolist() == alone(pair.target)
        assert out.stats.accepted > 0
    section = DrafterSection(kind="mtp", length=3, options={"stop_below": 0.5})
    few = load_pair(Config(target=TargetSection(path=str(folder)), drafter=section)).generate(prompts(LENGTHS), max_new_tokens=TOKENS)
    assert few.tokens.tolist() == out.tokens.tolist()
