"""`mmspec recipe`: list, show, run or copy the training and benchmark scripts and the configs that ship."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mmspec.commands import common
from mmspec.utils.places import Writes
from mmspec.utils.recipe_files import Recipe, find_recipe, recipe_names

EXAMPLES = """Examples:

\b
  mmspec recipe
  mmspec recipe text/train_drafter.py
  mmspec recipe text/train_drafter.py -- eagle3 --model ./big --prompts prompts.txt --out ./big-eagle3
  torchrun --nproc-per-node 8 "$(mmspec recipe text/generate_batch.py --path)" prompts.jsonl --out out
  mmspec recipe configs/text/tree.yaml --copy .
"""


def recipe(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe or config, such as text/train_drafter.py; all are listed without one.", metavar="NAME")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Run the recipe with these arguments, put behind --.", metavar="ARGUMENT")
    ] = None,
    path: Annotated[bool, common.option(common.SHOW, "Print the file's path alone.", "--path")] = False,
    copy: Annotated[str | None, common.option(common.SHOW, "Copy the file into this folder.", metavar="DIR"), Writes(keeps=True)] = None,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """List the recipes and configs that ship with mmspec, show where one is and how to run it, run it, or copy it."""
    if recipe is None:
        if path or copy is not None:
            raise ValueError(f"{'--path' if path else '--copy'} needs a recipe's name: mmspec recipe lists them")
        _list(as_json)
        return
    found = find_recipe(recipe)
    if arguments:
        _run(found, arguments, {"--path": path, "--copy": copy is not None, "--json": as_json})
    copied = None if copy is None else found.copy(copy)
    if as_json:
        place = {"copy": str(copied)} if copied else {}
        common.emit({"name": found.name, "path": str(found.path), "about": found.about, **place})
    elif path or copied:
        typer.echo(copied or found.path)
    else:
        typer.echo(f"{found.path}\n\n{found.usage()}")


def _run(found: Recipe, arguments: list[str], others: dict[str, bool]) -> None:
    """Run a script in a process of its own and exit with its code."""
    for name, given in others.items():
        if given:
            raise ValueError(f"{name} and arguments to run {found.name} with were both given: give one of them")
    if found.path.suffix != ".py":
        raise ValueError(f"{found.name} is a config and takes no arguments: use it as mmspec text PROMPT --config {found.name}")
    raise typer.Exit(subprocess.run([sys.executable, str(found.path), *arguments], check=False).returncode)


def _list(as_json: bool) -> None:
    """Print every name with the first line of its description."""
    found = [find_recipe(name) for name in recipe_names()]
    if as_json:
        common.emit([{"name": each.name, "path": str(each.path), "summary": each.summary} for each in found])
        return
    show = common.console(False)
    for folder in dict.fromkeys(Path(each.name).parent.as_posix() for each in found):
        table = Table("name", "what it does", title=folder, title_justify="left", title_style="bold")
        for each in found:
            if Path(each.name).parent.as_posix() == folder:
                table.add_row(each.name, each.summary)
        show.print(table)
    show.print("mmspec recipe NAME shows where a file is and how to run it; -- ARGUMENTS runs it; --copy DIR copies it", soft_wrap=True)
