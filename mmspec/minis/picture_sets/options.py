"""Options of the recipes of image models: which pictures they read, and where they write."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mmspec.minis.picture_sets.sets import LabelledPictures, labelled_pictures

SETS = ("fashion",)


def add_picture_options(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add the options of `add_set_options`, and how pictures are read: --size, --mirror."""
    add_set_options(parser, kind)
    parser.add_argument("--size", type=int, help="pixels a side that your pictures are cut and resized to; default 64, or the tokenizer's")
    parser.add_argument("--mirror", action="store_true", help="your pictures keep their meaning in a mirror")


def add_set_options(parser: argparse.ArgumentParser, kind: str) -> None:
    """Add the options that say which set of pictures a recipe is about, and where it writes: --set, --pictures, --work, --out.

    Args:
        parser: the recipe's parser.
        kind: what the recipe makes, the beginning of its work folder's name.
    """
    parser.add_argument("--set", choices=SETS, help="a set of the data folder; default fashion")
    parser.add_argument("--pictures", type=Path, help="your own instead: a folder with a subfolder a class, or with captions.jsonl")
    parser.add_argument("--work", type=Path, help=f"default build/{kind}-NAME, after the set or your folder")
    parser.add_argument("--out", type=Path, help="default mmspec/minis/vision/SET; your own pictures need it")


def resolve_picture_options(parser: argparse.ArgumentParser, args: argparse.Namespace, kind: str, own: Sequence[str] = ()) -> Path:
    """Fill in `args.work` and `args.out`, make the work folder, and return where a folder's pixels are kept.

    `args.name` becomes the name of the set, and `args.set` "own" for a folder. The parser ends with an error for options that nothing
    reads: size, mirror and those in `own` are for pictures of one's own.
    """
    if args.pictures is None:
        unread = [name for name in ("size", "mirror", *own) if getattr(args, name, None) not in (None, False)]
        if unread:
            parser.error(f"--{unread[0].replace('_', '-')} is for your own pictures: give --pictures, or leave it out")
    elif args.set is not None or args.out is None:
        parser.error("--pictures needs --out, the folder that the models are written to, and no --set")
    args.set = "own" if args.pictures is not None else args.set or "fashion"
    args.name = args.set if args.pictures is None else args.pictures.resolve().name
    args.out = args.out or Path(f"mmspec/minis/vision/{args.set}")
    args.work = args.work or Path(f"build/{kind}-{args.name}")
    args.work.mkdir(parents=True, exist_ok=True)
    return args.work.parent / f"pictures-{args.name}"


def read_pictures(parser: argparse.ArgumentParser, args: argparse.Namespace, kept: Path, size: int = 64) -> LabelledPictures:
    """Return the pictures that the options name, `size` pixels a side; the parser ends with an error where they cannot be used.

    `kept` is what `resolve_picture_options` returned.
    """
    if args.size not in (None, size):
        parser.error(f"--size is {args.size} and the tokenizer's pictures have {size} pixels a side: leave it out")
    try:
        return labelled_pictures(args.set if args.pictures is None else args.pictures, size=size, mirror=args.mirror, work=kept)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
