"""Views of a text-only drafter on prompts with pictures (or sound): the text, with pictures removed or replaced.

A picture is one run of placeholders. The ids that enclose it (such as `<|vision_start|>`) are removed with it, because a text-only model
has not learnt them. The last position of a row always stays, because a session begins after it: where it belongs to a picture, it reads as
the token before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Ids = list[int]


@dataclass(frozen=True)
class Drop:
    """The text without pictures (Gagrani et al. 2024).

    Args:
        brackets: ids to remove besides those that the target's config names.
    """

    brackets: tuple[int, ...] = ()

    def __call__(self, prompt: Any, session: Any) -> dict[str, Tensor]:
        """Return `input_ids` and `attention_mask` [B, P] of the text without pictures."""
        ids, mask = session.target.family.prompt(session.target.model, prompt)
        unread = torch.isin(ids, torch.tensor((*marks_of(session), *self.brackets), device=ids.device))
        place = torch.arange(ids.shape[1], device=ids.device)
        last, word = (place.where(real, -1).amax(1, keepdim=True) for real in (mask, mask & ~unread))
        before = torch.where(word >= 0, ids.gather(1, word.clamp_min(0)), 0)
        return {"input_ids": torch.where(unread, before, ids), "attention_mask": mask & (~unread | (place == last))}


@dataclass(frozen=True)
class Newline:
    """One newline in place of every picture (the text-only view of TABED, Lee et al. 2026).

    Args:
        newline: id of the newline.
        brackets: ids to remove besides those that the target's config names.
    """

    newline: int
    brackets: tuple[int, ...] = ()

    def __call__(self, prompt: Any, session: Any) -> dict[str, Tensor]:
        """Return `input_ids` and `attention_mask` of the text with a newline for every picture."""
        return retold(prompt, session, lambda count: [[self.newline]] * count, self.brackets)


@dataclass(frozen=True)
class CaptionView:
    """A caption in place of every picture, in the order of the batch (TABED, Lee et al. 2026).

    Args:
        encode: maps a caption to ids.
        captions: one caption for every picture; or
        captioner: called with the prompt, pixels included; returns one text for every picture.
        brackets: ids to remove besides those that the target's config names.

    Raises:
        ValueError: for neither or both of the two, and for a wrong number of captions.
    """

    encode: Callable[[str], Sequence[int]]
    captions: tuple[str, ...] | None = None
    captioner: Callable[[Any], Sequence[str]] | None = None
    brackets: tuple[int, ...] = ()

    def __post_init__(self):
        if (self.captions is None) == (self.captioner is None):
            raise ValueError("a caption view takes captions, one for every picture, or a captioner that makes them: give one of the two")

    def __call__(self, prompt: Any, session: Any) -> dict[str, Tensor]:
        """Return `input_ids` and `attention_mask` of the text with a caption for every picture."""

        def tell(count: int) -> list[Ids]:
            said = self.captions if self.captioner is None or not count else self.captioner(prompt)
            if len(said or ()) != count:
                raise ValueError(f"{len(said or ())} captions for {count} pictures: give one for every picture, in the order of the batch")
            return [list(self.encode(caption)) for caption in said or ()]

        return retold(prompt, session, tell, self.brackets)


def retold(prompt: Any, session: Any, tell: Callable[[int], Sequence[Ids]], brackets: Sequence[int] = ()) -> dict[str, Tensor]:
    """Return the prompt as text: the i-th picture of the batch is replaced by `tell(pictures)[i]`. Padded on the left."""
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
    """Return the start of each picture of a row: a run of one placeholder, or every `fixed` positions of a longer run."""
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
    """Return the ids that stand for pictures or sound in a session's prompts, and those that enclose them."""
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
    """Positions of every picture, for models where all pictures have the same number and may be adjacent."""
    return getattr(model.config, "image_seq_length", None) if model.config.model_type == "llava" else None
