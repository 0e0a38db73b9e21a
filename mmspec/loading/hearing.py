"""Sound files as speech recognisers take them."""

from typing import Any

from mmspec.loading.text import Pair


def hear(pair: Pair, path: str) -> dict[str, Any]:
    """The features of a sound file: mono, at the recogniser's rate. ValueError when it cannot be read, or is longer than one window."""
    from mmspec.models.families.registry import HEARS
    from mmspec.speech.sound.audio import read_sound

    if pair.target.config.model_type in HEARS:
        raise ValueError(f"{pair.name} hears within a prompt: call mmspec.text.generate with what its processor returned for both")
    if not pair.hears:
        raise ValueError(f"{pair.name} reads text, not sound: leave --audio out and give a prompt")
    extractor = pair.processor.feature_extractor
    wave = read_sound(path, extractor.sampling_rate)
    most = getattr(extractor, "n_samples", None)
    if len(wave) == 0:
        raise ValueError(f"audio file {path} is empty: give one with sound in it")
    if most is not None and len(wave) > most:
        seconds, window = len(wave) / extractor.sampling_rate, most / extractor.sampling_rate
        raise ValueError(f"audio file {path} lasts {seconds:.0f} s, but {pair.name} hears {window:.0f} s at once: cut it into pieces")
    found = extractor(wave.numpy(), sampling_rate=extractor.sampling_rate, return_tensors="pt")
    return {"input_features": found["input_features"].to(pair.target.device, pair.target.dtype)}
