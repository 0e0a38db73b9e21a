"""Requests with pictures that a vision-language model answers for its drafters: drawn scenes, or questions about pictures of a folder."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmspec.loading.text import Pair
from mmspec.minis.drawn import scenes
from mmspec.minis.vlm_model import batch
from mmspec.text.inputs.pictures import pictures_in, read_picture
from mmspec.text.inputs.vision_inputs import VisionPrompt
from mmspec.train.held_out import HeldOut, apart, file_keys, hold_out
from mmspec.utils.files import read_prompts
from mmspec.utils.screen import track

_FIRST_SEED = 2 * 10**9  # of scenes that the mini's target was neither trained on nor is held out from


@dataclass(frozen=True)
class PictureRequests:
    """What a processor makes of requests, by number: `Ask` of `mmspec.train.record`.

    Args:
        pair: the target with its processor.
        asked: pictures, or what they are drawn from, and the text of each request.
        draw: gives a picture.
        split: which are held out, by their pictures or scenes.
    """

    pair: Pair
    asked: Sequence[tuple[tuple[Any, ...], str]]
    draw: Callable[[Any], Any]
    split: HeldOut

    def __len__(self) -> int:
        return len(self.asked)

    def __call__(self, first: int, end: int) -> dict[str, Any]:
        """Return the inputs of requests `first` to `end` - 1, in the target's chat template."""
        prompts = [VisionPrompt(text, tuple(map(self.draw, pictures))) for pictures, text in self.asked[first:end]]
        return replace(self.pair, chat=True).inputs(prompts)

    def longest(self, rows: int) -> int:
        """Return the most positions of a prompt, pictures included; `rows` requests are processed at a time."""
        starts = track(range(0, len(self), rows), "reading requests", disable=len(self) < 100)
        return max(int(self(first, first + rows)["attention_mask"].sum(1).max()) for first in starts)


def scene_requests(pair: Pair, batches: int, rows: int) -> PictureRequests:
    """Return `batches` times `rows` requests for captions and answers about drawn scenes, for mini vlm.

    The scenes of the last batch are held out: no other request is about one of them.
    """
    held = batch(_FIRST_SEED + batches - 1, rows)[:rows]
    split = apart((), [scene for each in held for scene in each.pictures], "scenes")
    drawn = [batch(_FIRST_SEED + turn, rows, split.keys)[:rows] for turn in range(batches - 1)]
    asked = [(each.pictures, each.question.text) for some in (*drawn, held) for each in some]
    return PictureRequests(pair, asked, scenes.draw_scene, split)


def folder_requests(pair: Pair, pictures: Path, prompts: Path, batches: int, rows: int) -> PictureRequests:
    """Return `batches` times `rows` requests, in a fixed random order: every prompt of a file asked about every picture of a folder, over
    and over.

    The pictures of the last batch are held out: no other request is about one of them. Of one picture prompts are held out.

    Raises:
        ValueError: for a folder without pictures, a file without prompts, and where there is one picture and one prompt.
    """
    names = pictures_in(pictures)
    files = dict(zip(names, file_keys([pictures / name for name in names]), strict=True))
    asked = [(name, record["prompt"]) for record in read_prompts(prompts) for name in names]
    random.Random(0).shuffle(asked)
    several = len(set(files.values())) > 1
    split = hold_out([files[name] if several else text for name, text in asked], rows, "pictures" if several else "prompts")
    chosen = [split.train[number % len(split.train)] for number in range((batches - 1) * rows)]
    chosen += [split.held[number % len(split.held)] for number in range(rows)]
    return PictureRequests(pair, [((pictures / asked[n][0],), asked[n][1]) for n in chosen], read_picture, split)
