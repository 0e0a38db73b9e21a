"""One adapter per model class. `speech_model` finds the one for a model."""

from importlib import import_module
from typing import Any

from mmspec.speech.families.base import SpeechModel

ADAPTERS = {
    "BarkModel": "mmspec.speech.families.bark:Bark",
    "CsmForConditionalGeneration": "mmspec.speech.families.csm:CsmModel",
    "DiaForConditionalGeneration": "mmspec.speech.families.dia:Dia",
    "GradiumPhononTTSForConditionalGeneration": "mmspec.speech.latents.pocket_tts:PocketTTS",
    "HiggsAudioV2ForConditionalGeneration": "mmspec.speech.families.higgs:HiggsAudio",
    "MusicgenForConditionalGeneration": "mmspec.speech.families.musicgen:Musicgen",
    "MusicgenMelodyForConditionalGeneration": "mmspec.speech.families.musicgen_melody:MusicgenMelody",
    "PocketTTSForConditionalGeneration": "mmspec.speech.latents.pocket_tts:PocketTTS",
    "VibeVoiceForConditionalGeneration": "mmspec.speech.latents.vibevoice:VibeVoice",
}

REFUSED = {
    "MoshiForConditionalGeneration": "mmspec.speech.families.moshi:REASON",
}
"""Classes that write speech and cannot be driven, and why not."""


def speech_model(model: Any, *args: Any, **options: Any) -> SpeechModel:
    """Return `model` itself if it is a `SpeechModel`, else the adapter of its class.

    Args:
        model: a transformers speech model, or an adapter.
        args: further arguments of the adapter.
        options: options of the adapter.

    Raises:
        ValueError: for unknown classes and for known ones that are not supported.
    """
    if isinstance(model, SpeechModel):
        return model
    name = type(model).__name__
    if name in REFUSED:
        raise ValueError(f"{name} cannot be sped up: {_named(REFUSED[name])}")
    if name not in ADAPTERS:
        known = ", ".join(ADAPTERS)
        raise ValueError(
            f"{name} is no speech model mmspec knows; known: {known}; or pass your own mmspec.speech.families.base.SpeechModel"
        )
    return _named(ADAPTERS[name])(model, *args, **options)


def is_speech_model(model: Any) -> bool:
    """Return True for adapters of speech models, and for transformers models that `speech_model` knows.

    Args:
        model: any model.
    """
    return isinstance(model, SpeechModel) or hasattr(model, "synthesize") or type(model).__name__ in {**ADAPTERS, **REFUSED}


def _named(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(module), name)
