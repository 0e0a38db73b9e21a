"""A canary for every reach into transformers' internals: each fails when a release no longer works as `mmspec.core.compat` assumes."""

import copy

import pytest
import torch

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
