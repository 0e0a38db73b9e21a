"""The drop-in gives what transformers' own generate gives, with whatever processors, criteria and streamer it was handed."""

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

import mmspec
from tests.families import FAMILIES, VOCAB, build, inputs_for

TOKENS = 24


class BanAfter(LogitsProcessor):
    """Bans the id that followed the last id before: needs each node's own history."""

    def __call__(self, input_ids, scores):
        out = scores.clone()
        last = input_ids[0, -1].item()
        out[0, (last * 7 + 3) % VOCAB] = -torch.inf
        return out


class StopOnSum(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([bool(row[12:].sum() > 400) for row in input_ids])


class Collect:
    def __init__(self):
        self.seen, self.ended = [], False

    def put(self, value):
        self.seen += value.flatten().tolist()

    def end(self):
        self.ended = True


@pytest.fixture(scope="module")
def model():
    return build(FAMILIES["Llama"])


GREEDY = {
    "plain": {},
    "penalty": {"repetition_penalty": 1.4},
    "no repeats": {"no_repeat_ngram_size": 2},
    "minimum": {"min_new_tokens": 20},
    "bans": {"suppress_tokens": [7, 9, 11], "bad_words_ids": [[5, 6]]},
    "forced end": {"forced_eos_token_id": 2},
    "custom processor": {"logits_processor": LogitsProcessorList([BanAfter()])},
    "custom criterion": {"stopping_criteria": StoppingCriteriaList([StopOnSum()])},
}


@pytest.mark.parametrize("tree", [None, (2, 2, 1)])
@pytest.mark.parametrize("name", GREEDY)
def test_greedy_equals_generate_under_every_setting(model, name, tree):
    inputs = inputs_for("Llama", 1)
    options = {"do_sample": False, "max_new_tokens": TOKENS, **GREEDY[name]}
    expected = model.generate(**inputs, **options)
    drafter = model if name != "custom processor" else build(FAMILIES["Llama"], seed=3)
    out = model.generate(**inputs, **options, custom_generate=mmspec.text.speculate(drafter, draft_length=4, tree=tree))
    assert torch.equal(out, expected)


def test_sampling_settings_reach_the_distribution(model):
    inputs = inputs_for("Llama", 3)
    options = {"do_sample": True, "temperature": 0.8, "top_k": 12, "top_p": 0.9, "max_new_tokens": TOKENS}
    out = model.generate(**inputs, **options, custom_generate=mmspec.text.speculate(model, draft_length=4, seed=6))
    own = mmspec.text.generate(model, inputs, max_new_tokens=TOKENS, temperature=0.8, top_k=12, top_p=0.9, seed=6)
    assert torch.equal(out[:, 12:], own.sequences)


@pytest.mark.parametrize("name", ["T5", "BART"])
def test_encoder_decoders_reuse_the_encoder_states_they_are_given(name):
    model, inputs = build(FAMILIES[name]), inputs_for(name, 3)
    expected = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)
    out = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS, custom_generate=mmspec.text.speculate("lookup", draft_length=4))
    assert torch.equal(out, expected)


def test_the_streamer_sees_the_prompt_and_every_token_once(model):
    inputs, streamer = inputs_for("Llama", 1), Collect()
    out = model.generate(
        **inputs, do_sample=False, max_new_tokens=TOKENS, streamer=streamer, custom_generate=mmspec.text.speculate(model, draft_length=4)
    )
    assert streamer.seen == out[0].tolist()
    assert streamer.ended


def test_a_dict_is_returned_when_asked_for(model):
    out = model.generate(
        **inputs_for("Llama", 1), do_sample=False, max_new_tokens=4, return_dict_in_generate=True, custom_generate=mmspec.text.speculate()
    )
    assert out.sequences.shape == (1, 16)


@pytest.mark.parametrize(("option", "message"), [({"num_beams": 3}, "num_beams is 3"), ({"output_scores": True}, "output_scores is on")])
def test_what_has_no_speculative_form_is_refused_in_one_line(model, option, message):
    with pytest.raises(ValueError, match=message):
        model.generate(
            **inputs_for("Llama", 1),
            do_sample=False,
            max_new_tokens=4,
            return_dict_in_generate=True,
            **option,
            custom_generate=mmspec.text.speculate(),
        )
