"""`mmspec.speech.transcribe`: recordings of any length to text."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mmspec.core.control import Control
from mmspec.core.decode import OnStep
from mmspec.core.rules.base import Accept
from mmspec.models.model_checks import check_model_ready
from mmspec.run.arguments import public_call
from mmspec.run.request import Request
from mmspec.run.shapes import Tree
from mmspec.speech.recognition.decoding import RecognitionDecoding
from mmspec.speech.recognition.options import TranscriptionOptions
from mmspec.speech.recognition.prompted import batch_key, check_recogniser, extractor_of, refuse_whispers_own, transcribe_prompted
from mmspec.speech.recognition.transcript import Transcript, Transcription, joined_transcript
from mmspec.speech.recognition.voice_activity import speech_parts
from mmspec.speech.recognition.whisper import transcribe_whisper
from mmspec.speech.sound.audio import read_sound
from mmspec.utils.names import shown, wrong

Sound = str | Path | Tensor
WINDOW = 30
"""Seconds of a recording that recognisers without a window of their own read at once under `vad`."""
TASKS, TIMES = ("transcribe", "translate"), (None, "segment", "word")


@public_call
def transcribe(
    model: Any,
    processor: Any,
    sounds: Sound | Sequence[Sound],
    drafter: Any = None,
    *,
    language: str | None = None,
    task: str = "transcribe",
    timestamps: str | None = None,
    fallback: bool = False,
    condition: bool = False,
    prompt: str | None = None,
    vad: bool = False,
    batch_size: int = 8,
    accept: str | Accept = "exact",
    draft_length: int | str | Control = "auto",
    tree: Tree = None,
    seed: int = 0,
    max_new_tokens: int | None = None,
    on_step: OnStep = None,
    on_transcript: Callable[[int, Transcript], Any] | None = None,
) -> Transcription:
    """Write down what is said in recordings, each as it would be alone.

    Whisper's own `generate` moves its window over long recordings, repeats windows where `fallback` says so, and finds the times; every
    window is decoded speculatively, all recordings of a batch together. Other recognisers read a whole recording, or under `vad` its parts,
    by one call of their `generate`.

    Example:
        >>> out = mmspec.speech.transcribe(model, processor, ["talk.flac"], drafter, timestamps="segment")
        >>> print(out.texts[0], out.stats.tokens_per_call)
        >>> Path("talk.srt").write_text(out.transcripts[0].formatted("srt"))

    Args:
        model: a `WhisperForConditionalGeneration`, or another recogniser of the guide.
        processor: its processor.
        sounds: one or several: a file's path (WAV, FLAC, OGG, MP3), or samples, float [T] at the processor's rate. Any length.
        drafter: as in `mmspec.text.generate`; a smaller Whisper with another vocabulary by `mmspec.text.aligned_drafter`.
        language: the code or name of what is spoken, such as "en"; None to detect it for every recording.
        task: "transcribe", or "translate" into English.
        timestamps: of Whisper: None, "segment" or "word". Recordings longer than the window have segments in any case.
        fallback: of Whisper: decode a window again at temperatures 0.2, 0.4, ... 1.0 where its text repeats itself or is unlikely, and skip
            silence.
        condition: of Whisper: windows behind the first read the text before them.
        prompt: text that Whisper's decoder reads as if it came before, such as names that it is to spell right; of models that converse,
            what they are asked.
        vad: cut recordings that are longer than the window at pauses (Silero's detector, `pip install mmspec[vad]`), leave silence out, and
            decode the parts together: faster than moving a window, and other text where a part's context differs.
        batch_size: recordings that are decoded together. Does not change the output.
        accept, draft_length, tree: as in `mmspec.text.generate`.
        seed: of windows that are repeated at a temperature.
        max_new_tokens: tokens a window; None for as many as Whisper's decoder has positions, for others 448.
        on_step: called with every round.
        on_transcript: called with the number of a recording and its transcript, as soon as its batch is done.

    Returns:
        A `Transcription`: transcripts in the order of `sounds`, and counts.

    Raises:
        ValueError: for no recordings, a rate other than the processor's, invalid arguments and files that cannot be read.
        FileNotFoundError: for a file that does not exist.
    """
    clock = perf_counter()
    if not hasattr(model, "config"):
        raise wrong("model", model, "give a speech recogniser, what AutoModelForSpeechSeq2Seq.from_pretrained returned")
    _check(model, task, timestamps, batch_size)
    check_model_ready(model)
    given = [sounds] if isinstance(sounds, (str, Path, Tensor)) else list(sounds)
    if not given:
        raise ValueError("sounds is empty: give at least one recording")
    extractor = extractor_of(processor)
    rate = extractor.sampling_rate
    waves = [_wave(sound, rate) for sound in given]
    request = Request.of(drafter=drafter, accept=accept, draft_length=draft_length, tree=tree, seed=seed)
    options = TranscriptionOptions(language, task, timestamps, fallback, condition, prompt, max_new_tokens)
    whisper = model.config.model_type == "whisper"
    decoding, window = RecognitionDecoding(request, on_step), extractor.n_samples if whisper else WINDOW * rate
    write_down = transcribe_whisper if whisper else transcribe_prompted
    if not whisper:
        refuse_whispers_own(model, options)
    pieces = [piece for row, wave in enumerate(waves) for piece in _pieces(row, wave, rate, window if vad else None)]
    found = _Collected(waves, pieces, rate, on_transcript)
    for batch in _batches(pieces, window, batch_size, lambda wave: len(wave) > window if whisper else batch_key(model, wave)):
        for piece, heard in zip(batch, write_down(model, processor, [piece.wave for piece in batch], options, decoding), strict=True):
            found.add(piece, heard)
    return Transcription(found.transcripts(), decoding.stats, perf_counter() - clock)


@dataclass(frozen=True, eq=False)
class _Piece:
    """A recording, or a part of it."""

    row: int
    start: float  # seconds
    wave: Tensor


def _pieces(row: int, wave: Tensor, rate: int, window: int | None) -> list[_Piece]:
    if window is None or len(wave) <= window:
        return [_Piece(row, 0.0, wave)]
    return [_Piece(row, first / rate, wave[first:end]) for first, end in speech_parts(wave, rate, window / rate)]


class _Collected:
    """Transcripts of pieces, put together to those of recordings as soon as all pieces of one are there."""

    def __init__(self, waves: Sequence[Tensor], pieces: Sequence[_Piece], rate: int, told: Callable[[int, Transcript], Any] | None):
        self.seconds, self.told = [len(wave) / rate for wave in waves], told
        self.open = Counter(piece.row for piece in pieces)
        self.parts: dict[int, list[tuple[float, Transcript]]] = {row: [] for row in range(len(waves))}
        for row in range(len(waves)):
            if not self.open[row]:
                self._tell(row)

    def add(self, piece: _Piece, heard: Transcript) -> None:
        self.parts[piece.row].append((piece.start, heard))
        self.open[piece.row] -= 1
        if not self.open[piece.row]:
            self._tell(piece.row)

    def transcripts(self) -> list[Transcript]:
        return [joined_transcript(parts, self.seconds[row]) for row, parts in self.parts.items()]

    def _tell(self, row: int) -> None:
        if self.told is not None:
            self.told(row, joined_transcript(self.parts[row], self.seconds[row]))


def _check(model: Any, task: str, timestamps: str | None, batch_size: int) -> None:
    check_recogniser(model)
    if task not in TASKS:
        raise ValueError(f"unknown task {shown(task)}; valid: {', '.join(TASKS)}")
    if timestamps not in TIMES:
        raise ValueError(f"unknown timestamps {shown(timestamps)}; valid: None, 'segment', 'word'")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}: give a whole number of at least 1")


def _wave(sound: Sound, rate: int) -> Tensor:
    wave = sound.detach().float().cpu() if isinstance(sound, Tensor) else read_sound(sound, rate)
    if wave.dim() != 1 or len(wave) == 0:
        name = f"sound of shape {list(wave.shape)}" if isinstance(sound, Tensor) else f"audio file {sound}"
        raise ValueError(f"{name} holds no samples of one channel: give float [T] with T > 0")
    if not torch.isfinite(wave).all():
        raise ValueError(f"sound of {len(wave)} samples holds NaN or infinity: give finite ones")
    return wave


def _batches(pieces: Sequence[_Piece], window: int, size: int, apart: Callable[[Tensor], Any]) -> list[list[_Piece]]:
    """Return the pieces of every batch: those that fit the window in order, then longer ones by length, those alike by `apart` together."""
    groups: dict[Any, list[_Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: -max(len(piece.wave), window)):
        groups.setdefault(apart(piece.wave), []).append(piece)
    return [group[first : first + size] for group in groups.values() for first in range(0, len(group), size)]
