"""Bodies of the endpoints of images, speech, recordings and recommendations."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator

from mmspec.serving.http.schemas.base import FIRST_ERROR, ApiBody, Finite, Seed, Temperature, Text, TopK, TopP

SOUNDS = ("wav", "flac", "pcm")
"""Formats of speech."""
Item = int | Text


class ImageBody(ApiBody):
    """The body of `/v1/images/generations`.

    Attributes:
        prompt: what to draw.
        n: how many pictures; picture i is drawn with seed + i.
        size: WIDTHxHEIGHT in pixels, for models of several sizes; "auto" for the model's own.
        output_format: format of the file: png, jpeg or webp.
        seed: of the noise; drawn at random where it is left out, and told in the response.
        temperature, top_k, top_p, guidance: as in `mmspec.vision.generate`.
    """

    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "background": ("auto", "opaque"),
        "complexity": (),
        "frame_count": (1,),
        "frame_duration_ms": (),
        "moderation": ("auto", "low"),
        "output_compression": (),
        "partial_images": (0,),
        "quality": ("auto", "standard"),
        "response_format": ("b64_json",),
        "stream": (False,),
        "style": (),
        "svg": (),
    }

    prompt: Annotated[Text, Field(max_length=32_000)]
    n: Annotated[int, Field(ge=1)] = 1
    size: str | None = None
    output_format: Literal["png", "jpeg", "webp"] = "png"
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    guidance: Finite | None = None

    @property
    def pixels(self) -> tuple[int, int] | None:
        """(height, width); None for the model's own.

        Raises:
            ValueError: for another form.
        """
        if self.size in (None, "auto"):
            return None
        if not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}", self.size):
            raise ValueError(f"size is {self.size[:20]!r}: give WIDTHxHEIGHT such as 512x512, or auto")
        width, height = self.size.split("x")
        return int(height), int(width)


class SpeechBody(ApiBody):
    """The body of `/v1/audio/speech`.

    Attributes:
        input: the text.
        voice: one of the model's voices; the first by default.
        response_format: wav (default), flac, or pcm: 16-bit samples without a header, sent as they are made.
        seed: of the noise; drawn at random where it is left out, and told in a header.
        temperature, top_k, top_p, max_seconds: as in `mmspec.speech.synthesize`.
    """

    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {"instructions": ("",), "speed": (1,), "stream_format": ("audio",)}

    input: Annotated[Text, Field(min_length=1, max_length=4096)]
    voice: Text | None = None
    response_format: Literal["wav", "flac", "pcm"] = "wav"
    seed: Seed | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    max_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class TranscriptionFields(ApiBody):
    """The fields of `/v1/audio/transcriptions`, without the file.

    Attributes:
        language: what is spoken, such as "en"; detected by default.
        prompt: text to be read as if it came before, such as names.
        response_format: json (default), text, srt, vtt or verbose_json.
        timestamp_granularities: "segment" (default) or "word", of verbose_json.
    """

    model_config = ConfigDict(extra="forbid", strict=False, frozen=True)
    NEUTRAL: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "chunking_strategy": ("auto",),
        "include": (),
        "keywords": (),
        "known_speaker_names": (),
        "known_speaker_references": (),
        "languages": (),
        "stream": ("false", "False"),
        "temperature": ("0", "0.0"),
    }

    language: Text | None = None
    prompt: Text | None = None
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    timestamp_granularities: Annotated[list[Literal["segment", "word"]], FIRST_ERROR] = Field(default_factory=list)

    @property
    def timestamps(self) -> str | None:
        """The argument of `mmspec.speech.transcribe`.

        Raises:
            ValueError: for granularities of another format.
        """
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise ValueError("timestamp_granularities is for response_format verbose_json: leave it out")
        if self.response_format == "verbose_json":
            return "word" if "word" in self.timestamp_granularities else "segment"
        return "segment" if self.response_format in ("srt", "vtt") else None


class RecommendationBody(ApiBody):
    """The body of `/v1/recommendations`.

    Attributes:
        history: the items of one user, oldest first; or give `histories`.
        histories: the items of several users.
        k: most items a user.
        unseen: leave out items of the history.
        allow: the only items that may be recommended, to all of the request's users.
        deny: items that may not be recommended, to any of them.
    """

    history: Annotated[list[Item], FIRST_ERROR] | None = None
    histories: Annotated[list[Annotated[list[Item], FIRST_ERROR]], FIRST_ERROR] | None = None
    k: Annotated[int, Field(ge=1, le=1000)] = 10
    unseen: bool = False
    allow: Annotated[list[Item], FIRST_ERROR] | None = None
    deny: Annotated[list[Item], FIRST_ERROR] | None = None

    @field_validator("histories")
    @classmethod
    def not_empty(cls, value: list[list[Item]] | None) -> list[list[Item]] | None:
        """Refuse a request without users.

        Args:
            value: the histories.

        Returns:
            The histories.

        Raises:
            ValueError: if there are none.
        """
        if value is not None and not value:
            raise ValueError("histories is empty: give at least one history")
        return value

    @property
    def users(self) -> list[list[Item]]:
        """The histories.

        Raises:
            ValueError: for none, or both fields.
        """
        if (self.history is None) == (self.histories is None):
            raise ValueError("give history for one user, or histories for several")
        return [self.history] if self.history is not None else self.histories or []
