"""What a drafter that only reads words reads of a prompt with pictures (or sound): the words, and what is said in place of a picture.

A picture is one run of placeholders. The ids that enclose it (`<|vision_start|>` and its kin) go with it: a model of the same
tokenizer knows them as words, but has never learned what they mean without a picture. The last position of a row always stays,
because a session begins behind it: where it is a picture's, it reads as the word before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Ids = list[int]


@dataclass(frozen=True)
class Drop:
    """The words alone (Gagrani et al. 2024). `brackets` are left out besides the ids that the target's config names."""

    brackets: tuple[int, ...] = ()

    def __call__(self, prompt: Any, session: Any) -> dict[str, Tensor]:
        ids, mask = session.target.family.prompt(session.target.model, prompt)
        unread = torch.isin(ids, torch.tensor((*marks_of(session), *self.brackets), device=ids.device))
        place = torch.arange(ids.shape[1], device=ids.device)
        last, word = (place.where(real, -1).amax(1, keepdim=True) for real in (mask, mask & ~unread))
        before = torch.where(word >= 0, ids.gather(1, word.clamp_min(0)), 0)
        return {"input_ids": torch.where(unread, before, ids), "attention_mask": mask & (~unread | (place == last))}


@dataclass(frozen=True)
class Newline:
    """One newline, the id `newline`, for every picture (the text-only view of TABED, Lee et al. 2026)."""

    newline: int
    brackets: tuple[int, ...] = ()

    def __call__(self, prompt: Any, session: Any) -> dict[str, Tensor]:
        return retold(prompt, session, lambda count: [[self.newline]] * count, self.brackets)


@dataclass(frozen=True)
class CaptionView:
    """A caption for every picture, in the order of the batch (TABED, Lee et al. 2026).

    `captions` are given, or `captioner` makes them from the request: it gets the prompt, pixels and all, and returns one text for
    every picture. `encode` turns a caption into ids. ValueError when there are fewer or more captions than pictures.
    """

    encode: Callable[[str], Sequence[int]]
    captions: tuple[str, ...] | None = None
    captioner: Callable[[Any], Sequence[str]] | None = None
    brackets: tuple[int, ...] = ()

    def __post_init__(self):
        if (self.captions is None) == (self.captioner is None):
            raise ValueError("a caption view takes captions, one for every picture, or a captioner that makes them: give one of the two")

    def __call__(self, prompt: Any, session: Any) -> dict[str, Tensor]:
        def tell(count: int) -> list[Ids]:
            said = self.captions if self.captioner is None or not count else self.captioner(prompt)
            if len(said or ()) != count:
                raise ValueError(f"{len(said or ())} captions for {count} pictures: give one for every picture, in the order of the batch")
            return [list(self.encode(caption)) for caption in said or ()]

        return retold(prompt, session, tell, self.brackets)


def retold(prompt: Any, session: Any, tell: Callable[[int], Sequence[Ids]], brackets: Sequence[int] = ()) -> dict[str, Tensor]:
    """The prompt as words: the i-th picture of the batch reads `tell(pictures)[i]`. Padded on the left."""
    ids, mask = session.target.family.prompt(session.target.model, prompt)
    marks, around = set(session.target.family.placeholders), {*marks_of(session), *brackets}
    rows = [row[own].tolist() for row, own in zip(ids, mask, strict=True)]
    found = [runs(row, marks, _fixed(session.target.model)) for row in rows]
    words = iter(tell(sum(map(len, found))))
    told = [_row(row, {start: next(words) for start in starts}, around) for row, starts in zip(rows, found, strict=True)]
    longest = max(map(len, told))
    padded = [[0] * (longest - len(row)) + row for row in told]
    real = [[False] * (longest - len(row)) + [True] * len(row) for row in told]
    return {"input_ids": torch.tensor(padded, device=ids.device), "attention_mask": torch.tensor(real, device=ids.device)}


def runs(row: Sequence[int], marks: set[int], fixed: int | None = None) -> list[int]:
    """Where each picture of a row begins: a run of one placeholder, or each `fixed` positions of a run that is so many times as long."""
    starts: list[int] = []
    position = 0
    while position < len(row):
        end = position + 1
        if row[position] in marks:
            while end < len(row) and row[end] == row[position]:
                end += 1
            each = fixed if fixed and (end - position) % fixed == 0 else end - position
            starts += range(position, end, each)
        position = end
    return starts


def marks_of(session: Any) -> tuple[int, ...]:
    """The ids that stand for pictures or sound in a session's prompts, and those that enclose them."""
    family = session.target.family
    return tuple(dict.fromkeys((*family.placeholders, *family.never_generated_ids)))


def _row(row: Ids, words: dict[int, Ids], brackets: set[int]) -> Ids:
    told: Ids = []
    for position, value in enumerate(row):
        told += words.get(position, [])
        if value not in brackets:
            told.append(value)
        elif position == len(row) - 1:
            told.append(told[-1] if told else 0)
    return told


def _fixed(model: Any) -> int | None:
    """Positions of every picture, for models whose pictures all have the same number: two of them may stand side by side."""
    return getattr(model.config, "image_seq_length", None) if model.config.model_type == "llava" else None
