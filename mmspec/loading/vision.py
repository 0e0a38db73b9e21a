"""Image models by name: a shipped mini, a folder of one's own training, a transformers checkpoint. `trust_remote_code` stays off."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mmspec import minis
from mmspec.utils.files import is_path
from mmspec.utils.names import shown
from mmspec.vision.checkpoints.drafters import is_image_drafter, load_image_drafter
from mmspec.vision.checkpoints.latents import load_latent_drafter
from mmspec.vision.checkpoints.load import DTYPES, load_image_checkpoint
from mmspec.vision.codes.registry import method_of
from mmspec.vision.continuous.methods import ContinuousPictures, way_of
from mmspec.vision.families.base import ImageModel, Size
from mmspec.vision.families.glm_image import GlmImage
from mmspec.vision.families.imagegpt import ImageGPT
from mmspec.vision.families.llamagen import T5Captions
from mmspec.vision.families.prompts import ImagePrompt
from mmspec.vision.plan import default_method

MINIS = ("mini", "vision", "vision-fashion")
CONTINUOUS = {"continuous": "diffusion", "continuous-mixture": "mixture", "continuous-masked": "masked"}
"""Minis of continuous tokens, and the heads that they are called for; the first finds the others' where a way of drawing needs them."""
MINI_GUIDANCE = 2.0
"""The scale the minis of codes are drawn with where none is given; `docs/results.md` measures them at it."""


@dataclass(frozen=True)
class Loaded:
    """An image model, ready for `mmspec.vision.generate`, and what goes with it."""

    name: str
    model: ImageModel | ContinuousPictures
    examples: tuple[str, ...] = ()
    guidance: float | None = None  # what it is drawn with where the caller does not say
    prompted: bool = True  # ImageGPT takes no prompt
    autoencoder: Any = None  # of continuous tokens: what makes pictures of them

    def prompts(self, prompt: str | None, count: int) -> list[Any]:
        """`prompt` for `count` pictures. ValueError where it needs one and none is given, or takes none and one is."""
        if self.prompted and (prompt is None or not prompt.strip()):
            shown = ", ".join(repr(example) for example in self.examples[:4])
            raise ValueError(f"no prompt: say what to draw{f', such as {shown}' if shown else ''}")
        if not self.prompted and prompt:
            raise ValueError(f"prompt {prompt!r}: {self.name} takes none, leave it out")
        return [prompt if self.prompted else None] * count

    def unread(self, prompts: Sequence[Any]) -> list[str]:
        """Lines about what the model's text encoder does not read of `prompts`, if it can tell: see `T5Captions.unread`."""
        captions = getattr(self.model, "captions", None)
        return captions.unread([prompt for prompt in prompts if isinstance(prompt, str)]) if isinstance(captions, T5Captions) else []

    @property
    def cells(self) -> int:
        """Values of a picture."""
        return self.model.cells if isinstance(self.model, ContinuousPictures) else self.model.raster.length


def load_image_model(
    name: str = "mini",
    dtype: str = "float32",
    device: torch.device | str = "cpu",
    *,
    decoder: str | None = None,
    captions: str | None = None,
    size: Size | None = None,
) -> Loaded:
    """The image model called `name`: "mini" or "vision", "vision-fashion", a name of `CONTINUOUS`, a folder that `vision/train_target.py`
    or `vision/train_continuous.py` wrote, or what `load_image_checkpoint` reads: a published LlamaGen file, a folder of diffusers'
    `GlmImagePipeline`, a folder or hub name of a transformers image model. `decoder`, `captions` and `size` are for those.

    FileNotFoundError or ValueError, in one line, for what cannot be had."""
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {shown(dtype)}; valid: {', '.join(DTYPES)}")
    where, own = Path(name).expanduser(), {"decoder": decoder, "captions": captions}
    if name in MINIS:
        _refuse(name, **own)
        mini = minis.load("vision" if name == "mini" else name)
        return _own(name, {"target": mini.target, "examples": mini.examples}, dtype, device)
    if (place := _latents(name)) is not None:
        _refuse(name, **own)
        return _continuous(name, *place, dtype, device)
    if (where / "target").is_dir():
        from mmspec.minis.images import load_images

        _refuse(name, **own)
        return _own(name, load_images(where), dtype, device)
    if not where.exists() and is_path(name):
        known = ", ".join((*MINIS, *CONTINUOUS))
        raise FileNotFoundError(f"model path {name} does not exist: give {known}, a folder with config.json and weights, or a hub name")
    return _checkpoint(name, str(where) if where.exists() else name, dtype, device, decoder=decoder, captions=captions, size=size)


def is_file_model(name: str) -> bool:
    """Whether `name` is a checkpoint file, whose picture size is a matter of loading; nothing is loaded."""
    return Path(name).expanduser().is_file()


def _refuse(name: str, **given: Any) -> None:
    for option, value in given.items():
        if value is not None:
            raise ValueError(f"{option} is {value!r}, and {name} has its own: leave it out")


def _own(name: str, parts: dict[str, Any], dtype: str, device: torch.device | str) -> Loaded:
    """A LlamaGen of this project's, its parts moved to where they run."""
    model, kind = parts["target"], torch.float32 if dtype == "auto" else getattr(torch, dtype)
    for net in (model.model, model.drafter, None if model.assistant is None else model.assistant.model):
        if net is not None:
            net.to(device, kind)
    if model.captions is not None:
        model.captions.encoder.to(device)
    guidance = MINI_GUIDANCE if model.captions is None else None  # captions of scenes are shown best without
    return Loaded(name, model, tuple(str(example) for example in parts["examples"]), guidance)


def is_continuous(name: str) -> bool:
    """Whether `name` stands for a model of continuous tokens; nothing is loaded."""
    return _latents(name) is not None


def _latents(name: str) -> tuple[Path, str] | None:
    """(folder, name) of a model of continuous tokens: a mini, a folder with an autoencoder, or the folder of one model in such a folder."""
    from mmspec.minis import HOME
    from mmspec.minis.latents import HEADS

    if name in CONTINUOUS:
        return HOME / "continuous", CONTINUOUS[name]
    where = Path(name).expanduser()
    if (where / "autoencoder").is_dir():
        others = sorted(path.parent.name for path in where.glob("*/target"))
        return where, next((head for head in (*HEADS, *others) if (where / head / "target").is_dir()), HEADS[0])
    alone = (where.parent / "autoencoder").is_dir() and (where / "target").is_dir()
    return (where.parent, where.name) if alone else None


def _continuous(name: str, folder: Path, head: str, dtype: str, device: torch.device | str) -> Loaded:
    """Models of continuous tokens with their autoencoder, moved to where they run."""
    from mmspec.minis.latents import load_latents

    if dtype not in ("float32", "auto"):
        raise ValueError(
            f"dtype is {dtype}, but continuous tokens are judged to a fraction of sigma_out, which half precision rounds away: take float32"
        )
    parts = load_latents(folder, head)
    model: ContinuousPictures = parts["target"]
    parts["processor"].to(device)
    for each in (model, *model.others):
        nets: list[Any] = [each.model, each.drafter]
        for net in nets:
            if net is not None:
                net.to(device)
    return Loaded(name, model, tuple(parts["examples"]), autoencoder=parts["processor"])


def _checkpoint(name: str, where: str, dtype: str, device: torch.device | str, **more: Any) -> Loaded:
    model = load_image_checkpoint(where, dtype=dtype, device=device, **more)
    return Loaded(name, model, prompted=not isinstance(model, ImageGPT))


def check_decoder(loaded: Loaded) -> None:
    """ValueError, before anything is drawn, where codes could not be made into pictures."""
    model = loaded.model
    if getattr(model, "to_pictures", check_decoder) is None:
        raise ValueError(
            f"{loaded.name} has no decoder of its own, so it gives codes and no pictures: "
            "give the file of one (--decoder), or make the adapter in Python with to_pictures, and call mmspec.vision.generate"
        )


def guided_from(loaded: Loaded, negative: str | None, guidance: float | None) -> Loaded:
    """`loaded` with guidance away from the text `negative`, if given. ValueError without guidance, and for models that read none."""
    if negative is None:
        return loaded
    if guidance is None or guidance == 1 or not isinstance(loaded.model, ImageModel):
        raise ValueError("a negative text is given without guidance: give --guidance above 1, or leave it out")
    return replace(loaded, model=loaded.model.guided_from(negative))


def with_image_drafter(loaded: Loaded, path: str | None) -> Loaded:
    """`loaded` with the drafter in `path` as the model's own: a folder that `vision/train_drafter.py` or, of continuous tokens,
    `vision/train_continuous.py --draft` wrote, or a smaller image model.

    ValueError for what is neither, and for a drafter of another target."""
    if path is None:
        return loaded
    if isinstance(loaded.model, ContinuousPictures):
        vectors = copy(loaded.model)
        vectors.drafter = load_latent_drafter(path, vectors)
        return replace(loaded, model=vectors)
    if is_image_drafter(path):
        drafter: Any = load_image_drafter(path, loaded.model)
    else:
        network = loaded.model.model
        drafter = load_image_model(path, str(network.dtype).removeprefix("torch."), network.device).model
    model = copy(loaded.model)
    model.drafter, model.assistant = (drafter, None) if hasattr(drafter, "guide") else (None, drafter)
    return replace(loaded, model=model)


def drafting_method(loaded: Loaded, methods: Sequence[str | None], path: str | None) -> str:
    """Return the method by which `loaded` is drawn where none is given. ValueError if none of `methods` reads the drafter in `path`."""
    if isinstance(loaded.model, ContinuousPictures):
        usual = loaded.model.method
        if path is not None and all(way_of(usual if method is None else method).accept is None for method in methods):
            raise ValueError(f"drafter is {path!r}, which method {methods[0] or usual!r} does not read: leave one out, or take path")
        return usual
    if path is None:
        return default_method()
    net = loaded.model.drafter is not None
    usual = default_method(loaded.model.drafter if net else loaded.model.assistant)
    plans = [method_of(usual if method is None else method) for method in methods]
    if not any(plan.shape is not None if net else plan.assisted for plan in plans):
        kind = "a trained net" if net else "a smaller image model"
        raise ValueError(f"drafter is {path!r}, {kind}, which method {methods[0]!r} does not read: leave one out, or take {usual}")
    return usual


def with_images(loaded: Loaded, prompts: list[Any], files: Sequence[str]) -> list[Any]:
    """`prompts` with the pictures of `files`, if any. ValueError for models that read none, and for what is no picture."""
    if not files:
        return prompts
    if not isinstance(loaded.model, GlmImage):
        raise ValueError(f"{loaded.name} reads no pictures: leave --image out, or take GLM-Image")
    return [ImagePrompt(prompt, tuple(_picture(file) for file in files)) for prompt in prompts]


def _picture(file: str) -> Image.Image:
    try:
        return Image.open(file).convert("RGB")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read as a picture: {str(error).splitlines()[0]}") from None
