"""What a request brings: other types are converted, a missing mask is inferred as by generate, what does not fit is refused by name."""

import pytest
import torch

import mmspec
from mmspec.text.inputs.checks import tensors
from tests.companions import perturbed
from tests.families import FAMILIES, VOCAB, build, inputs_for

TOKENS = 12


def said(model, inputs, **options):
    return mmspec.text.generate(model, inputs, max_new_tokens=TOKENS, **options).sequences


def generated(model, inputs):
    found = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)
    return found[:, 1:] if model.config.is_encoder_decoder else found[:, inputs["input_ids"].shape[1] :]


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "T5"])
@pytest.mark.parametrize("ends", ["another id", "the same id", "no id", "none, with an end"])
def test_a_missing_mask_is_the_one_that_generate_infers(name, ends):
    model, inputs = build(FAMILIES[name]), inputs_for(name, 3)
    config = model.generation_config
    config.pad_token_id, config.eos_token_id = {
        "another id": (0, 2),
        "the same id": (0, 0),
        "no id": (0, None),
        "none, with an end": (None, 2),
    }[ends]
    del inputs["attention_mask"]
    for drafter in (None, perturbed(build(FAMILIES[name]))):
        out, expected = said(model, inputs, drafter=drafter), generated(model, inputs)
        assert torch.equal(out, expected[:, : out.shape[1]])


@pytest.mark.parametrize("name", ["Llama", "GPT-2"])
def test_ids_that_the_mask_leaves_out_are_absent_wherever_they_stand(name):
    model, inputs = build(FAMILIES[name]), inputs_for(name, 2)
    model.generation_config.eos_token_id = None
    inputs["attention_mask"][1, 4:7] = 0
    out = said(model, inputs, drafter=perturbed(build(FAMILIES[name])), draft_length=3)
    assert torch.equal(out, generated(model, inputs))
    keep = inputs["attention_mask"][1].bool()
    assert torch.equal(out[1:], generated(model, {"input_ids": inputs["input_ids"][1:, keep]}))


@pytest.mark.parametrize("name", ["Llama", "T5"])
def test_lists_arrays_and_masks_of_other_types_say_the_same(name):
    model, inputs = build(FAMILIES[name]), inputs_for(name, 3)
    plain = said(model, inputs)
    for change in (
        lambda t: t.tolist(),
        lambda t: t.numpy(),
        lambda t: list(t),
        lambda t: [row.numpy() for row in t],
        lambda t: t.int(),
    ):
        assert torch.equal(said(model, {key: change(value) for key, value in inputs.items()}), plain)
    for mask in (inputs["attention_mask"].bool(), inputs["attention_mask"].float()):
        assert torch.equal(said(model, inputs | {"attention_mask": mask}), plain)
    assert torch.equal(said(model, inputs | {"labels": inputs["input_ids"], "token_type_ids": None}), plain)


def test_features_may_be_arrays_and_encoder_states_may_be_what_the_encoder_returned():
    model, inputs = build(FAMILIES["Whisper"]), inputs_for("Whisper", 2)
    plain, states = said(model, inputs), model.get_encoder()(inputs["input_features"])
    assert torch.equal(said(model, {"input_features": inputs["input_features"].double().numpy()}), plain)
    for outputs in (states, (states[0],), states[0]):
        assert torch.equal(said(model, {"encoder_outputs": outputs}), plain)


def test_tensors_keeps_what_it_is_given():
    ids = torch.tensor([[1, 2]])
    found = tensors({"a": ids, "b": [1.5], "c": None, "d": [3]}, "cpu")
    assert found["a"] is ids
    assert found["b"].dtype == torch.float32
    assert found["d"].tolist() == [3]
    assert "c" not in found


GOOD = inputs_for("Llama", 3)
BAD = {
    "inputs is a Tensor: give the dict that a tokenizer or processor returned": GOOD["input_ids"],
    "attention_mask has shape .3, 11.: expected .3, 12., as the ids have": GOOD | {"attention_mask": GOOD["attention_mask"][:, 1:]},
    "attention_mask has shape .2, 12.": GOOD | {"attention_mask": GOOD["attention_mask"][1:]},
    "attention_mask has shape .3, 1, 1, 12.": GOOD | {"attention_mask": GOOD["attention_mask"][:, None, None]},
    "attention_mask .float32. holds other numbers than 0 and 1": GOOD | {"attention_mask": -1e9 * (1.0 - GOOD["attention_mask"])},
    "attention_mask .int64. holds other numbers": GOOD | {"attention_mask": 2 * GOOD["attention_mask"]},
    "input_ids is float32: token ids are whole numbers": GOOD | {"input_ids": GOOD["input_ids"].float()},
    f"input_ids holds {VOCAB}, but LlamaForCausalLM has tokens 0 to {VOCAB - 1}": GOOD | {"input_ids": GOOD["input_ids"].clamp(min=VOCAB)},
    "input_ids holds -100": GOOD | {"input_ids": GOOD["input_ids"] * 0 - 100},
    r"inputs has input_ids as list that is no tensor \(shapes \(2,\), \(1,\)\)": {"input_ids": [[1, 2], [3]]},
    r"inputs has input_ids of type str: pass a tensor": {"input_ids": "Once upon a time"},
    "inputs has position_ids, which is not read for LlamaForCausalLM": GOOD | {"position_ids": GOOD["input_ids"]},
    "inputs has inputs_embeds, which is not read": GOOD | {"inputs_embeds": torch.zeros(3, 12, 32)},
    "inputs has pixel_values, which is not read": GOOD | {"pixel_values": torch.zeros(3, 3, 8, 8)},
}


@pytest.mark.parametrize("words", BAD)
def test_inputs_that_do_not_fit_are_refused_in_one_line(words):
    with pytest.raises(ValueError, match=words) as caught:
        mmspec.text.generate(build(FAMILIES["Llama"]), BAD[words], max_new_tokens=4)
    assert "\n" not in str(caught.value)


def test_token_types_are_refused_where_the_model_would_read_them():
    gpt, llama = build(FAMILIES["GPT-2"]), build(FAMILIES["Llama"])
    given = GOOD | {"token_type_ids": torch.zeros(3, 12, dtype=torch.long)}
    with pytest.raises(ValueError, match="inputs has token_type_ids, which is not read for GPT2LMHeadModel"):
        mmspec.text.generate(gpt, given, max_new_tokens=4)
    assert torch.equal(said(llama, given), said(llama, GOOD))
