"""Recipes and configs that ship with mmspec: found in a checkout and in an installed wheel, under the same names."""

import ast
import json
import re
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

FOLDERS = {"text": "*.py", "vision": "*.py", "speech": "*.py", "recsys": "*.py", "configs": "**/*.yaml"}
"""Top-level folder of the repository -> which of its files ship. `mmspec._build` copies them into the wheel as `mmspec/recipes/`."""


@dataclass(frozen=True)
class Recipe:
    """A training or benchmark script, or a YAML config.

    Attributes:
        name: as in the repository, such as "text/train_drafter.py".
        path: where the file is on this machine.
    """

    name: str
    path: Path

    @property
    def about(self) -> str:
        """The text that says what the file does and how to run it: a script's docstring, or a config's leading comments."""
        source = self.path.read_text(encoding="utf-8")
        if self.path.suffix == ".py":
            return ast.get_docstring(ast.parse(source)) or ""
        lines = source.splitlines()
        return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[: next(n for n, t in enumerate(lines) if t[:1] != "#")])

    @property
    def summary(self) -> str:
        """The first line of `about`."""
        return self.about.partition("\n")[0]

    def usage(self) -> str:
        """`about`, with the file's path on this machine in place of its name; of a config the whole file."""
        text = self.about if self.path.suffix == ".py" else self.path.read_text(encoding="utf-8").rstrip()
        return re.sub(rf"(?<!\S){re.escape(self.name)}(?!\S)", str(self.path), text)

    def copy(self, folder: str | Path) -> Path:
        """Copy the file into a folder, which is made if it does not exist.

        Args:
            folder: where to. A file of the same name there is never overwritten.

        Returns:
            The path of the copy.

        Raises:
            ValueError: when `folder` already has a file of that name.
        """
        copy = Path(folder) / self.path.name
        if copy.exists():
            raise ValueError(f"{copy} already exists: choose another folder")
        copy.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copyfile(self.path, copy))


def recipes_root() -> Path:
    """The folder that holds `FOLDERS`: `mmspec/recipes` of an installed wheel, or the root of a checkout.

    Raises:
        FileNotFoundError: when the installation has neither.
    """
    package = Path(__file__).parents[1]
    for root in (package / "recipes", package.parent):
        if (root / "configs").is_dir() and (root / "text").is_dir():
            return root
    raise FileNotFoundError(f"this installation of mmspec has no recipes ({package / 'recipes'} is missing): install it again")


def recipe_names() -> list[str]:
    """The names of all recipes and configs, such as "text/train_drafter.py", sorted within each folder of `FOLDERS`."""
    root = recipes_root()
    return [path.relative_to(root).as_posix() for folder, files in FOLDERS.items() for path in sorted((root / folder).glob(files))]


def find_recipe(name: str) -> Recipe:
    """Find a recipe or config by its name.

    Args:
        name: such as "text/train_drafter.py"; the ending may be left out.

    Raises:
        ValueError: for an unknown name; the message suggests the nearest ones.
    """
    known = recipe_names()
    for each in (name, f"{name}.py", f"{name}.yaml"):
        if each in known:
            return Recipe(each, recipes_root() / each)
    near = get_close_matches(name, known, 3, 0.5) or [each for each in known if Path(each).stem == Path(name).stem]
    hint = f"did you mean {' or '.join(near)}?" if near else "mmspec recipe lists them"
    raise ValueError(f"unknown recipe {name!r}: {hint}")


def recipe_command(
    name: str, options: Mapping[str, Any], positional: Sequence[str] = (), *, leave_out: Collection[str] = (), processes: int = 1
) -> str:
    """Return the command that runs a recipe with the same options again, each written out: defaults may change later.

    Args:
        name: of the recipe, such as "text/train_drafter.py".
        options: as argparse read them, by destination. None and False are left out, True is a bare flag, mappings are written as JSON.
        positional: names of options that have no dashes, in their order.
        leave_out: names of options that do not matter, such as where files are written.
        processes: how many trained; more than one are started by `torchrun`.

    Returns:
        One line for a POSIX shell.
    """
    words = ["python"] if processes == 1 else ["torchrun", "--nproc-per-node", str(processes)]
    words += [name, *(str(options[each]) for each in positional)]
    for key, value in options.items():
        if value is None or value is False or key in positional or key in leave_out:
            continue
        words.append(f"--{key.replace('_', '-')}")
        if isinstance(value, Mapping):
            words.append(json.dumps(value))
        elif value is not True:
            words += map(str, value if isinstance(value, (list, tuple)) else [value])
    return shlex.join(words)
