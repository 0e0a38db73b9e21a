"""Sound files as speech recognisers take them."""

from dataclasses import replace
from typing import Any

from mmspec.drafters.views.base import own_encoder, own_opening, view_of
from mmspec.loading.model_drafter import aligned_model
from mmspec.loading.text import Pair, load_pair, named_drafter, with_drafter
from mmspec.models.checkpoint_loading import READER, contents_of
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.run.config import Config, DrafterSection, TargetSection
from mmspec.speech.recognition.prompted import PROMPTED, check_recogniser


def load_transcriber(name: str, drafter: str = "none", device: str = "auto", dtype: str = "float32") -> Pair:
    """Load a recogniser and what drafts for it.

    Args:
        name: the target's folder or hub name.
        drafter: as on the command line. A Whisper with an encoder of its own reads the recording without the silence that pads its window.
        device: where both run.
        dtype: of their weights.

    Raises:
        ValueError: for what cannot be loaded, and a target that is no recogniser.
    """
    from transformers import AutoProcessor

    kind, path = named_drafter(drafter)
    target = TargetSection(path=name, device=device, dtype=dtype)  # type: ignore[arg-type]
    pair = load_pair(Config(target=target, drafter=DrafterSection(kind="none")))
    check_recogniser(pair.target)
    if pair.target.config.model_type in PROMPTED:  # loaded with a tokenizer, for texts
        with contents_of(READER):
            pair = replace(pair, processor=AutoProcessor.from_pretrained(name, trust_remote_code=False))
    if kind == "none":
        return pair
    config = replace(pair.config, drafter=DrafterSection(kind=kind, path=path))
    pair = with_drafter(replace(pair, config=config, drafter_name=kind), None, pair.target.device)
    return replace(pair, drafter=aligned_model(pair, {"view": "cropped"})) if _runs_own_encoder(pair) else pair


def _runs_own_encoder(pair: Pair) -> bool:
    """Return whether the drafter is a Whisper that encodes the recording itself: Distil-Whisper reads what the target has encoded."""
    if pair.model is None or pair.target.config.model_type != "whisper" or pair.model.config.model_type != "whisper":
        return False
    view = view_of(HFTarget(pair.target, family_of(pair.target)), pair.model, translated=pair.own_tokenizer is not None)
    return view in (own_encoder, own_opening)


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
    if most is not None and len(wave) > most:
        seconds, window = len(wave) / extractor.sampling_rate, most / extractor.sampling_rate
        raise ValueError(f"audio file {path} lasts {seconds:.0f} s, but {pair.name} hears {window:.0f} s at once: cut it into pieces")
    found = extractor(wave.numpy(), sampling_rate=extractor.sampling_rate, return_tensors="pt")
    name = pair.target.main_input_name
    return {name: found[name].to(pair.target.device, pair.target.dtype)}
