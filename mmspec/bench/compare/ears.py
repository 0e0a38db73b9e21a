"""Outside models that judge what mini speech says: a Whisper, a voice encoder and opinion scores, beside the recordings it learned from."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Any

from torch import Tensor

from mmspec.loading.hearing import load_transcriber
from mmspec.minis import Mini
from mmspec.minis import speech_data as spoken
from mmspec.speech.quality.assess import SpeechQuality, assess_quality
from mmspec.speech.quality.opinion import opinion_network
from mmspec.speech.quality.voice_encoder import VoiceEncoder

_SAMPLES = 6
"""Recordings that the embedding of a voice is made of."""
STYLES = {
    True: "Numbers, digit by digit: three five seven, nine zero two one, eight, four six.",
    False: "The red bird sings by the river. Please open the old door now. There are two green dogs in the garden.",
}
"""What the recogniser reads before numbers (True) and sentences (False). Of true recordings of digits at 8 kHz it misses three in ten
words without, one in ten with it."""
Asked = Sequence[tuple[str, str]]
"""Texts and voices."""


@dataclass(frozen=True, eq=False)
class Ears:
    """What judges speech.

    Attributes:
        recogniser: a recogniser and its processor.
        encoder: embeds voices.
        clips: held-out recordings of digits, of every speaker.
        voices: the embedding of each voice.
    """

    recogniser: tuple[Any, Any]
    encoder: VoiceEncoder
    clips: Mapping[tuple[str, int], list[spoken.SpokenClip]]
    voices: Mapping[str, Tensor]

    @staticmethod
    def load(whisper: str | Path, voices: Sequence[str]) -> "Ears":
        """Load the models, and embed `voices` from true recordings.

        Raises:
            ValueError: in one line, for what is not installed or not there.
        """
        opinion_network()
        encoder = VoiceEncoder.load()
        try:
            found = [clip for clip in spoken.clips(Path(environ.get("MMSPEC_DATA", "../shared/data")) / "fsdd") if clip.split == "test"]
        except FileNotFoundError as error:
            raise ValueError(str(error)) from None
        shelf: dict[tuple[str, int], list[spoken.SpokenClip]] = {}
        for clip in found:
            shelf.setdefault((clip.speaker, clip.digit), []).append(clip)
        pair, pick = load_transcriber(str(whisper)), random.Random(0)
        embedded = {}
        for voice in voices:
            texts = [spoken.words([pick.randrange(10) for _ in range(5)]) for _ in range(_SAMPLES)]
            embedded[voice] = encoder.embed_voice([true_recording(shelf, text, voice, pick) for text in texts], spoken.RATE)
        return Ears((pair.target, pair.processor), encoder, shelf, embedded)

    def assess(self, waves: Sequence[Tensor], asked: Asked) -> SpeechQuality:
        """Return the quality of `waves`, which say `asked`. The recogniser reads a line in their style first."""
        texts, voices = zip(*asked, strict=True)
        wanted = [self.voices[voice] for voice in voices]
        prompt = STYLES[all(spoken.digits(text) is not None for text in texts)]
        return assess_quality(waves, spoken.RATE, texts, self.recogniser, wanted, encoder=self.encoder, prompt=prompt)

    def references(self, mini: Mini, asked: Asked) -> dict[str, list[Tensor]]:
        """Return true recordings of `asked`, and the same through the mini's codec: the best that any model over this codec can do."""
        pick, codec = random.Random(1), mini.target.codec
        true = [true_recording(self.clips, text, voice, pick) for text, voice in asked]
        return {"recorded": true, "through the codec": [codec.decode(codec.encode(wave)) for wave in true]}


def true_recording(clips: Mapping[tuple[str, int], list[spoken.SpokenClip]], text: str, voice: str, pick: random.Random) -> Tensor:
    """Return `text` in a voice: clips of a speaker's digits, joined, or espeak-ng's. ValueError where that program is missing."""
    if voice in spoken.MADE:
        try:
            return spoken.speak(text, voice)
        except FileNotFoundError as error:
            raise ValueError(str(error)) from None
    return spoken.join_clips([pick.choice(clips[voice, digit]) for digit in spoken.digits(text) or []], pick)


def spoken_numbers(count: int, seed: int = 1, length: int | None = None) -> list[tuple[str, str]]:
    """Texts and voices: numbers of `length` digits, or of 1 to 4, as long as one another in every stretch of 32: batches then end
    together."""
    pick, voices = random.Random(seed), spoken.SPEAKERS
    digits = [[pick.randrange(10) for _ in range(length or 1 + index // 32 % 4)] for index in range(count)]
    return [(spoken.words(each), voices[index % len(voices)]) for index, each in enumerate(digits)]


def spoken_sentences(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Sentences of the grammar of mini speech, without its numbers, and the synthesiser's voices in turn."""
    pick, voices, found = random.Random(seed), tuple(spoken.MADE), []
    while len(found) < count:
        text = spoken.sentence(pick)
        if spoken.digits(text) is None:
            found.append((text, voices[len(found) % len(voices)]))
    return found


def quality_table(rows: Mapping[str, SpeechQuality]) -> str:
    """Return a Markdown table: word error rate, similarity and opinion score with 95 % intervals."""
    lines = ["| row | word errors | similarity of the voice | opinion score |", "|---" * 4 + "|"]
    return "\n".join([*lines, *(f"| {name} | {row.word_error_rate} | {row.similarity} | {row.opinion} |" for name, row in rows.items())])
