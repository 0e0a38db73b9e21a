"""Every recipe runs with --smoke, as a user would run it, and says in its docstring how."""

import ast
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path for folder in ("text", "vision", "speech", "recsys") for path in (ROOT / folder).glob("*.py"))


def smoke(path: Path, place: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(path), "--smoke"]  # elsewhere than the root, so that defaults cannot overwrite what ships
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def smoked(request, tmp_path_factory):
    """The runs of all recipes that were asked for, as many at once as there are cores: most of their time is importing."""
    wanted = [item.callspec.params["path"] for item in request.session.items if item.originalname == "test_a_recipe_smokes"]
    pool = ThreadPoolExecutor(os.cpu_count())
    yield {path: pool.submit(smoke, path, tmp_path_factory.mktemp(path.stem)) for path in wanted}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_recipe_smokes(path, smoked):
    done = smoked[path].result()
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
