"""Every recipe runs with --smoke, in a process of its own, and says in its docstring how."""

import ast
from pathlib import Path

import pytest

from tests.forked import Started

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path for folder in ("text", "vision", "speech", "recsys") for path in (ROOT / folder).glob("*.py"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_recipe_smokes(path, tmp_path):
    place = tmp_path / "elsewhere"  # than the root, so that defaults cannot overwrite what ships
    place.mkdir()
    done = Started(path, "--smoke", cwd=place, folder=tmp_path).finish(timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_recipe_tells_its_command(path):
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert doc
    assert f"python {path.relative_to(ROOT)}" in doc


def test_recipes_are_not_importable():
    assert RECIPES
    assert not [folder for folder in {path.parent for path in RECIPES} if (folder / "__init__.py").exists()]
