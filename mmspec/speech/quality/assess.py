"""`mmspec.speech.assess_quality`: what outside models hear in synthesised speech."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmspec.run.arguments import public_call
from mmspec.speech.quality.opinion import opinion_network, opinion_score
from mmspec.speech.quality.voice_encoder import VoiceEncoder
from mmspec.speech.recognition.transcribe import transcribe
from mmspec.speech.sound.audio import at_rate
from mmspec.speech.sound.recogniser import word_errors

RESAMPLES = 2000
_ROOM, _TOKENS = 8, 4  # tokens of a transcript, and for each word of the longest text: a recogniser that loops is cut off


@dataclass(frozen=True)
class BootstrapMean:
    """A mean over utterances with its 95 % bootstrap interval (utterances drawn with replacement).

    Attributes:
        value: the mean; of a rate, the sum of the parts over the sum of the wholes.
        low, high: the interval.
    """

    value: float
    low: float
    high: float

    @staticmethod
    def of(parts: Sequence[float], wholes: Sequence[float] | None = None, seed: int = 0) -> "BootstrapMean":
        """Return the interval of sum(parts) / sum(wholes); without `wholes`, of the mean of `parts`."""
        over = np.asarray(parts, dtype=float)
        under = np.ones_like(over) if wholes is None else np.asarray(wholes, dtype=float)
        drawn = np.random.default_rng(seed).integers(len(over), size=(RESAMPLES, len(over)))
        means = over[drawn].sum(1) / np.maximum(under[drawn].sum(1), 1e-12)
        low, high = np.quantile(means, (0.025, 0.975))
        return BootstrapMean(float(over.sum() / max(under.sum(), 1e-12)), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f}-{self.high:.3f})"


@dataclass(frozen=True)
class SpeechQuality:
    """Result of `assess_quality`; what was not asked for is None or empty.

    Attributes:
        word_error_rate: wrong, missing and additional words per word of the text.
        similarity: cosine between the embedding of an utterance's voice and that of its reference.
        opinion: predicted mean opinion score, 1 to 5.
        heard: the transcript of each utterance, normalised.
        errors, words: wrong words and words of each text.
        similarities, opinions: one per utterance.
    """

    word_error_rate: BootstrapMean | None = None
    similarity: BootstrapMean | None = None
    opinion: BootstrapMean | None = None
    heard: list[str] = field(default_factory=list, repr=False)
    errors: list[int] = field(default_factory=list, repr=False)
    words: list[int] = field(default_factory=list, repr=False)
    similarities: list[float] = field(default_factory=list, repr=False)
    opinions: list[float] = field(default_factory=list, repr=False)


@public_call
def assess_quality(
    waveforms: Sequence[Tensor],
    sample_rate: int,
    texts: Sequence[str] | None = None,
    recogniser: tuple[Any, Any] | None = None,
    voices: Sequence[Tensor] | None = None,
    *,
    encoder: VoiceEncoder | None = None,
    opinions: bool = True,
    prompt: str | None = None,
    batch_size: int = 8,
    seed: int = 0,
) -> SpeechQuality:
    """Measure speech by models that had no part in making it.

    Word errors are those of a recogniser such as Whisper, behind Whisper's English normaliser, digit by digit: "357" and "three five
    seven" are the same three words. A transcript is cut off at four tokens a word and eight more. Intervals are over the utterances given.

    Example:
        >>> found = mmspec.speech.assess_quality(out.waveforms, out.sample_rate, texts, (whisper, processor))
        >>> print(found.word_error_rate, found.opinion)

    Args:
        waveforms: float [T], one an utterance.
        sample_rate: samples a second.
        texts: what each was to say, in English.
        recogniser: the model and the processor that `mmspec.speech.transcribe` takes; with `texts` only.
        voices: embedding [256] of the voice that each is to have (`VoiceEncoder.embed_voice`).
        encoder: embeds voices; with `voices` only. None for the one in the cache folder.
        opinions: predict opinion scores; needs `pip install mmspec[quality]`.
        prompt: text that the recogniser reads as if it came before, in the style of the texts; with `texts` only.
        batch_size: utterances transcribed together.
        seed: of the resampling.

    Returns:
        A `SpeechQuality`.

    Raises:
        ValueError: for arguments that do not fit together, and where the extra or the voice encoder is missing.
    """
    _check(waveforms, texts, recogniser, voices, encoder, prompt)
    if opinions:
        opinion_network()
    found: dict[str, Any] = {}
    if texts is not None and recogniser is not None:
        longest = max(len(text.split()) for text in texts)
        heard = _heard(waveforms, sample_rate, recogniser, prompt, batch_size, _ROOM + _TOKENS * longest)
        said = [normalised_words(text) for text in texts]
        errors, words = word_errors(said, heard), [len(text.split()) for text in said]
        found |= {"heard": heard, "errors": errors, "words": words, "word_error_rate": BootstrapMean.of(errors, words, seed)}
    if voices is not None:
        encoder = VoiceEncoder.load() if encoder is None else encoder
        alike = [float(encoder.embed(wave, sample_rate) @ voice) for wave, voice in zip(waveforms, voices, strict=True)]
        found |= {"similarities": alike, "similarity": BootstrapMean.of(alike, seed=seed)}
    if opinions:
        scores = [opinion_score(wave, sample_rate) for wave in waveforms]
        found |= {"opinions": scores, "opinion": BootstrapMean.of(scores, seed=seed)}
    return SpeechQuality(**found)


def normalised_words(text: str) -> str:
    """Return the text as it is compared: Whisper's English normaliser, then every digit a word."""
    plain = re.sub(r"\bone\b", "1", _normaliser()(text))  # it writes a lone 1 as a word
    return " ".join(re.sub(r"(\d)", r" \1 ", plain).split())


@cache
def _normaliser() -> Any:
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    return EnglishTextNormalizer({})


@torch.no_grad()
def _heard(
    waveforms: Sequence[Tensor], rate: int, recogniser: tuple[Any, Any], prompt: str | None, batch_size: int, most: int
) -> list[str]:
    model, processor = recogniser
    own = processor.feature_extractor.sampling_rate
    waves = [at_rate(wave.float(), rate, own) if len(wave) else torch.zeros(own // 10) for wave in waveforms]
    multilingual = getattr(model.generation_config, "is_multilingual", False)
    language = "en" if multilingual else None
    out = transcribe(model, processor, waves, language=language, prompt=prompt, batch_size=batch_size, max_new_tokens=most)
    return [normalised_words(text) for text in out.texts]


def _check(waveforms: Sequence[Tensor], texts: Any, recogniser: Any, voices: Any, encoder: Any, prompt: Any) -> None:
    if not len(waveforms):
        raise ValueError("waveforms is empty: give at least one")
    for name, given in (("texts", texts), ("voices", voices)):
        if isinstance(given, str):
            raise ValueError(f"{name} is one text: give a list, one per waveform")
        if given is not None and len(given) != len(waveforms):
            raise ValueError(f"{name} has {len(given)} entries for {len(waveforms)} waveforms: give one per waveform")
    if (texts is None) != (recogniser is None):
        raise ValueError("texts and recogniser belong together: give both, or neither")
    if prompt is not None and texts is None:
        raise ValueError("prompt is read by the recogniser: give texts and recogniser, or leave prompt out")
    if encoder is not None and voices is None:
        raise ValueError("encoder is read with voices only: give voices, or leave encoder out")
