"""What the sdist and the wheel hold, and that every dependency is used."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import mmspec
from mmspec import _build
from mmspec.utils import recipe_files
from mmspec.utils.recipe_files import find_recipe, recipe_names
from tests.commands import ROOT

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2]))"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[set[str], zipfile.ZipFile]:
    """(names in the sdist, the wheel that was built from it); nothing is written into the checkout."""
    place = tmp_path_factory.mktemp("build")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "docs", "tests")
    shutil.copytree(ROOT, place / "source", ignore=ignored)

    def build(what: str, source: Path) -> Path:
        run = subprocess.run([sys.executable, "-c", BUILD, what, str(place)], cwd=source, capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr[-2000:]
        return place / run.stdout.splitlines()[-1]

    with tarfile.open(build("sdist", place / "source")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        sdist.extractall(place, filter="data")
        top = place / sdist.getnames()[0].partition("/")[0]
    return names, zipfile.ZipFile(build("wheel", top))


def files(folder: str, pattern: str) -> set[str]:
    """Files of the checkout, as a distribution names them."""
    found = (path for path in (ROOT / folder).rglob(pattern) if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_sdist_and_wheel_hold_everything(built):
    sdist, wheel = built
    package = files("mmspec", "*")
    recipes = {name for folder, pattern in recipe_files.FOLDERS.items() for name in files(folder, pattern.removeprefix("**/"))}
    assert {"mmspec/py.typed", "mmspec/NOTICE", "mmspec/minis/text/prompts.txt", "mmspec/minis/speech/card.md"} <= package
    assert package | recipes | {"LICENSE", "README.md", "pyproject.toml"} <= sdist
    held = set(wheel.namelist())
    assert package <= held
    assert {f"mmspec/recipes/{name}" for name in recipes} == {name for name in held if name.startswith("mmspec/recipes/")}
    assert {name.partition("/")[0] for name in held} == {"mmspec", f"mmspec-{mmspec.__version__}.dist-info"}
    for name in recipes:
        assert wheel.read(f"mmspec/recipes/{name}") == (ROOT / name).read_bytes()


def test_the_wheels_metadata(built):
    _, wheel = built
    info = f"mmspec-{mmspec.__version__}.dist-info"
    metadata = wheel.read(f"{info}/METADATA").decode()
    for line in ("Name: mmspec", f"Version: {mmspec.__version__}", "License-Expression: Apache-2.0 AND CC-BY-SA-4.0"):
        assert f"{line}\n" in metadata
    for line in ("Requires-Python: >=3.11", "Classifier: Programming Language :: Python :: 3.14", "Classifier: Typing :: Typed"):
        assert f"{line}\n" in metadata
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/mmspec/NOTICE"} <= set(wheel.namelist())
    assert "CC BY-SA 4.0" in wheel.read("mmspec/NOTICE").decode()
    assert "mmspec = mmspec.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()


def test_an_installed_wheel_finds_its_recipes(built, tmp_path):
    _, wheel = built
    wheel.extractall(tmp_path, [name for name in wheel.namelist() if not name.endswith((".safetensors", ".parquet", ".png"))])
    script = (
        "from mmspec.utils.recipe_files import *; from mmspec.run.config import load_config; r = find_recipe('text/train_drafter.py')\n"
    )
    script += "print(r.path); print(load_config('configs/text/tree.yaml').drafter.tree); print(len(recipe_names()))"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60)
    path, tree, count = run.stdout.splitlines()
    assert (Path(path), tree, int(count)) == (tmp_path / "mmspec/recipes/text/train_drafter.py", "[4, 2, 1]", len(recipe_names()))


def test_the_build_step_copies_what_recipes_finds():
    assert _build._FOLDERS == recipe_files.FOLDERS
    assert find_recipe("text/train_drafter").path == ROOT / "text/train_drafter.py"


# --- dependencies -----------------------------------------------------------------------------------------------------

IMPORTED_AS = {"pillow": "PIL", "pyyaml": "yaml", "Jinja2": "jinja2"}


def test_every_dependency_is_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("mmspec", "text", "vision", "speech", "recsys")
        for path in (ROOT / folder).rglob("*.py")
    ]
    for requirement in project["dependencies"]:
        name = re.split(r"[\[<>=]", requirement)[0]
        pattern = re.compile(rf"^\s*(?:import|from) {IMPORTED_AS.get(name, name)}\b", re.M)
        assert any(pattern.search(source) for source in sources), f"{name} is a dependency and nothing imports it"
