"""Prompts of words, pictures and clips for models with several position axes, row by row, so that each row can also be run alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tests.seeing import CLIP, END, PLACE, START, words

VIDEO_START, VIDEO_END = START - 3, START - 4  # as `glm4v` in tests/seeing.py names them
NAMES = ("Qwen2-VL", "Qwen2.5-VL", "Qwen3-VL", "GLM-4V")


@dataclass(frozen=True)
class Row:
    """One prompt, and the pixels of its pictures and clips in the order of the prompt."""

    ids: Tensor
    types: Tensor
    pictures: tuple[tuple[Tensor, tuple[int, int, int]], ...]
    clips: tuple[tuple[Tensor, tuple[int, int, int], float], ...]


def row(name: str, *parts: int | tuple) -> Row:
    """A prompt of `parts`: a number of words; ("picture", h, w); or ("clip", grids, h, w, seconds a grid)."""
    ids, types, pictures, clips = [], [], [], []

    def say(tokens: Tensor, kind: int = 0) -> None:
        ids.append(tokens)
        types.append(torch.full_like(tokens, kind))

    for part in parts:
        if isinstance(part, int):
            say(words(part))
        elif part[0] == "picture":
            grid = (1, *part[1:])
            pictures.append((torch.randn(grid[1] * grid[2], 48), grid))
            say(torch.tensor([START]))
            say(torch.full((grid[1] * grid[2] // 4,), PLACE), 1)
            say(torch.tensor([END]))
        else:
            grid, seconds = part[1:4], part[4]
            clips.append((torch.randn(grid[0] * grid[1] * grid[2], 48), grid, seconds))
            each = grid[1] * grid[2] // 4
            if name in ("Qwen2-VL", "Qwen2.5-VL"):  # one run of placeholders
                say(torch.tensor([START]))
                say(torch.full((grid[0] * each,), CLIP), 2)
                say(torch.tensor([END]))
                continue
            marks = (VIDEO_START, VIDEO_END, PLACE) if name == "GLM-4V" else (START, END, CLIP)  # every grid behind its time
            for _ in range(grid[0]):
                say(torch.cat([words(1), torch.tensor([marks[0]])]))
                say(torch.full((each,), marks[2]), 2)
                say(torch.tensor([marks[1]]))
    return Row(torch.cat(ids), torch.cat(types), tuple(pictures), tuple(clips))


def batch(name: str, rows: Sequence[Row], side: str = "left") -> dict[str, Tensor]:
    """What the family's processor returns for `rows`, padded on `side`."""
    longest = max(len(one.ids) for one in rows)

    def filled(values: Tensor) -> Tensor:
        missing = longest - len(values)
        return pad(values, (missing, 0) if side == "left" else (0, missing))

    found = {
        "input_ids": torch.stack([filled(one.ids) for one in rows]),
        "attention_mask": torch.stack([filled(torch.ones_like(one.ids)) for one in rows]),
        "mm_token_type_ids": torch.stack([filled(one.types) for one in rows]),
    }
    pictures, clips = [p for one in rows for p in one.pictures], [c for one in rows for c in one.clips]
    if pictures:
        found["pixel_values"] = torch.cat([pixels for pixels, _ in pictures])
        found["image_grid_thw"] = torch.tensor([grid for _, grid in pictures])
    if clips:
        found["pixel_values_videos"] = torch.cat([pixels for pixels, *_ in clips])
        found["video_grid_thw"] = torch.tensor([grid for _, grid, _ in clips])
        if name == "Qwen2.5-VL":
            found["second_per_grid_ts"] = torch.tensor([seconds for *_, seconds in clips])
    return found
