"""Canaries: each reach into transformers' internals works as `mmspec.core.compat` assumes with the release installed here."""

import inspect

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import logits_process as known
from transformers.generation.streamers import BaseStreamer

from mmspec.core import compat
from tests.families import FAMILIES, build, inputs_for


@pytest.fixture(scope="module")
def model():
    return build(FAMILIES["Llama"])


def caught(model, inputs, ask, **options):
    """What `ask` finds inside a custom decoding function."""
    found = []

    def decode(model, input_ids, **kwargs):
        found.append(ask())
        return input_ids

    model.generate(**inputs, max_new_tokens=2, do_sample=False, **options, custom_generate=decode)
    return found[0]


class Silent(BaseStreamer):
    def put(self, value):
        pass

    def end(self):
        pass


def test_the_call_of_generate_is_found_with_what_it_does_not_pass_on(model):
    inputs, streamer = inputs_for("Llama", 1), Silent()
    call = caught(model, inputs, compat.generate_call, streamer=streamer, assistant_model=model, synced_gpus=False, top_k=3)
    assert call.streamer is streamer
    assert call.assistant_model is model
    assert call.synced_gpus is False
    assert call.keywords["input_ids"] is inputs["input_ids"]
    assert call.keywords["top_k"] == 3


def test_pictures_are_found_as_the_caller_gave_them():
    model, inputs = build(FAMILIES["LLaVA"]), inputs_for("LLaVA", 3)
    assert caught(model, inputs, compat.generate_call).keywords["pixel_values"] is inputs["pixel_values"]


def test_no_call_of_generate_is_found_where_there_is_none():
    assert compat.generate_call() is None
    assert compat.encoder_source(1) == {}
    compat.keep_tokenizer()


def test_the_innermost_call_is_found(model):
    def nested():
        return caught(model, inputs_for("Llama", 1), compat.generate_call, top_k=7).keywords["top_k"]

    assert caught(model, inputs_for("Llama", 1), nested, top_k=3) == 7


def test_the_tokenizer_reaches_a_function_that_names_it(model):
    class Decode:
        @property
        def __signature__(self):
            compat.keep_tokenizer()
            return inspect.signature(type(self).__call__)

        def __call__(self, model, input_ids, tokenizer=None, **kwargs):
            self.seen = tokenizer
            return input_ids

    decode, tokenizer = Decode(), object()
    model.generate(**inputs_for("Llama", 1), max_new_tokens=2, tokenizer=tokenizer, custom_generate=decode)
    assert decode.seen is tokenizer


@pytest.mark.parametrize("rows", [1, 3])
def test_what_an_encoder_reads_is_found(rows):
    model, inputs = build(FAMILIES["T5"]), inputs_for("T5", rows)
    source = caught(model, inputs, lambda: compat.encoder_source(2 * rows))
    assert torch.equal(source["input_ids"], inputs["input_ids"].repeat_interleave(2, 0))


def test_plain_sampling_is_generate_itself(model):
    inputs = inputs_for("Llama", 3)

    def decode(model, input_ids, **kwargs):
        return compat.plain_sample(model, input_ids, **kwargs)

    options = {"do_sample": False, "max_new_tokens": 8}
    expected = model.generate(**inputs, **options)
    assert torch.equal(model.generate(**inputs, **options, custom_generate=decode), expected)


def test_the_prefix_function_and_the_defaults_are_where_they_were():
    def allowed(row, ids):
        return [1]

    assert compat.prefix_function(known.PrefixConstrainedLogitsProcessor(allowed, 1)) == (allowed, 1)
    assert compat.generation_defaults()["num_beams"] == 1
    assert "_get_default_generation_params" in vars(GenerationConfig)


def test_replaced_inputs_are_noticed(model):
    assert not compat.inputs_replaced(model)
    model.prepare_inputs_for_generation = model.prepare_inputs_for_generation
    try:
        assert compat.inputs_replaced(model)
    finally:
        del model.prepare_inputs_for_generation


def test_generation_goes_through_the_mixins_generate(model):
    assert "generate" not in vars(type(model))
    assert "_extract_generation_mode_kwargs" in vars(GenerationMixin)
    assert {"streamer", "assistant_model", "synced_gpus", "kwargs"} <= set(inspect.unwrap(GenerationMixin.generate).__code__.co_varnames)
