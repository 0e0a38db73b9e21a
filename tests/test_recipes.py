"""Every recipe runs with --smoke, in a process of its own, and says in its docstring how. What it wrote is loaded by the command that it
prints.
"""

import ast
import shlex
from pathlib import Path

import pytest

from mmspec.cli import app
from tests.forked import Started

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path for folder in ("text", "vision", "speech", "recsys") for path in (ROOT / folder).glob("*.py"))


WRITES = ("train_", "distil_", "fit_")
"""Beginnings of the names of recipes that write what something else reads."""
MORE = {
    "text/train_vlm_drafter.py": (("--kind", "vlm"), ("--kind", "vispec"), ("--bytes",)),
    "speech/train_drafter.py": (("model",), ("medusa", "--joint")),
    "speech/train_joint.py": (("frozen",), ("target",)),
    "recsys/train_drafter.py": (("--kind", "head"), ("--kind", "retriever")),
    "vision/train_continuous.py": (("--draft",),),
    "vision/train_drafter.py": (("--kind", "model"),),
}
"""Other kinds of what a recipe writes."""


def used(line: str) -> None:
    """Run a command that a recipe printed. AssertionError if it fails."""
    first, *words = shlex.split(line)
    if first == "python":
        exec(words[1], {})
        return
    assert first == "mmspec"
    with pytest.raises(SystemExit) as stopped:
        app(words)
    assert stopped.value.code == 0, line


def smoked(path, tmp_path, *options):
    place = tmp_path / "elsewhere"  # than the root, so that defaults cannot overwrite what ships
    place.mkdir()
    done = Started(path, "--smoke", *options, cwd=place, folder=tmp_path).finish(timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
    return place, [line.removeprefix("use it: ") for line in done.stdout.splitlines() if line.startswith("use it: ")]


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_recipe_smokes(path, tmp_path, monkeypatch):
    place, commands = smoked(path, tmp_path)
    assert bool(commands) == path.name.startswith(WRITES)
    monkeypatch.chdir(place)
    for line in commands:
        used(line)


@pytest.mark.parametrize(("name", "options"), [(name, options) for name, every in MORE.items() for options in every])
def test_every_kind_that_a_recipe_writes_is_loaded(name, options, tmp_path, monkeypatch):
    place, commands = smoked(ROOT / name, tmp_path, *options)
    assert commands
    monkeypatch.chdir(place)
    for line in commands:
        used(line)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_recipe_tells_its_command(path):
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert doc
    assert f"python {path.relative_to(ROOT)}" in doc


def test_recipes_are_not_importable():
    assert RECIPES
    assert not [folder for folder in {path.parent for path in RECIPES} if (folder / "__init__.py").exists()]
