"""Every field of transformers' GenerationConfig under pictures of codes: as the class's own generate draws them, or refused by name."""

from functools import cache

import pytest
import transformers as hf

import mmspec
from mmspec.jobs.pictures import Draw
from mmspec.loading.vision import Loaded
from tests.text import test_model_settings as text
from tests.vision.small_models import CASES
from tests.vision.test_families import own

ROWS = 2
CLASSES = ("imagegpt", "janus", "emu3", "glm_image")  # whose own generate draws pictures
OTHERS = ("imagegpt", "emu3", "glm_image", "chameleon", "lumina")
READ = {  # the call has arguments for them, adapters read them, or they change no code
    **{"max_length": 9, "max_new_tokens": 3, "do_sample": False, "temperature": 0.4, "top_k": 3, "top_p": 0.3},
    **{"pad_token_id": 3, "bos_token_id": 3, "eos_token_id": [64], "decoder_start_token_id": 3},
    **{"remove_invalid_values": True, "renormalize_logits": True, "return_dict_in_generate": False, "cache_config": {"nbits": 4}},
    **{"output_attentions": False, "output_hidden_states": False, "output_scores": False, "output_logits": False},
    **{"early_stopping": True, "length_penalty": 0.3, "use_cache": True, "max_cache_len": 99, "prefill_chunk_size": 3},
    **{"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0.1},
    **{"max_matching_ngram_size": 3, "assistant_lookbehind": 3, "target_lookbehind": 3, "diversity_penalty": 0.5},
    **{"compile_config": hf.CompileConfig(), "disable_compile": True, "low_memory": True, "transformers_version": "4.9"},
    "continuous_batching_config": None,
}
REFUSED = {
    **{name: value for name, value in {**text.HONOURED, **text.REFUSED}.items() if name not in READ and name != "no_speech_threshold"},
    **{"min_p": 0.2, "typical_p": 0.5, "top_h": 0.5, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01},  # where the config samples
    **{"is_assistant": True, "use_mtp": True, "prompt_lookup_num_tokens": 3, "assistant_early_exit": 1, "speculation_type": "mtp"},
    "assistant_ensemble_weight": 0.5,
}
REFUSED.pop("guidance_scale")


@cache
def adapter_of(name):
    return CASES[name].make()


@pytest.fixture
def changed(monkeypatch):
    def change(name, **settings):
        config = adapter_of(name).model.generation_config
        for field, value in settings.items():
            monkeypatch.setattr(config, field, value)
        return adapter_of(name)

    return change


def test_every_field_of_a_generation_config_is_in_one_of_the_lists():
    fields = {name for name in vars(hf.GenerationConfig()) if not name.startswith("_")}
    assert fields == READ.keys() | REFUSED.keys() | {"guidance_scale"}
    assert not READ.keys() & REFUSED.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_fields_that_are_read_elsewhere_leave_the_classs_own_picture(changed, name):
    prompts = CASES[name].prompts(ROWS)
    expected = own(name, adapter_of(name).model, prompts, ROWS)
    found = mmspec.vision.generate(changed(name, **READ), prompts, temperature=0.0, window=5)
    assert found.sequences.tolist() == expected.tolist()


@pytest.mark.parametrize("field", READ)
def test_the_classs_own_loop_draws_the_same_under_them(changed, field):
    """Emu3 draws by the loop of all texts, which reads every field; the lengths are the call's own."""
    prompts = CASES["emu3"].prompts(ROWS)
    plain = mmspec.vision.generate(adapter_of("emu3"), prompts, temperature=0.0, window=5)
    model = changed("emu3", **{field: READ[field]}).model
    assert own("emu3", model, prompts, ROWS).tolist() == plain.sequences.tolist()


@pytest.mark.parametrize("name", [name for name in CLASSES if CASES[name].guided])
def test_a_scale_of_guidance_is_said_again_or_refused(changed, name):
    """The class reads it with the negative prompts of its call; the call has an argument for it."""
    prompts = CASES[name].prompts(ROWS)
    adapter = changed(name, guidance_scale=2.0)
    with pytest.raises(ValueError, match=r"generation_config.guidance_scale is 2.0, .*: give guidance=2.0, or guidance=1 for none"):
        mmspec.vision.generate(adapter, prompts)
    with mmspec.Engine(adapter) as engine, pytest.raises(ValueError, match=r"give guidance=2.0"):
        engine.submit({key: value[:1] for key, value in prompts.items()})
    found = mmspec.vision.generate(adapter, prompts, temperature=0.0, window=5, guidance=2.0)
    assert found.sequences.tolist() == own(name, adapter.model, prompts, ROWS, 2.0).tolist()


@pytest.mark.parametrize(("name", "field"), [*(("janus", field) for field in REFUSED), *((name, "repetition_penalty") for name in OTHERS)])
def test_any_other_field_is_refused_by_name(changed, name, field):
    adapter = changed(name, do_sample=True, **{field: REFUSED[field]})
    calls = {
        "generate": lambda: mmspec.vision.generate(adapter, CASES[name].prompts(1)),
        "engine": lambda: mmspec.Engine(adapter),
        "job": lambda: Draw(Loaded(name, adapter), {}),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match=rf"generation_config.{field} is .*: set model.generation_config.{field} = ") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_ban_of_tokens_that_are_no_codes_changes_no_picture(changed):
    """Published GLM-Image checkpoints ban the ids behind their codes."""

    def drawn(model):
        return mmspec.vision.generate(model, CASES["glm_image"].prompts(1), guidance=1, seed=1).tokens.tolist()

    plain = drawn(adapter_of("glm_image"))
    assert plain == drawn(changed("glm_image", suppress_tokens=[adapter_of("glm_image").raster.codes, 70]))
    with pytest.raises(ValueError, match=r"generation_config.suppress_tokens is \[3\]"):
        drawn(changed("glm_image", suppress_tokens=[3]))
