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
from mmspec.utils.files import read_prompts

_FIRST_SEED = 2 * 10**9  # of scenes that the mini's target was neither trained on nor is held out from


@dataclass(frozen=True)
class PictureRequests:
    """What a processor makes of requests, by number: `Ask` of `mmspec.train.record`.

    Args:
        pair: the target with its processor.
        asked: pictures, or what they are drawn from, and the text of each request.
        draw: gives a picture.
    """

    pair: Pair
    asked: Sequence[tuple[tuple[Any, ...], str]]
    draw: Callable[[Any], Any]

    def __len__(self) -> int:
        return len(self.asked)

    def __call__(self, first: int, end: int) -> dict[str, Any]:
        """Return the inputs of requests `first` to `end` - 1, in the target's chat template."""
        prompts = [VisionPrompt(text, tuple(map(self.draw, pictures))) for pictures, text in self.asked[first:end]]
        return replace(self.pair, chat=True).inputs(prompts)


def scene_requests(pair: Pair, batches: int, rows: int) -> PictureRequests:
    """Return `batches` times `rows` requests for captions and answers about drawn scenes, for mini vlm."""
    drawn = (batch(_FIRST_SEED + turn, rows)[:rows] for turn in range(batches))
    return PictureRequests(pair, [(each.pictures, each.question.text) for some in drawn for each in some], scenes.draw_scene)


def folder_requests(pair: Pair, pictures: Path, prompts: Path, count: int) -> PictureRequests:
    """Return `count` requests, in a fixed random order: every prompt of a file asked about every picture of a folder, over and over.

    Raises:
        ValueError: for a folder without pictures, and a file without prompts.
    """
    names = pictures_in(pictures)
    asked = [((pictures / name,), record["prompt"]) for record in read_prompts(prompts) for name in names]
    random.Random(0).shuffle(asked)
    return PictureRequests(pair, [asked[number % len(asked)] for number in range(count)], read_picture)
