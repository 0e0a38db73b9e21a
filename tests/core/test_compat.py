"""A canary for every reach into transformers' internals: each fails when a release no longer works as `mmspec.core.compat` assumes."""

import copy
import inspect

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import logits_process as known
from transformers.generation.streamers import BaseStreamer

from mmspec.core import compat
from tests.families import FAMILIES, build, inputs_for
from tests.films import batch, row
from tests.seeing import SIGHTS
from tests.sweep.causal import DYNAMIC, LONGROPE, VARIANTS, make


def test_whisper_openings_are_made_by_the_models_own_method():
    model = build(FAMILIES["Whisper"])
    config = compat.copied(model.generation_config)
    config.decoder_start_token_id, config.return_timestamps = 3, False
    config.lang_to_id, config.task_to_id, config.no_timestamps_token_id = {"<|en|>": 40, "<|de|>": 41}, {"transcribe": 44}, 49
    states = model.get_encoder()(inputs_for("Whisper", 3)["input_features"])
    found = compat.whisper_opening(model, config, states, 3)
    expected = model.detect_language(encoder_outputs=states, generation_config=config)
    assert found.tolist() == [[3, language, 49] for language in expected.tolist()]
    config.language = "en"
    assert compat.whisper_opening(model, config, None, 2).tolist() == [[3, 40, 44, 49]] * 2
    assert not hasattr(model.generation_config, "lang_to_id")


def test_a_custom_decoding_function_finds_what_the_encoder_was_given():
    seen = []

    def custom(model, input_ids, **kwargs):
        seen.append(compat.encoder_source(len(input_ids)))
        return torch.cat([input_ids, input_ids], 1)

    for name in ("Whisper", "T5"):
        model, given = build(FAMILIES[name]), inputs_for(name, 2)
        model.generate(**given, custom_generate=custom, max_new_tokens=2)
        found, source = seen.pop(), model.main_input_name
        assert list(found) == [source]
        assert torch.equal(found[source], given[source])
    model.generate(**given, custom_generate=custom, max_new_tokens=2, do_sample=True, num_return_sequences=2)
    assert torch.equal(seen.pop()["input_ids"], given["input_ids"].repeat_interleave(2, 0))
    model.generate(encoder_outputs=model.get_encoder()(**given), custom_generate=custom, max_new_tokens=2)
    assert seen.pop() == {}
    assert compat.encoder_source(1) == {}


def test_rope_deltas_are_noted_on_the_base_module_and_put_back():
    model, inputs = build(SIGHTS["Qwen2-VL"].case), batch("Qwen2-VL", [row("Qwen2-VL", 2, ("picture", 4, 8), 3)])
    with torch.no_grad(), compat.rope_deltas_kept(model):
        model(**inputs)
        assert model.model.rope_deltas is not None
    assert model.model.rope_deltas is None


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


def test_mask_makers_are_read_from_the_modelling_module():
    assert "create_sliding_window_causal_mask" in compat.mask_makers(make("MistralForCausalLM"))
    assert "create_sliding_window_causal_mask" not in compat.mask_makers(make("MoshiForCausalLM"))
    assert "create_chunked_causal_mask" in compat.mask_makers(make("Llama4ForCausalLM"))
    assert compat.mask_makers(make("CpmAntForCausalLM")) == frozenset()


def test_arguments_are_read_from_signatures():
    assert compat.takes_argument(make("LlamaForCausalLM"), "position_ids")
    assert not compat.takes_argument(make("BartForCausalLM"), "position_ids")
    assert not compat.takes_argument(make("OpenAIGPTLMHeadModel"), "past_key_values")


def test_phi3_computes_a_sequence_anew_at_the_switch():
    assert compat.recomputes_at_rope_switch(make("Phi3ForCausalLM", **VARIANTS["phi3 (longrope)"][1]))
    assert not compat.recomputes_at_rope_switch(make("LlamaForCausalLM", rope_parameters=LONGROPE))


@pytest.mark.parametrize("parameters", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
def test_rope_at_a_length_is_what_a_forward_of_that_length_gives(parameters):
    model = make("LlamaForCausalLM", rope_parameters=parameters, max_position_embeddings=12)
    (rotary,) = compat.ropes_by_length(model)
    before = {name: value.clone() for name, value in rotary.named_buffers()}
    for length in (9, 15, 30):
        positions = torch.arange(length)[None]
        found = compat.rope_at_length(rotary, torch.zeros(1), positions, length)
        assert all(torch.equal(value, before[name]) for name, value in rotary.named_buffers())
        expected = copy.deepcopy(rotary)(torch.zeros(1), positions)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert compat.ropes_by_length(make("LlamaForCausalLM")) == []


def test_rope_deltas_are_noted_on_the_base_module_and_put_back():
    model, inputs = build(SIGHTS["Qwen2-VL"].case), batch("Qwen2-VL", [row("Qwen2-VL", 2, ("picture", 4, 8), 3)])
    with torch.no_grad(), compat.rope_deltas_kept(model):
        model(**inputs)
        assert model.model.rope_deltas is not None
    assert model.model.rope_deltas is None
