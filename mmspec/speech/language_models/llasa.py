"""Llasa (Ye et al. 2025, arXiv 2502.04128): Llama over X-Codec2's codes, prompted by a chat whose answer is the sound.

A recording's voice is imitated by giving its text before the text, and its codes as the beginning of the answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.speech.codecs.transformers import HFCodec
from mmspec.speech.families.base import SpeechSampling
from mmspec.speech.families.codec_lm import CodecLM
from mmspec.speech.families.letters import Letters
from mmspec.speech.sound.voice_sample import VoiceSample

PATTERN, START, END = "<|s_{}|>", "<|SPEECH_GENERATION_START|>", "<|SPEECH_GENERATION_END|>"
TEXT_START, TEXT_END = "<|TEXT_UNDERSTANDING_START|>", "<|TEXT_UNDERSTANDING_END|>"
NAMES = (START, END, TEXT_START, TEXT_END, PATTERN.format(0))
"""Tokens that the tokenizer of a Llasa has."""
CODEC = "HKUSTAudio/xcodec2-hf"
TRAINED = 2048
"""Ids of the longest sequences in training, prompt and codes."""
SAMPLING = SpeechSampling(temperature=0.8)


@dataclass(frozen=True)
class LlasaPrompts(Letters):
    """Texts as the chats that Llasa was trained on.

    Args:
        listen: the codes of a recording; None where the codec cannot be asked.
    """

    listen: Callable[[VoiceSample], list[int]] | None = field(default=None, kw_only=True)
    clones: ClassVar[bool] = True

    def __call__(self, texts: Any, voices: Any) -> dict[str, Tensor]:
        """Return ids, mask, and where a recording begins the answer the number of its `codes` [B]; see `Letters`."""
        found = super().__call__(texts, voices)
        if not any(voices):
            return found
        start = self.tokenizer.convert_tokens_to_ids(START)
        real = [ids[mask.bool()].tolist() for ids, mask in zip(found["input_ids"], found["attention_mask"], strict=True)]
        return found | {"codes": torch.tensor([ids[::-1].index(start) for ids in real])}

    def ids(self, text: str, voice: VoiceSample | None) -> list[int]:
        """Return the prompt of one text; see `Letters.ids`."""
        codes: list[int] = []
        if voice is not None:
            if self.listen is None:
                raise ValueError("the codec has no encoder for recordings: leave the VoiceSample out")
            text, codes = f"{voice.said()} {text}", self.listen(voice)
        told = f"Convert the text to speech:{TEXT_START}{text}{TEXT_END}"
        answer = START + "".join(PATTERN.format(code) for code in codes)
        chat = [{"role": "user", "content": told}, {"role": "assistant", "content": answer}]
        return self.tokenizer.apply_chat_template(chat, continue_final_message=True, return_dict=False)


def llasa(model: Any, tokenizer: Any, codec: Any, **options: Any) -> CodecLM:
    """Return a Llasa as a speech model.

    Args:
        model: the language model.
        tokenizer: its tokenizer, with its chat template.
        codec: an `Xcodec2Model`, or anything that `CodecLM.of` takes.
        options: replace those of `CodecLM.of`.

    Returns:
        The model. A call without `max_seconds` writes at most `TRAINED` ids.

    Raises:
        ValueError: for a tokenizer without the tokens or the chat template.
    """
    if not tokenizer.chat_template:
        raise ValueError("Llasa's tokenizer has no chat template: load the tokenizer that came with the model")
    sound = codec if hasattr(codec, "stream") else HFCodec(codec)
    settings = {"pattern": PATTERN, "end": END, "sampling": SAMPLING, "usual": TRAINED, "longest": TRAINED} | options
    made = CodecLM.of(model, tokenizer, sound, **settings)
    listen = _listener(sound.model) if isinstance(sound, HFCodec) and sound.model.config.model_type == "xcodec2" else None
    return replace(made, letters=LlasaPrompts(tokenizer, longest=made.letters.longest, listen=listen))


def _listener(codec: Any) -> Callable[[VoiceSample], list[int]]:
    """Return what maps a recording to the codes of an X-Codec2 model."""

    def listen(voice: VoiceSample) -> list[int]:
        from transformers import Xcodec2FeatureExtractor

        rate, hop = codec.config.sampling_rate, codec.config.hop_length
        read = Xcodec2FeatureExtractor(sampling_rate=rate, hop_length=hop)
        with torch.no_grad():
            found = codec.encode(**read(voice.at(rate).numpy(), sampling_rate=rate, return_tensors="pt").to(codec.device))
        return found.audio_codes[0, 0, : max(1, len(voice.at(rate)) // hop)].tolist()

    return listen
