"""What a caller of `mmspec.speech.transcribe` asks for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TranscriptionOptions:
    """How recordings are written down.

    Attributes:
        language: a code or name, such as "en"; None to detect it for every recording.
        task: "transcribe" or "translate" (into English).
        timestamps: None, "segment" or "word".
        fallback: decode a window again at higher temperatures where its text repeats itself or is unlikely.
        condition: windows behind the first read the text before them.
        prompt: text that the decoder reads as if it came before the recording, such as names to be spelled right.
        max_new_tokens: tokens a window; None for as many as the model has positions.
    """

    language: str | None = None
    task: str = "transcribe"
    timestamps: str | None = None
    fallback: bool = False
    condition: bool = False
    prompt: str | None = None
    max_new_tokens: int | None = None
