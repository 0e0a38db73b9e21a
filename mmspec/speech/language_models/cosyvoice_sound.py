"""CosyVoice's flow decoder and vocoder, run by the user's own `cosyvoice` object, behind a stream of codes."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor
from torch.random import fork_rng

from mmspec.speech.language_models.cosyvoice import CosyVoicePrompt
from mmspec.speech.sound.audio import save
from mmspec.speech.sound.stream import SoundStream

SILENT = 5
"""Silent codes in a row that become sound."""


class CosyVoicePackage:
    """What a `CosyVoice2` or `CosyVoice3` object of the package cosyvoice does besides its language model.

    Its `frontend` reads recordings and its `model.token2wav` makes sound of codes, in its streaming mode: after every hop of codes and the
    look-ahead of its flow decoder. Its noise is drawn with a fixed seed, so that the same codes give the same sound.

    Example:
        model = mmspec.speech.load("CosyVoice2-0.5B", codec=CosyVoicePackage(CosyVoice2("CosyVoice2-0.5B")))

    Args:
        package: the object.

    Raises:
        ValueError: for objects without `frontend` and `model.token2wav`.
    """

    def __init__(self, package: Any):
        if not hasattr(package, "frontend") or not hasattr(getattr(package, "model", None), "token2wav"):
            raise ValueError(f"{type(package).__name__} has no frontend and model.token2wav: pass a CosyVoice2 or CosyVoice3 of cosyvoice")
        self.package, self.rate = package, int(package.sample_rate)

    @property
    def voices(self) -> Sequence[str]:
        """Names of the voices that the object has stored (`add_zero_shot_spk`)."""
        return tuple(name for name, found in self.package.frontend.spk2info.items() if "flow_prompt_speech_token" in found)

    def prompt(self, voice: Any) -> CosyVoicePrompt:
        """Read a voice.

        Args:
            voice: a `VoiceSample` with its text, the name of a stored voice, or None for the first stored one.

        Returns:
            The prompt of language model and flow decoder.

        Raises:
            ValueError: if no voice is given and none is stored.
        """
        voice = voice or next(iter(self.voices), None)
        if voice is None:
            raise ValueError("CosyVoice speaks in the voice of a recording: give voice=VoiceSample.read(path, text)")
        front = self.package.frontend
        if isinstance(voice, str):
            found = front.spk2info[voice]
            tokens = found["prompt_text"].flatten().tolist()
            return CosyVoicePrompt(front.tokenizer.decode(tokens), _codes(found), found)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "voice.wav"
            save(path, voice.samples, voice.rate)
            found = front.frontend_zero_shot("", voice.said(), str(path), self.rate, "")
        return CosyVoicePrompt(voice.said(), _codes(found), found)

    def stream(self, voice: CosyVoicePrompt) -> SoundStream:
        """Open the stream of one row; it takes codes."""
        return _Hops(self.package.model, voice.acoustic)


class _Hops:
    """Sound of one row, hop by hop, as the package's own streaming does it."""

    def __init__(self, model: Any, voice: Any):
        self.model, self.voice, self.name = model, voice, str(uuid4())
        self.silent, self.quiet = set(getattr(model, "silent_tokens", ())), 0
        self.codes: list[int] = []
        self.done, self.hop = 0, int(model.token_hop_len)
        self.most = int(getattr(model, "token_max_hop_len", self.hop))
        self.pad = -len(_codes(voice)) % self.hop  # codes that make the prompt whole hops
        model.hift_cache_dict[self.name] = None

    def push(self, steps: list[int]) -> Iterator[Tensor]:
        """Yield the pieces that `steps` complete."""
        for step in steps:
            self.quiet = self.quiet + 1 if step in self.silent else 0
            if self.quiet <= SILENT:
                self.codes.append(step)
            wanted = self.hop + (self.pad if self.done == 0 else 0)
            ahead = self.done + wanted + self.model.flow.pre_lookahead_len
            if len(self.codes) == ahead and self.quiet <= SILENT:
                yield self._sound(last=False)
                self.done += wanted
                self.hop = min(self.most, 2 * self.hop)

    def close(self) -> Iterator[Tensor]:
        """Yield the remaining sound."""
        if self.codes:
            yield self._sound(last=True)
        self.model.hift_cache_dict.pop(self.name, None)

    @torch.no_grad()
    def _sound(self, last: bool) -> Tensor:
        device = self.model.device
        with fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            found = self.model.token2wav(
                token=torch.tensor([self.codes]),
                prompt_token=self.voice["flow_prompt_speech_token"],
                prompt_feat=self.voice["prompt_speech_feat"],
                embedding=self.voice["flow_embedding"],
                token_offset=self.done,
                uuid=self.name,
                stream=not last,
                finalize=last,
            )
        return found.flatten().float().cpu()


def _codes(found: Any) -> list[int]:
    return found["flow_prompt_speech_token"].flatten().tolist()
