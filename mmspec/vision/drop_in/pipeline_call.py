"""Arguments of a pipeline's call as `mmspec.vision.generate` takes them: prompts with images, generators, callbacks, kinds of output."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmspec.core.decode import OnStep
from mmspec.core.records import Step
from mmspec.utils.names import wrong
from mmspec.utils.strict import fits
from mmspec.vision.families.prompts import ImagePrompt
from mmspec.vision.generation import Pictures

OUTPUTS = ("pil", "np", "pt", "latent")
TENSORS = ("codes", "lengths")
"""What callbacks may be given."""
OnStepEnd = Callable[[Any, int, int, dict[str, Any]], dict[str, Any] | None]


def prompts_with_images(prompt: Any, image: Any) -> list[Any]:
    """Return prompts as a list, with their images. ValueError for another number of images."""
    prompts = list(prompt) if isinstance(prompt, Sequence) and not isinstance(prompt, str) else [prompt]
    if image is None:
        return prompts
    if not fits(image, Image.Image | Sequence[Image.Image | Sequence[Image.Image]]):
        raise wrong("image", image, "give a PIL image, a list for one prompt, or one list a prompt")
    if isinstance(image, Image.Image):
        images = [[image]] * len(prompts)
    elif image and isinstance(image[0], Image.Image):
        images = [list(image)] if len(prompts) == 1 else None
    else:
        images = [list(some) for some in image]
    if images is None or len(images) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts, and image is not one image or one list for each: give a list of lists of PIL images")
    return [ImagePrompt(text, tuple(some)) for text, some in zip(prompts, images, strict=True)]


def each_repeated(values: Sequence[Any], times: int) -> list[Any]:
    """Return each of `values` several times, one after the other."""
    return [value for value in values for _ in range(times)]


def seeds_of(generator: Any, rows: int) -> list[int]:
    """Return one seed an image, drawn from its generator. ValueError for another number of generators."""
    several = isinstance(generator, Sequence)
    if several and len(generator) != rows:
        raise ValueError(f"{len(generator)} generators for {rows} images: give one, or one an image")
    found = list(generator) if several else [generator] * rows
    return [int(torch.randint(2**62, (), generator=one, device="cpu" if one is None else one.device)) for one in found]


def callback_of(pipeline: Any, callback: OnStepEnd | None, names: Sequence[str], rows: int) -> OnStep:
    """The callback of rounds that calls a callback of diffusers' kind."""
    if callback is None:
        return None
    lengths, rounds = [0] * rows, [0]

    def call(step: Step) -> None:
        values = step.committed.values
        for row, some in enumerate(values):
            lengths[row] += len(some)
        most = max(map(len, values))
        codes = torch.tensor([[*some, *[-1] * (most - len(some))] for some in values], dtype=torch.long).view(rows, most)
        tensors = {"codes": codes, "lengths": torch.tensor(lengths)}
        returned = callback(pipeline, rounds[0], min(lengths), {name: tensors[name] for name in names})
        if returned:
            raise ValueError(f"callback_on_step_end returned {', '.join(map(str, returned))}, which nothing reads: return None")
        rounds[0] += 1

    return call


class CodesProgress:
    """A progress bar over codes and controls: a context that gives a callback of rounds.

    Args:
        total: of all images.
        disable: show nothing.
        description: the text beside the bar.
    """

    def __init__(self, total: int, disable: bool = False, description: str = "codes"):
        from rich.progress import Progress

        from mmspec.utils.screen import console, text_column

        columns = (text_column(), *Progress.get_default_columns()[1:])
        self.bar = Progress(*columns, console=console(stderr=True), disable=disable, transient=True)
        self.task = self.bar.add_task(description, total=total)

    def __enter__(self) -> Callable[[Step], None]:
        self.bar.start()
        return lambda step: self.bar.advance(self.task, sum(map(len, step.committed.values)))

    def __exit__(self, *error: object) -> None:
        self.bar.stop()


def images_of(out: Pictures, output_type: str) -> Any:
    """Return the images of a generation in the form `output_type`, one of `OUTPUTS`."""
    if output_type == "latent":
        return out.tokens
    if output_type == "pil":
        return out.images
    arrays = [np.asarray(picture.convert("RGB") if picture.mode != "L" else picture, dtype=np.float32) / 255 for picture in out.images]
    found = np.stack([array[..., None] if array.ndim == 2 else array for array in arrays])
    return found if output_type == "np" else torch.from_numpy(found).permute(0, 3, 1, 2).contiguous()
