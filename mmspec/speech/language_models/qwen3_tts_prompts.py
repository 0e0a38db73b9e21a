"""Prompts of Qwen3-TTS: what a request says, and its embeddings by a network.

A prompt adds two lines of embeddings: text, and controls of the talker. Text is given whole before the first frame, or a token a frame
beside the frames (`streaming`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from mmspec.speech.families.frames import FramePrompt, FrameRows
from mmspec.speech.language_models.qwen3_tts_network import Qwen3TTSNetwork
from mmspec.speech.sound.voice_sample import VoiceSample

Listen = Callable[[VoiceSample], tuple[Tensor, Tensor]]
"""A recording to its frames [T, K] and its voice [D]."""


@dataclass(frozen=True)
class Qwen3TTSIds:
    """The ids that a published config.json names.

    Args:
        text: tts_bos, tts_eos and tts_pad, ids of text.
        think: codec_think, codec_nothink, codec_think_bos and codec_think_eos, values of the talker as all that follow.
        begin: codec_pad and codec_bos.
        end: codec_eos.
        speakers: voices by name.
        dialects: language of the voices that speak a dialect.
        languages: languages by name.
    """

    text: tuple[int, int, int]
    think: tuple[int, int, int, int]
    begin: tuple[int, int]
    end: int
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]
    languages: Mapping[str, int]

    @staticmethod
    def of(config: Mapping[str, Any]) -> "Qwen3TTSIds":
        """Read a published config. ValueError names what it lacks."""
        told = config.get("talker_config") or {}
        text, talker = ("tts_bos_token_id", "tts_eos_token_id", "tts_pad_token_id"), ("codec_pad_id", "codec_bos_id")
        think = ("codec_think_id", "codec_nothink_id", "codec_think_bos_id", "codec_think_eos_id")
        for name in (
            *(each for each in text if each not in config),
            *(each for each in (*think, *talker, "codec_eos_token_id") if each not in told),
        ):
            raise ValueError(f"config.json has no {name}: expected a published Qwen3-TTS")
        dialects = {name: spoken for name, spoken in (told.get("spk_is_dialect") or {}).items() if spoken}
        return Qwen3TTSIds(
            tuple(config[name] for name in text),
            tuple(told[name] for name in think),
            tuple(told[name] for name in talker),
            told["codec_eos_token_id"],
            told.get("spk_id") or {},
            dialects,
            told.get("codec_language_id") or {},
        )

    def controls(self, language: str, voice: Any) -> list[int]:
        """Return the values that begin the talker's line: the language, or that there is none. ValueError for an unknown language."""
        name = language.lower()
        if name != "auto" and name not in self.languages:
            raise ValueError(f"language is {language!r}: valid are auto, {', '.join(self.languages)}")
        if name in ("auto", "chinese") and isinstance(voice, str) and voice in self.dialects:
            name = self.dialects[voice]
        think, none, begin, end = self.think
        return [none, begin, end] if name == "auto" else [think, begin, self.languages[name], end]


@dataclass(frozen=True)
class Qwen3TTSRow:
    """One request.

    Args:
        text: ids of the text.
        role: ids that begin an answer.
        instruct: ids of the instruction, if any.
        controls: values that begin the talker's line.
        voice: the value of a voice, a recording, or None.
        said: ids of the words said in the recording; none to take its voice only.
    """

    text: Sequence[int]
    role: Sequence[int]
    instruct: Sequence[int]
    controls: Sequence[int]
    voice: int | VoiceSample | None
    said: Sequence[int]


@torch.no_grad()
def embedded(net: Qwen3TTSNetwork, ids: Qwen3TTSIds, row: Qwen3TTSRow, streaming: bool, listen: Listen | None) -> tuple[Tensor, Tensor]:
    """Embed a request.

    Args:
        net: the network.
        ids: its ids.
        row: the request.
        streaming: give text a token a frame.
        listen: what hears recordings.

    Returns:
        The prompt [P, D], and what is added to the frames behind it, one a frame [T, D]; the last one to all later frames.

    Raises:
        ValueError: for a recording without `listen`.
    """
    begin, end, pad = net.text(ids.text).split(1)
    voice, frames = _heard(net, row, listen)
    codec = torch.cat([net.code(row.controls), voice, net.code(ids.begin)])
    start = torch.cat([pad.expand(len(codec) - 2, -1), begin]) + codec[:-1]
    front = [net.text(row.instruct), net.text(row.role), start]
    text, code = torch.cat([net.text([*row.said, *row.text]), end]), codec[-1:]
    if frames is not None:
        code = torch.cat([code, net.frames(frames)])
    if not streaming:
        return torch.cat([*front, text + net.code(ids.begin[:1]), code + pad]), pad
    beside = torch.cat([text, pad.expand(max(0, len(code) - len(text)), -1)])
    return torch.cat([*front, beside[: len(code)] + code]), torch.cat([beside[len(code) :], pad])


def _heard(net: Qwen3TTSNetwork, row: Qwen3TTSRow, listen: Listen | None) -> tuple[Tensor, Tensor | None]:
    """The voice [0 or 1, D] and the recording's frames."""
    if isinstance(row.voice, VoiceSample):
        if listen is None:
            raise ValueError("this model takes no recordings as voices: leave the VoiceSample out, or load a base model with its codec")
        frames, voice = listen(row.voice)
        return voice[None].to(net.device, net.dtype), frames.to(net.device) if len(row.said) else None
    return net.code([] if row.voice is None else [row.voice]), None


class TalkerRows(FrameRows):
    """A prompt in a session, and what is added to the frames of each row [R, T, D]: the last of it to all later ones."""

    by_row = (*FrameRows.by_row, "beside")

    def __init__(self, prompt: FramePrompt):
        super().__init__(prompt)
        self.beside: Tensor = prompt.extra.beside

    def join_rows(self, other: Self) -> None:
        """Append the rows of another one; see `core.rows.changes.RowState`."""
        longest = max(self.beside.shape[1], other.beside.shape[1])
        for each in (self, other):
            last = each.beside[:, -1:].expand(-1, longest - each.beside.shape[1], -1)
            each.beside = torch.cat([each.beside, last], 1)
        super().join_rows(other)
