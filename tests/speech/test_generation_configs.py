"""Published generation configs: every family loads with its own, and every setting of one is applied, or refused by name."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from transformers import GenerationConfig

from mmspec.core.processors.pipeline import MinP, pipeline
from mmspec.run.drop_in.arguments import FIELDS, NO_EFFECT
from mmspec.speech.checkpoints.load import load_checkpoint
from mmspec.speech.families import speech_model
from mmspec.speech.families.base import SpeechModel, SpeechSampling, sampling_of
from mmspec.speech.families.dia import Dia
from mmspec.speech.families.higgs import HiggsAudio
from mmspec.speech.language_models import orpheus
from tests.speech import (
    small_bark,
    small_csm,
    small_delay,
    small_higgs,
    small_pocket,
    small_published,
    small_qwen3_tts,
    small_vibevoice,
)
from tests.speech.small_codecs import dac
from tests.speech.test_checkpoints import LAYOUT
from tests.speech.test_codec_lm import llasa

LLAMA = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "transformers_version": "4.45.0"}
MUSICGEN = {"do_sample": True, "guidance_scale": 3.0, "max_length": 1500, "transformers_version": "4.31.0"}
MUSIC = SpeechSampling(temperature=1.0, top_k=50, guidance=3.0)
OLD: dict[str, Any] = {  # what files of releases before 5 spell out
    **{"num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0},
    **{"min_length": 0, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "top_k": 50, "top_p": 1.0, "bad_words_ids": None},
    **{"forced_eos_token_id": None, "suppress_tokens": None, "num_return_sequences": 1, "use_cache": True, "length_penalty": 1.0},
}


def _again(model: Any, place: Path, told: dict[str, Any]) -> Any:
    """The model as it loads from a folder with a generation config as it is published."""
    model.save_pretrained(place)
    _publish(place, told)
    return type(model).from_pretrained(place)


def _publish(place: Path, told: dict[str, Any]) -> None:
    """Put published settings beside the ids of the folder's own generation config, which no longer says that a config made it."""
    path = place / "generation_config.json"
    own = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    own = {name: value for name, value in own.items() if not name.endswith("_from_model_config")}
    path.write_text(json.dumps(own | told), encoding="utf-8")


def _with(place: Path, told: dict[str, Any]) -> SpeechModel:
    """The speech model of a folder with a generation config as it is published."""
    _publish(place, told)
    return load_checkpoint(str(place))


def _bark(place: Path, told: dict[str, Any]) -> SpeechModel:
    model = small_bark.bark()
    own = model.generation_config
    for stage in ("semantic_config", "coarse_acoustics_config", "fine_acoustics_config"):
        setattr(own, stage, {**getattr(own, stage).to_dict(), **told[stage]})
    return speech_model(model)


def _layout(place: Path, told: dict[str, Any]) -> SpeechModel:
    speaker = llasa()
    speaker.model.save_pretrained(place)
    speaker.letters.tokenizer.save_pretrained(place)
    dac(n_codebooks=1).save_pretrained(place / "codec")
    (place / "speech.json").write_text(json.dumps(LAYOUT | {"block": 3}), encoding="utf-8")
    return _with(place, told)


# The settings are those of the checkpoints named; ids and lengths are those of the small models.
PUBLISHED: dict[str, tuple[Callable[[Path, dict[str, Any]], SpeechModel], dict[str, Any], SpeechSampling]] = {
    "nari-labs/Dia-1.6B-0626": (
        lambda place, told: _with(Path(small_delay.dia_folder(place)), told),
        {"do_sample": True, "guidance_scale": 3.0, "max_length": 3072, "temperature": 1.8, "top_k": 45, "top_p": 0.9},
        SpeechSampling(temperature=1.8, top_k=45, top_p=0.9, guidance=3.0),
    ),
    "facebook/musicgen-small": (lambda place, told: speech_model(_again(small_delay.musicgen_network(), place, told)), MUSICGEN, MUSIC),
    "facebook/musicgen-stereo-small": (
        lambda place, told: speech_model(_again(small_delay.musicgen_network(books=4, channels=2), place, told)),
        MUSICGEN,
        MUSIC,
    ),
    "facebook/musicgen-melody": (
        lambda place, told: speech_model(_again(small_delay.musicgen_network(melody=True), place, told)),
        MUSICGEN,
        MUSIC,
    ),
    "sesame/csm-1b": (
        lambda place, told: speech_model(_again(small_csm.csm(), place, told)),
        {
            **{"do_sample": True, "temperature": 0.9, "max_new_tokens": 125, "depth_decoder_do_sample": True},
            **{"depth_decoder_temperature": 0.9, "depth_decoder_min_new_tokens": 31, "depth_decoder_max_new_tokens": 31},
        },
        SpeechSampling(temperature=0.9, top_k=50),
    ),
    "bosonai/higgs-audio-v2-generation-3B-base": (
        lambda place, told: _with(small_higgs.folder(place), told),
        {"do_sample": True, "temperature": 1.0, "top_k": 50, "top_p": 0.95, "max_new_tokens": 2048},
        SpeechSampling(temperature=1.0, top_k=50, top_p=0.95),
    ),
    "suno/bark": (
        _bark,
        {
            "semantic_config": OLD | {"do_sample": True, "temperature": 0.7, "max_new_tokens": 30, "renormalize_logits": True},
            "coarse_acoustics_config": OLD | {"do_sample": True, "temperature": 0.7, "renormalize_logits": True},
            "fine_acoustics_config": {"temperature": 0.5},
        },
        SpeechSampling(temperature=0.7, top_k=50, top_p=1.0),
    ),
    "kyutai/pocket-tts": (
        lambda place, told: speech_model(_again(small_pocket.pocket(), place, told)),
        {"do_sample": True, "temperature": 0.7, "num_flow_steps": 1, "eos_threshold": -4.0},
        SpeechSampling(temperature=0.7),
    ),
    "microsoft/VibeVoice-1.5B": (
        lambda place, told: speech_model(_again(small_vibevoice.vibevoice(), place, told)),
        {"do_sample": False, "guidance_scale": 1.3, "num_diffusion_steps": 10, "max_new_tokens": 1000},
        SpeechSampling(temperature=1.0),
    ),
    "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice": (
        lambda place, told: _with(small_qwen3_tts.published(place), told),
        {
            **{"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.9, "top_p": 1.0, "top_k": 50, "max_new_tokens": 8192},
            **{"subtalker_dosample": True, "subtalker_temperature": 0.9, "subtalker_top_p": 1.0, "subtalker_top_k": 50},
        },
        SpeechSampling(temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05),
    ),
    "canopylabs/orpheus-3b-0.1-ft": (  # its published code has settings of its own
        lambda place, told: _with(small_published.orpheus_folder(place), told),
        LLAMA,
        orpheus.SAMPLING,
    ),
    "HKUSTAudio/Llasa-1B": (lambda place, told: _with(small_published.llasa_folder(place), told), LLAMA, SpeechSampling(temperature=0.8)),
    "a causal model with speech.json": (_layout, LLAMA, SpeechSampling(temperature=0.6, top_k=50, top_p=0.9)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_family_loads_with_its_published_generation_config(name, tmp_path):
    make, told, expected = PUBLISHED[name]
    assert make(tmp_path, told).sampling == expected


def test_settings_of_what_stands_behind_the_first_code_are_read(tmp_path):
    """The depth decoder's and the code predictor's, which the files hold under a prefix."""
    make, told, _ = PUBLISHED["sesame/csm-1b"]
    assert make(tmp_path / "csm", told).depth.distributions == pipeline(temperature=0.9, top_k=50)  # type: ignore[attr-defined]
    make, told, _ = PUBLISHED["Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"]
    (tmp_path / "qwen").mkdir()
    found = make(tmp_path / "qwen", told | {"subtalker_temperature": 0.5, "subtalker_top_k": 7})
    assert found.depth.distributions == pipeline(temperature=0.5, top_k=7)  # type: ignore[attr-defined]
    make, told, _ = PUBLISHED["suno/bark"]
    told = told | {"semantic_config": told["semantic_config"] | {"min_eos_p": 0.2}}
    assert make(tmp_path, told).min_eos_p == 0.2  # type: ignore[attr-defined]


@pytest.mark.parametrize("melody", [False, True])
def test_music_by_a_published_config_is_that_of_plain_sampling(melody, tmp_path):
    made = speech_model(_again(small_delay.musicgen_network(melody=melody), tmp_path, MUSICGEN))
    plain, drafted = (small_delay.say(made, small_delay.music_prompts(2), way, seed=3, draft_length=3) for way in (None, made))
    assert plain.tokens.tolist() == drafted.tokens.tolist()
    assert drafted.stats.accepted > 0
    assert drafted.stats.rejected == 0


# --- one table of settings for all families -------------------------------------------------------------------------------


@cache
def _families() -> dict[str, tuple[Any, Callable[[Any], SpeechModel]]]:
    """By name, a model and what makes its adapter."""
    return {
        "musicgen": (small_delay.musicgen_network(), speech_model),
        "melody": (small_delay.musicgen_network(melody=True), speech_model),
        "dia": (small_delay.dia_network(), lambda model: Dia(model, hf.DiaTokenizer(), small_delay.Mute())),
        "csm": (small_csm.csm(), speech_model),
        "higgs": (small_higgs.higgs_network(), lambda model: HiggsAudio(model, small_higgs.parts())),
        "pocket": (small_pocket.pocket(), speech_model),
        "vibevoice": (small_vibevoice.vibevoice(), speech_model),
    }


INERT = {"vibevoice": {"temperature", "top_k", "top_p", "min_p", "do_sample"}}
"""Settings that a class does not read itself."""
OTHER: dict[str, Any] = {  # values that change steps
    **{"do_sample": True, "temperature": 1.7, "top_k": 3, "top_p": 0.5, "min_p": 0.3, "top_h": 0.5, "typical_p": 0.5},
    **{"epsilon_cutoff": 0.01, "eta_cutoff": 0.01, "repetition_penalty": 1.3, "encoder_repetition_penalty": 1.3, "num_beams": 2},
    **{"guidance_scale": 2.0, "no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2, "bad_words_ids": [[3]]},
    **{"forced_bos_token_id": 2, "forced_eos_token_id": 2, "exponential_decay_length_penalty": (3, 1.1), "suppress_tokens": [3]},
    **{"begin_suppress_tokens": [3], "sequence_bias": {(3,): 1.0}, "min_length": 5, "min_new_tokens": 5, "stop_strings": ["a"]},
}
NOT_STEPS = (
    *("max_length", "max_new_tokens", "max_time", "num_return_sequences", "return_dict_in_generate", "remove_invalid_values"),
    *(
        "renormalize_logits",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "decoder_start_token_id",
        "cache_implementation",
        "cache_config",
    ),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
)


def _outcome(model: Any, make: Callable[[Any], SpeechModel], config: GenerationConfig) -> Any:
    """The settings of the adapter of a model with a generation config, or why there is none."""
    own, model.generation_config = model.generation_config, config
    try:
        found = make(model)
    except ValueError as error:
        return str(error)
    finally:
        model.generation_config = own
    return found.sampling, getattr(found, "guidance", None)


@pytest.mark.parametrize("family", ["musicgen", "melody", "dia", "csm", "higgs", "pocket", "vibevoice"])
def test_every_setting_is_applied_or_refused_by_name(family):
    """Of every field of GenerationConfig: none is passed over in one family and read in another."""
    model, make = _families()[family]
    for name, (treated, _) in FIELDS.items():
        if treated == NO_EFFECT or name in NOT_STEPS or name in INERT.get(family, ()):
            continue
        plain, changed = (GenerationConfig(**model.generation_config.to_diff_dict()) for _ in range(2))
        plain.do_sample = changed.do_sample = name != "do_sample"
        setattr(changed, name, OTHER.get(name, 2))
        before, after = (_outcome(model, make, config) for config in (plain, changed))
        assert not isinstance(before, str), before
        assert (f"generation_config.{name} is " in after and "\n" not in after) if isinstance(after, str) else after != before, name


def test_the_names_that_change_no_step_are_those_of_the_settings():
    assert set(NOT_STEPS) <= set(FIELDS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in ("hot", -1, float("nan"), [1])),
        *(("top_k", value) for value in (2.5, "3", -1)),
        *(("top_p", value) for value in (0, 3, "all")),
        *(("min_p", value) for value in (-1, 2)),
        *(("guidance_scale", value) for value in ("3", -1)),
        *(("repetition_penalty", value) for value in (0, "x")),
        ("do_sample", "yes"),
    ],
)
def test_invalid_values_are_told_with_file_and_field(name, value):
    config = GenerationConfig(do_sample=True)
    setattr(config, name, value)
    with pytest.raises(ValueError, match=rf"generation_config\.{name} is "):
        sampling_of(config, ("do_sample", "temperature", "top_k", "top_p", "min_p", "guidance_scale", "repetition_penalty"))


def test_greedy_configs_have_no_sampling_settings():
    found = sampling_of(GenerationConfig(do_sample=False, temperature=0.7, top_p=0.5, min_p=0.1, typical_p=0.5))
    assert found == SpeechSampling(temperature=0.0)
    assert sampling_of(GenerationConfig(do_sample=True, min_p=0.1)).last == (MinP(0.1),)
