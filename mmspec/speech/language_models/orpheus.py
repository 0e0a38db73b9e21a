"""Orpheus (Canopy Labs 2025): Llama over the codes of SNAC, 7 ids a frame.

A prompt is a voice's name and the text between control tokens. A recording's voice is imitated by the pretrained models: its text and its
codes go before the text, as an earlier turn.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from mmspec.speech.codecs.snac import ORDER
from mmspec.speech.families.base import SpeechSampling
from mmspec.speech.families.codec_lm import CodecLM, ids_of
from mmspec.speech.families.letters import Letters
from mmspec.speech.sound.voice_sample import VoiceSample

PATTERN, SKIP = "<custom_token_{}>", 10
END = PATTERN.format(2)
NAMES = tuple(PATTERN.format(number) for number in (0, 1, 2, 3, 4, 5, 6, SKIP))
"""Tokens that the tokenizer of an Orpheus has: controls, and the first code."""
OPEN = (PATTERN.format(3),)  # start of human
CLOSE = ("<|eot_id|>", *(PATTERN.format(number) for number in (4, 5, 1)))  # end of text, of human; start of AI, of speech
AFTER = (END, PATTERN.format(6))  # end of speech, of AI
CODEC = "hubertsiuzdak/snac_24khz"
VOICES = ("tara", "leah", "jess", "leo", "dan", "mia", "zac", "zoe")
SAMPLING = SpeechSampling(temperature=0.6, top_p=0.8, repetition_penalty=1.3)
USUAL = 1200
"""Most ids of a call, as the published package has it: 14 s."""


@dataclass(frozen=True)
class OrpheusPrompts(Letters):
    """Texts as Orpheus reads them.

    Args:
        codec: the codec, which gives the codes of a recording by `encode`.
        first: id of code 0.
    """

    codec: Any = field(default=None, kw_only=True)
    first: int = field(default=0, kw_only=True)
    clones: ClassVar[bool] = True

    def ids(self, text: str, voice: str | VoiceSample | None) -> list[int]:
        """Return the prompt of one text; see `Letters.ids`."""
        if isinstance(voice, VoiceSample):
            return [*self._turn(voice.said()), *self._codes(voice), *self._named(AFTER), *self._turn(text)]
        name = voice or next(iter(self.voices), None)
        return self._turn(text if name is None else f"{name}: {text}")

    def _turn(self, text: str) -> list[int]:
        return [*self._named(OPEN), *self.tokenizer(text)["input_ids"], *self._named(CLOSE)]

    def _codes(self, voice: VoiceSample) -> list[int]:
        """The ids of a recording."""
        if not hasattr(self.codec, "encode"):
            raise ValueError("the codec has no encoder for recordings: leave the VoiceSample out")
        frames = self.codec.encode(voice.at(self.codec.rate))
        return [self.first + place * self.codec.size + code for frame in frames for place, code in enumerate(frame)]

    def _named(self, names: tuple[str, ...]) -> list[int]:
        return ids_of(self.tokenizer, list(names), "the tokenizer")


def orpheus(model: Any, tokenizer: Any, codec: Any, **options: Any) -> CodecLM:
    """Return an Orpheus as a speech model.

    Args:
        model: the language model.
        tokenizer: its tokenizer.
        codec: a `SnacCodec`, or anything that takes frames of 7 codes.
        options: replace those of `CodecLM.of`; `voices` are those of the English models by default, () for pretrained models.

    Returns:
        The model. A call without `max_seconds` writes at most `USUAL` ids.

    Raises:
        ValueError: for a tokenizer without the tokens.
    """
    settings: dict[str, Any] = {
        "pattern": PATTERN,
        "skip": SKIP,
        "end": END,
        "places": len(ORDER),
        "sampling": SAMPLING,
        "usual": USUAL,
    } | options
    settings = {"voices": VOICES} | settings
    made = CodecLM.of(model, tokenizer, codec, **settings)
    own = OrpheusPrompts(tokenizer, voices=made.letters.voices, longest=made.letters.longest, codec=codec, first=made.first)
    ids_of(tokenizer, [*OPEN, *CLOSE, *AFTER], "the tokenizer")  # refuses a tokenizer without them
    return replace(made, letters=own)
