"""Every field of transformers' GenerationConfig: honoured as `generate` honours it, refused by name, or known not to be read."""

import pytest
import torch
import transformers as hf

import mmspec
from mmspec.run.settings import generation_config as model_settings
from tests.companions import perturbed
from tests.families import FAMILIES, build, inputs_for

TOKENS = 16
NAMES = ("Llama", "T5")


def changed(name, **settings):
    model = build(FAMILIES[name])
    for key, value in settings.items():
        setattr(model.generation_config, key, value)
    return model


def alone(inputs, row):
    """A row without its padding."""
    keep = inputs["attention_mask"][row].bool()
    return {key: value[row : row + 1, keep] for key, value in inputs.items()}


HONOURED = {
    "sequence_bias": [[[7], 3.0], [[9, 11], 5.0], [[30], -4.0]],
    "repetition_penalty": 1.7,
    "encoder_repetition_penalty": 2.5,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 1,
    "bad_words_ids": [[5], [6, 7], [33]],
    "min_length": 18,
    "min_new_tokens": 10,
    "forced_bos_token_id": 9,
    "forced_eos_token_id": 2,
    "exponential_decay_length_penalty": (2, 1.6),
    "suppress_tokens": [5, 33, 44],
    "begin_suppress_tokens": [33, 44, 20],
    "eos_token_id": [2, 33, 44],
    "remove_invalid_values": True,
    "renormalize_logits": True,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("setting", HONOURED)
def test_a_setting_gives_what_generate_gives_on_each_row_alone(setting, name):
    model, inputs = changed(name, **{setting: HONOURED[setting]}), inputs_for(name, 3)
    drafter = perturbed(build(FAMILIES[name]))
    out = mmspec.text.generate(model, inputs, drafter=drafter, max_new_tokens=TOKENS, draft_length=4)
    tree = mmspec.text.generate(model, inputs, drafter=drafter, max_new_tokens=TOKENS, tree=(2, 2))
    assert torch.equal(out.sequences, tree.sequences)
    skip = 1 if model.config.is_encoder_decoder else None
    for row in range(3):
        one = alone(inputs, row)
        expected = model.generate(**one, do_sample=False, max_new_tokens=TOKENS)[0, skip or one["input_ids"].shape[1] :].tolist()
        assert out.sequences[row, : out.lengths[row]].tolist() == expected[: out.lengths[row]]
        assert out.lengths[row] == len(expected)


def test_settings_that_change_tokens_do_change_them():
    """Or the tests above would show nothing."""
    same = set(HONOURED)
    for name in NAMES:
        plain = mmspec.text.generate(build(FAMILIES[name]), inputs_for(name, 3), max_new_tokens=TOKENS).sequences.tolist()
        for setting in tuple(same):
            model = changed(name, **{setting: HONOURED[setting]})
            if mmspec.text.generate(model, inputs_for(name, 3), max_new_tokens=TOKENS).sequences.tolist() != plain:
                same.discard(setting)
    assert same == {"remove_invalid_values", "renormalize_logits"}


def test_the_calls_own_penalty_goes_before_the_configs():
    model, inputs = changed("Llama", repetition_penalty=1.7), inputs_for("Llama", 1)
    model.generation_config.eos_token_id = None
    for given, expected in ((None, 1.7), (1.0, 1.0), (1.3, 1.3)):
        out = mmspec.text.generate(model, inputs, max_new_tokens=TOKENS, repetition_penalty=given)
        assert torch.equal(out.sequences, model.generate(**inputs, max_new_tokens=TOKENS, repetition_penalty=expected)[:, 12:])


REFUSED = {
    "num_beams": 4,
    "num_beam_groups": 2,
    "diversity_penalty": 0.5,
    "constraints": [object()],
    "force_words_ids": [[4]],
    "num_return_sequences": 2,
    "penalty_alpha": 0.6,
    "dola_layers": "high",
    "guidance_scale": 1.5,
    "watermarking_config": hf.WatermarkingConfig(),
    "token_healing": True,
    "max_time": 5.0,
    "stop_strings": ["end"],
    "cache_implementation": "quantized",
    "no_speech_threshold": 0.6,
}


@pytest.mark.parametrize("setting", REFUSED)
def test_a_setting_without_a_speculative_form_is_refused_by_name(setting):
    model = changed("Llama", **{setting: REFUSED[setting]})
    with pytest.raises(
        ValueError, match=rf"generation_config.{setting} is .*, which is not supported: .*model.generation_config"
    ) as caught:
        mmspec.text.generate(model, inputs_for("Llama", 1), max_new_tokens=4)
    assert "\n" not in str(caught.value)
    setattr(model.generation_config, setting, model_settings._REFUSED[setting][1])  # what the message says
    mmspec.text.generate(model, inputs_for("Llama", 1), max_new_tokens=2)


NOT_READ = {
    *("max_length", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p"),
    *("epsilon_cutoff", "eta_cutoff", "early_stopping", "length_penalty", "use_mtp", "use_cache", "cache_config", "max_cache_len"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "is_assistant"),
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "prompt_lookup_num_tokens"),
    *("max_matching_ngram_size", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
    *("speculation_type", "compile_config", "disable_compile", "continuous_batching_config", "low_memory", "prefill_chunk_size"),
    *("transformers_version", "pad_token_id", "bos_token_id", "decoder_start_token_id"),
}


def test_every_field_of_a_generation_config_is_in_one_of_the_lists():
    fields = {name for name in vars(hf.GenerationConfig()) if not name.startswith("_")}
    assert fields - HONOURED.keys() - REFUSED.keys() - NOT_READ == set()


def test_beams_of_a_loaded_checkpoint_are_turned_off_and_told():
    model = changed("T5", num_beams=4, num_beam_groups=None)
    assert model_settings.one_path(model) == "its generation config asks for num_beams 4: decoding one path a row instead"
    assert model.generation_config.num_beams == 1
    assert model_settings.one_path(model) is None
