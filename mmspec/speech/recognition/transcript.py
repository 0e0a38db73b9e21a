"""What was said in a recording, and the formats it is written in: plain text, SRT, WebVTT, JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from mmspec.core.stats import Stats
from mmspec.core.stopping import LENGTH, STOP

FORMATS = ("text", "srt", "vtt", "json")


@dataclass(frozen=True)
class Word:
    """A word and when it was said.

    Attributes:
        text: the word, with the space before it.
        start, end: seconds.
    """

    text: str
    start: float
    end: float


@dataclass(frozen=True)
class Segment:
    """A part of a recording.

    Attributes:
        text: what was said.
        start, end: seconds.
        words: its words, if they were asked for.
    """

    text: str
    start: float
    end: float
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Transcript:
    """What was said in one recording.

    Attributes:
        text: all of it.
        language: its code, such as "en", as detected or as given; None where the model has none.
        seconds: length of the recording.
        segments: its parts with their times; empty without timestamps.
        tokens: the ids of the text, timestamps included.
        finish_reason: "stop"; or "length" where a window, or a part, was cut at its most tokens, so that words may be missing behind it.
    """

    text: str
    language: str | None
    seconds: float
    segments: tuple[Segment, ...] = ()
    tokens: tuple[int, ...] = field(default=(), repr=False)
    finish_reason: str = STOP

    def formatted(self, form: str = "text") -> str:
        """Return the transcript as the contents of a file.

        Args:
            form: "text", "srt", "vtt" or "json".

        Returns:
            The text, ending in a line break.

        Raises:
            ValueError: for another format, and for subtitles of a transcript without timestamps.
        """
        if form not in FORMATS:
            raise ValueError(f"unknown format {form!r}; valid: {', '.join(FORMATS)}")
        if form == "json":
            return json.dumps(asdict(self), ensure_ascii=False) + "\n"
        if form == "text":
            return self.text.strip() + "\n"
        if self.text.strip() and not self.segments:
            raise ValueError(f"format {form!r} needs times: transcribe with timestamps='segment' or 'word'")
        cues = [(f"{_clock(part.start, form)} --> {_clock(part.end, form)}", part.text.strip()) for part in self.segments]
        if form == "srt":
            return "\n".join(f"{number}\n{times}\n{text}\n" for number, (times, text) in enumerate(cues, 1))
        return "\n".join(["WEBVTT\n", *(f"{times}\n{text}\n" for times, text in cues)])


def _clock(seconds: float, form: str) -> str:
    whole = round(seconds * 1000)
    comma = "," if form == "srt" else "."
    return f"{whole // 3_600_000:02}:{whole // 60_000 % 60:02}:{whole // 1000 % 60:02}{comma}{whole % 1000:03}"


@dataclass(frozen=True)
class Transcription:
    """Result of `transcribe`.

    Attributes:
        transcripts: one a recording, in the order given.
        stats: counts over all windows of all recordings.
        seconds: seconds of the whole call.
    """

    transcripts: list[Transcript]
    stats: Stats
    seconds: float

    @property
    def texts(self) -> list[str]:
        """The text of every recording."""
        return [each.text for each in self.transcripts]

    @property
    def finish_reasons(self) -> list[str]:
        """The `Transcript.finish_reason` of every recording."""
        return [each.finish_reason for each in self.transcripts]

    @property
    def real_time_factor(self) -> float:
        """Seconds of work per second of sound, over all recordings."""
        return self.seconds / max(1e-9, sum(each.seconds for each in self.transcripts))


def joined_transcript(parts: Sequence[tuple[float, Transcript]], seconds: float) -> Transcript:
    """Return the transcript of a recording from those of its parts.

    Args:
        parts: (second at which it begins, transcript), in any order; none for silence.
        seconds: length of the recording.
    """
    if len(parts) == 1 and parts[0][0] == 0.0:
        return replace(parts[0][1], seconds=seconds)
    ordered = sorted(parts, key=lambda part: part[0])
    spoken = Counter(each.language for _, each in ordered).most_common(1)
    return Transcript(
        text=" ".join(each.text for _, each in ordered if each.text),
        language=spoken[0][0] if spoken else None,
        seconds=seconds,
        segments=tuple(_moved(segment, start) for start, each in ordered for segment in each.segments),
        tokens=tuple(number for _, each in ordered for number in each.tokens),
        finish_reason=LENGTH if any(each.finish_reason == LENGTH for _, each in ordered) else STOP,
    )


def _moved(segment: Segment, start: float) -> Segment:
    words = tuple(replace(word, start=word.start + start, end=word.end + start) for word in segment.words)
    return replace(segment, start=segment.start + start, end=segment.end + start, words=words)
