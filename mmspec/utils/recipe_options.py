"""Command lines of recipes: numbers are checked as they are read, and what a recipe refuses is one line and exit 2."""

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from mmspec.utils.places import Writes, declare

MOST = 10**9
"""The largest whole number that an option takes."""


class RecipeParser(argparse.ArgumentParser):
    """Options of a recipe. `out` is what a recipe writes, and `work` where it keeps what it needs again: neither may be an input.

    `add_argument` takes `least` and `most` beside argparse's own settings: the range of a number. Whole numbers are 1 or more, others 0 or
    more, unless `least` says otherwise; neither may be infinite. `type=dict` reads an object in JSON.

    Args:
        doc: the recipe's docstring, shown as it is written.
    """

    OUTPUTS = {"out": Writes(), "work": Writes(keeps=True)}

    def __init__(self, doc: str | None):
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)

    def add_argument(self, *names: Any, least: float | None = None, most: float | None = None, **settings: Any) -> argparse.Action:
        """Add an option; see the class."""
        kind = settings.get("type")
        if kind in (int, float):
            settings["type"] = _number(kind, (1 if kind is int else 0) if least is None else least, MOST if most is None else most)
        elif kind is dict:
            settings["type"] = _object
        return super().add_argument(*names, **settings)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the command line; it ends with an error where an output is an input."""
        values = super().parse_args(args, namespace)
        shown = {action.dest: action.option_strings[-1] if action.option_strings else action.dest.upper() for action in self._actions}
        words = {action.dest for action in self._actions if action.choices is not None}
        try:
            declare({name: value for name, value in vars(values).items() if name not in words}, self.OUTPUTS, shown)
        except ValueError as error:
            self.error(str(error))
        return values

    def error(self, message: str) -> NoReturn:
        """Print the message as one line, and exit with 2."""
        self.exit(2, f"{Path(self.prog).stem}: {' '.join(message.split())}\n")


def _number(kind: type, least: float, most: float) -> Callable[[str], Any]:
    bounds = f"{least:g} or more" if most == MOST else f"{least:g} to {most:g}"

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r:.40} is no {'whole ' if kind is int else ''}number: give {bounds}") from None
        if not (least <= value <= most and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"it is {text:.40}: give {bounds}")
        return value

    return read


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r:.40} is no object in JSON: write it like {{"name": 1}}')
    return value


def typed_length(text: str) -> int | str:
    """A draft length as it was typed: a number, or a word that is judged where drafters are made."""
    return int(text) if text.lstrip("+-").isdecimal() else text


def run_recipe(main: Callable[[], None]) -> None:
    """Run `main`; what it refuses is one line on standard error and exit 2, a training that breaks down is one line and exit 1."""
    try:
        main()
    except (OSError, ValueError, FloatingPointError, MemoryError) as error:
        print(f"{Path(sys.argv[0]).stem}: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        raise SystemExit(1 if isinstance(error, FloatingPointError | MemoryError) else 2) from None


def tell_command(*words: object) -> None:
    """Print the command that uses what a recipe wrote."""
    print(f"use it: {shlex.join(map(str, words))}", flush=True)


def tell_loader(loader: Callable[..., Any], path: object) -> None:
    """Print the Python line that loads what a recipe wrote, where no command of mmspec reads it by itself.

    Args:
        loader: a function, or a method of a class, that is called with the path.
        path: what was written.
    """
    names = f"from pathlib import Path; from {loader.__module__} import {loader.__qualname__.partition('.')[0]}"
    tell_command("python", "-c", f"{names}; {loader.__qualname__}(Path({str(path)!r}))")
