"""Prompts of CSM from texts, speakers and recordings, as conversations that its processor lays out."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from mmspec.speech.sound.voice_sample import VoiceSample


class CsmPrompts:
    """Prompts by a `CsmProcessor`: a conversation of one turn, before which a `VoiceSample` is a turn of its own with the same speaker.

    Args:
        processor: the processor, with its chat template.
        rate: samples a second of the model's codec.
    """

    voices = tuple(map(str, range(10)))
    longest = None

    def __init__(self, processor: Any, rate: int):
        self.processor, self.rate = processor, rate

    def __call__(self, texts: Sequence[str], voices: Sequence[Any]) -> Mapping[str, Tensor]:
        """Return the processor's inputs of one text.

        Args:
            texts: one text.
            voices: its speaker's number as a text, a `VoiceSample`, or None for speaker 0.

        Returns:
            input_ids [1, P], attention_mask, and for a recording input_values and input_values_cutoffs.

        Raises:
            ValueError: for an empty text, or a recording without its words.
        """
        (text,), (voice,) = texts, voices
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text {text!r} is empty: give some words")
        speaker, turns, sound = voice if isinstance(voice, str) else "0", [], {}
        if isinstance(voice, VoiceSample):
            turns = [{"role": speaker, "content": [{"type": "text", "text": voice.said()}, {"type": "audio"}]}]
            sound = {"audio": [voice.at(self.rate).numpy()]}
        turns = [*turns, {"role": speaker, "content": [{"type": "text", "text": text}]}]
        prompt = self.processor.apply_chat_template(turns, tokenize=False)
        return self.processor(text=[prompt], add_special_tokens=False, return_tensors="pt", **sound)
