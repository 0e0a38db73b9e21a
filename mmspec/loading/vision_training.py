"""Published image models as the targets that drafters are trained for: the options of recipes, the model, and what it draws."""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from mmspec.loading.text import device_of
from mmspec.loading.vision import Loaded, is_file_model, load_image_model
from mmspec.utils.files import read_prompts
from mmspec.vision.families.base import ImageModel

_OWN = ("prompts", "captions", "negative", "image_size", "dtype", "device")
"""Options that are read with --model only."""


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add --model and the options that say how such a model is loaded and what it draws."""
    parser.add_argument("--model", help="a published image model instead, as mmspec image --model takes it; needs --out")
    parser.add_argument("--prompts", type=Path, help="of --model: one prompt or class a line, or JSON lines; default every class in turn")
    parser.add_argument("--captions", help="of --model: the folder of a LlamaGen's text encoder")
    parser.add_argument("--negative", help="of --model: a text that guidance leads away from")
    parser.add_argument("--image-size", type=int, help="of --model: pixels a side")
    parser.add_argument("--dtype", help="of --model: float32 (default), bfloat16, float16 or auto")
    parser.add_argument("--device", help="of --model: cpu (default), cuda or auto")


def resolve_model_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Fill in `args.name`, `args.set` and `args.work` for --model, and make the work folder.

    The parser ends with an error for options that nothing reads.
    """
    if args.model is None:
        for name in _OWN:
            if getattr(args, name) is not None:
                parser.error(f"--{name.replace('_', '-')} is for --model: leave it out")
        return
    for name in ("set", "pictures"):
        if getattr(args, name) is not None:
            parser.error(f"--{name} is for a target of this project's own: leave it out, or --model")
    if args.out is None:
        parser.error("--model needs --out, the folder that the drafter is written to")
    args.set, args.name = "model", Path(args.model).name
    args.work = args.work or Path(f"build/drafter-{args.name}")
    args.work.mkdir(parents=True, exist_ok=True)


def published_target(args: argparse.Namespace) -> Loaded:
    """Return the model of --model as it is to draw. ValueError or FileNotFoundError for what cannot be loaded or drawn."""
    at_loading = {"size": args.image_size} if is_file_model(args.model) else {}
    device: torch.device | str = device_of(args.device or "cpu")
    loaded = load_image_model(args.model, args.dtype or "float32", device, captions=args.captions, **at_loading)
    if not isinstance(loaded.model, ImageModel):
        raise ValueError(f"{args.model} writes continuous tokens: vision/train_continuous.py trains its drafter")
    model = loaded.model if args.image_size is None or at_loading else loaded.model.resized(args.image_size)
    model = model if args.negative is None else model.guided_from(args.negative)
    return replace(loaded, model=model)


def prompts_to_draw(loaded: Loaded, file: Path | None, count: int) -> list:
    """Return what a published model draws from, one a picture: the file's prompts in turn, or every class in turn.

    Args:
        loaded: the model.
        file: lines of prompts or classes; None for classes, and for models that take no prompt.
        count: number of pictures.

    Raises:
        ValueError: for a file that the model has no use for, and where it needs one and none is given.
    """
    if not loaded.prompted:
        if file is not None:
            raise ValueError(f"prompts is {file}, and {loaded.name} takes none: leave it out")
        return [None] * count
    if file is not None:
        given = [str(found["class"] if found.get("class") is not None else found["prompt"]) for found in read_prompts(file)]
        return [given[number % len(given)] for number in range(count)]
    if getattr(loaded.model.model.config, "condition", None) != "class":
        raise ValueError(f"{loaded.name} draws from texts: give a file of prompts, one a line (--prompts)")
    return [number % loaded.model.model.config.classes for number in range(count)]


def resolve_latent_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Fill in the kind and names of what `vision/train_continuous.py` trains. Exits with 2 for options that do not go together.

    Args:
        parser: the recipe's parser.
        args: its arguments.
    """
    deeper = (args.begin, args.layers, args.inner)
    if not args.draft and any((args.kind, args.own_head, args.name)):
        parser.error("--kind, --own-head and --name are for a draft: add --draft, or leave them out")
    if any(deeper) and (args.draft or None in deeper[:2]):
        parser.error("--begin, --layers and --inner make a deeper target: give --begin and --layers, without --draft")
    args.kind = (args.kind or "model") if args.draft else None
    if args.own_head and args.kind != "state":
        parser.error("--own-head is for --kind state: leave it out")
    if args.kind == "state" and (args.head == "masked" or args.every != 1):
        parser.error("--kind state is for causal heads that run at every state: leave --head masked and --every out")
    args.target, args.name = args.target or args.head, args.name or ("state" if args.kind == "state" else "small")
