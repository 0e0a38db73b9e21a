"""Every family gives the tokens of transformers' own greedy decoding, whatever the draft."""

import copy
from functools import cache
from pathlib import Path

import pytest
import torch

import mmspec
from mmspec.drafters.shapes import Comb, top
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.drafters.trees.static import StaticTree, Template
from mmspec.models.families.registry import family_of
from tests.crossing import as_one_batch, generated_alone
from tests.families import FAMILIES, FRAME_BOUND, REFUSED, build, inputs_for, named_families
from tests.seeing import SIGHTS
from tests.sizes import STATES

TOKENS = 12
DRAFTS = {
    "plain": {},
    "chain": {"draft_length": 4},
    "tree": {"tree": StaticTree(Template.branching((3, 2, 1)), top)},
    "comb": {"tree": Comb(3, top), "draft_length": 4},
    "search": {"tree": ExpandRerank(3, 3, 8)},
}


def in_turn(name: str, *shapes: str) -> str:
    """A shape of drafts for one family. Families take turns, so that many families have each shape."""
    return shapes[list(FAMILIES).index(name) % len(shapes)]


def reference(name: str, model, inputs) -> torch.Tensor:
    """Greedy tokens by transformers, new ones only."""
    never_generated_ids = list(
        getattr(family_of(model), "never_generated_ids", ())
    )  # a placeholder written would be one without sound or picture
    suppress = never_generated_ids or model.generation_config.suppress_tokens
    if name == "Mllama":  # transformers' own rows depend on their neighbours
        return as_one_batch(generated_alone(model, inputs, max_new_tokens=TOKENS, suppress_tokens=suppress))
    out = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, suppress_tokens=suppress)
    if name == "Whisper":
        return out  # its generate leaves out the decoder's prompt and, with it, the end token
    return out[:, 1:] if model.config.is_encoder_decoder else out[:, inputs["input_ids"].shape[1] :]


def hooks(model) -> list[int]:
    """How many hooks each module has. transformers leaves its own on towers that hand out hidden states."""
    return [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]


@cache
def model_of(name: str):
    return build(FAMILIES[name])


@cache
def drafter_of(name: str):
    return another(name)


def another(name: str):
    """A drafter of the same family that often disagrees."""
    drafter = build(FAMILIES[name])
    torch.manual_seed(5)
    for parameter in drafter.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.05)
    return drafter


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_equals_generate(name, rows):
    model, drafter, inputs = model_of(name), drafter_of(name), inputs_for(name, rows)
    expected = reference(name, model, inputs)
    before, hooked = copy.deepcopy(model.config.to_dict()), hooks(model)
    searched = () if name in SIGHTS else (in_turn(name, "comb", "search"),)  # models that see have tests of their own
    for draft in ("plain", *(("chain", "tree", *searched) if rows > 1 else (in_turn(name, *list(DRAFTS)[1:]),))):
        extra = {} if draft == "plain" else {"drafter": drafter}
        out = mmspec.text.generate(model, inputs, max_new_tokens=TOKENS, **extra, **DRAFTS[draft])
        assert torch.equal(out.sequences[:, : expected.shape[1]], expected), f"{name}, batch {rows}, {draft}"
        assert name == "Whisper" or out.sequences.shape == expected.shape
    assert model.config.to_dict() == before
    assert hooks(model) == hooked


@pytest.mark.parametrize("name", FAMILIES)
def test_target_as_its_own_drafter_accepts_everything(name):
    model, inputs = build(FAMILIES[name]), inputs_for(name, 3)
    model.generation_config.eos_token_id = None
    for options in ({"temperature": 0.0}, {"temperature": 1.0}):
        out = mmspec.text.generate(model, inputs, drafter=model, draft_length=4, max_new_tokens=10, **options)
        assert out.stats.tokens_per_call == 5.0, f"{name}, {options}"


@pytest.mark.parametrize("name", FAMILIES)
def test_coupled_sampling_equals_plain_sampling(name):
    model, drafter, inputs = model_of(name), drafter_of(name), inputs_for(name, 3)
    plain = mmspec.text.generate(model, inputs, max_new_tokens=TOKENS, temperature=1.0, seed=4)
    options = {"chain": {"draft_length": 4}, "comb": {"tree": "comb"}, "tree": {"tree": (3, 2, 1)}}[in_turn(name, "chain", "comb", "tree")]
    out = mmspec.text.generate(model, inputs, drafter=drafter, max_new_tokens=TOKENS, temperature=1.0, seed=4, **options)
    assert torch.equal(out.sequences, plain.sequences), f"{name}, {options}"


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "T5"])
def test_the_padding_side_does_not_matter(name):
    model = build(FAMILIES[name])
    left, right = inputs_for(name, 3, "left"), inputs_for(name, 3, "right")
    if name != "T5":  # the same prompts, padded on the other side
        for row in range(3):
            ids = left["input_ids"][row][left["attention_mask"][row].bool()]
            right["input_ids"][row] = 0
            right["input_ids"][row, : len(ids)] = ids
        one, other = (mmspec.text.generate(model, inputs, drafter=model, draft_length=3, max_new_tokens=TOKENS) for inputs in (left, right))
        assert torch.equal(one.sequences, other.sequences)
        return
    out = mmspec.text.generate(model, right, drafter=model, draft_length=3, max_new_tokens=TOKENS)
    assert torch.equal(out.sequences, reference(name, model, right))


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_roll_back_are_refused_in_one_line(name):
    model = build(REFUSED[name])
    with pytest.raises(ValueError, match="cannot be rolled back") as caught:
        mmspec.text.generate(model, inputs_for(name, 1), max_new_tokens=4)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FRAME_BOUND)
def test_models_bound_to_frames_are_refused_in_one_line(name):
    with pytest.raises(ValueError, match="ahead of the sound") as caught:
        mmspec.text.generate(build(FRAME_BOUND[name]), inputs_for(name, 1), max_new_tokens=4)
    assert "\n" not in str(caught.value)


def test_eager_attention_gives_the_same_tokens():
    model, inputs = build(FAMILIES["Mistral"]), inputs_for("Mistral", 3)
    expected = reference("Mistral", model, inputs)
    model.set_attn_implementation("eager")
    out = mmspec.text.generate(model, inputs, drafter=model, tree=(2, 2), max_new_tokens=TOKENS)
    assert torch.equal(out.sequences, expected)


@pytest.mark.skipif(not STATES, reason="some families need transformers 5.23")
def test_the_page_lists_the_named_families():
    page = Path(__file__).parents[2] / "docs" / "families.md"
    assert "\n".join(named_families()) in page.read_text(encoding="utf-8"), "run: python -m tests.sweep --write docs/families.md"
