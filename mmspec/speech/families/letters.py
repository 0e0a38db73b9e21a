"""Prompts of codec language models: texts and voices to ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmspec.speech.families.base import one_voice_each


@dataclass(frozen=True)
class Letters:
    """Maps texts to ids by a tokenizer and a template that holds {text} and, with voices, {voice}.

    Args:
        tokenizer: the tokenizer.
        template: the prompt.
        voices: names of the voices.
        longest: most ids of a prompt.
    """

    tokenizer: Any
    template: str = "{text}"
    voices: tuple[str, ...] = ()
    longest: int | None = None
    clones: ClassVar[bool] = False  # a voice may be a recording

    def __call__(self, texts: Sequence[str], voices: Sequence[Any]) -> dict[str, Tensor]:
        """Return ids [B, P], padded on the tokenizer's side, and their mask.

        Args:
            texts: one a row.
            voices: a voice for every text; None for the first one.

        Returns:
            `input_ids` and `attention_mask`, LongTensor [B, P].

        Raises:
            ValueError: for a text that is empty, too long, or not covered by the tokenizer.
        """
        if isinstance(texts, str):
            raise ValueError(f"texts is the one text {texts!r}: give a list of texts, one an utterance")
        if not texts:
            raise ValueError("no texts: give at least one")
        chosen = one_voice_each(list(voices), texts, self.voices, self.clones)
        rows = [self.ids(self._checked(text), voice) for text, voice in zip(texts, chosen, strict=True)]
        most = max(map(len, rows))
        if self.longest is not None and most > self.longest:
            worst = texts[max(range(len(rows)), key=lambda row: len(rows[row]))]
            raise ValueError(f"text {_short(worst)} is too long: {most} ids where the model takes {self.longest}; cut it into sentences")
        return padded(rows, self.tokenizer.pad_token_id, self.tokenizer.padding_side)

    def ids(self, text: str, voice: Any) -> list[int]:
        """Return the prompt of one text in one voice; None for the first one."""
        prompt = self.template.format(text=text, voice=voice or next(iter(self.voices), None))
        return self.tokenizer(prompt)["input_ids"]

    def count(self, text: str) -> int:
        """Return the number of ids of `text` without the template."""
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _checked(self, text: Any) -> str:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"text {text!r} is empty: give some words")
        lacking = self.tokenizer.unk_token_id
        if lacking is not None and lacking in self.tokenizer(text)["input_ids"]:
            bad = next((mark for mark in text if lacking in self.tokenizer(f"a{mark}a")["input_ids"]), text)
            raise ValueError(f"text {_short(text)} has {bad!r}, which the tokenizer lacks: write it in words it has")
        return text


def padded(rows: Sequence[Sequence[int]], pad: int | None = None, side: str = "left") -> dict[str, Tensor]:
    """Return `rows` as one batch.

    Args:
        rows: the ids of each row.
        pad: the padding's id; the engine never reads it, and many Llama tokenizers have none.
        side: where padding goes, left or right.

    Returns:
        `input_ids` and `attention_mask`, LongTensor [B, P].
    """
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad or 0)
    mask = torch.zeros_like(ids)
    for row, found in enumerate(rows):
        part = slice(width - len(found), width) if side == "left" else slice(len(found))
        ids[row, part], mask[row, part] = torch.tensor(list(found)), 1
    return {"input_ids": ids, "attention_mask": mask}


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
