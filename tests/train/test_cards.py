"""Cards of trained drafters: the command they print, run again, gives the same weights."""

import argparse
import json
import re
import shlex
from pathlib import Path

import pytest
from safetensors.torch import load_file

from mmspec.utils.recipe_files import recipe_command
from tests.forked import Started

ROOT = Path(__file__).parents[2]


def command_of(card: Path) -> list[str]:
    """The words of the command in a card."""
    (found,) = re.findall(r"```sh\n(.+)\n```", card.read_text(encoding="utf-8"))
    return shlex.split(found)


def run(recipe: str, *arguments, folder: Path) -> None:
    folder.mkdir()
    done = Started(ROOT / recipe, *arguments, cwd=folder, folder=folder).finish(timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


TEXT = """hydra --smoke --bytes --depth 2 --lr 0.5 --precision no --options '{"heads": 3}' --loss '{"kl": 1, "tv": 0.5}'
    --temperature 0.3 --top-p 0.9"""
CARDS = [
    ("text/train_drafter.py", TEXT, "build/drafters/hydra"),
    ("vision/train_drafter.py", "--smoke --lr 0.5 --depth 2", "build/drafter-fashion/mini/drafters/eagle1"),
]


@pytest.mark.parametrize(("recipe", "arguments", "written"), CARDS, ids=["text", "vision"])
def test_the_command_of_a_card_gives_the_same_weights(recipe, arguments, written, tmp_path):
    run(recipe, *shlex.split(arguments), folder=tmp_path / "first")
    first = tmp_path / "first" / written
    python, name, *again = command_of(first / "card.md")
    assert (python, name) == ("python", recipe)
    run(name, *again, folder=tmp_path / "second")
    one, other = (load_file(folder / "model.safetensors") for folder in (first, tmp_path / "second" / written))
    assert one.keys() == other.keys()
    assert all((one[key] == other[key]).all() for key in one)
    assert (first / "card.md").read_text() == (tmp_path / "second" / written / "card.md").read_text()


def test_a_command_holds_every_option():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--options", type=json.loads, default={"heads": 4})
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--bytes", action="store_true")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--work", type=Path, default=Path("build"))
    given = ["medusa", "--options", "{}", "--prompts", "my prompts.txt", "--lr", "1e-07", "--top-p", "0.123456789", "--bytes"]
    options = vars(parser.parse_args(given))
    command = recipe_command("text/train_drafter.py", options, ("kind",), leave_out=("work",))
    python, name, *words = shlex.split(command)
    assert (python, name) == ("python", "text/train_drafter.py")
    assert vars(parser.parse_args(words)) == options
    assert "--half" not in words
    assert "--work" not in words
    assert shlex.split(recipe_command("a.py", {}, processes=3)) == ["torchrun", "--nproc-per-node", "3", "a.py"]
