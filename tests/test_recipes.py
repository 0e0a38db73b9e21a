"""Every recipe runs with --smoke, in a process of its own, and says in its docstring how. What it wrote is loaded by the command that it
prints, and the checkpoints of its trainings tell of all that decided them (`tests.train.probe`).
"""

import ast
import runpy
import shlex
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from mmspec.cli import app
from mmspec.run.config import RunSection
from mmspec.utils.recipe_options import RecipeParser, typed_length
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
    done = Started(path, "--smoke", *options, cwd=place, folder=tmp_path, before="tests.train.probe").finish(timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
    if any(place.rglob("*.pt")):  # a training goes on from what it kept, in another process
        again = Started(path, "--smoke", *options, cwd=place, folder=tmp_path).finish(timeout=240)
        assert again.returncode == 0, again.stderr[-2000:]
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


class _Caught(Exception):
    """Carries a recipe's parser out of its main function."""

    def __init__(self, parser):
        super().__init__()
        self.parser = parser


@pytest.fixture
def parser_of(monkeypatch):
    def caught(self, *args):
        raise _Caught(self)

    def found(path):
        with monkeypatch.context() as patched:
            patched.setattr(RecipeParser, "parse_args", caught)
            patched.setattr(sys, "argv", [path.name])
            with pytest.raises(_Caught) as error:
                runpy.run_path(str(path), run_name="__main__")
        return error.value.parser

    return found


WRONG = {"a word": "x", "negative": "-1", "not a number": "nan", "infinite": "inf", "huge": "9" * 400, "fraction or empty": ""}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_wrong_options_are_refused_in_one_line(path, parser_of, capsys):
    parser = parser_of(path)
    for action in (action for action in parser._actions if action.option_strings and action.nargs != 0):
        name, many = action.option_strings[0], action.nargs if isinstance(action.nargs, int) else 1
        wrong = list(WRONG.values()) if action.type not in (None, Path) and action.type is not typed_length else []
        wrong += ["none of these"] if action.choices else []
        for value in wrong:
            if action.type is not None and action.type.__name__ in ("losses", "steps", "<lambda>"):
                continue  # their values are judged by what they are for
            with pytest.raises(SystemExit) as stopped:
                parser.parse_args([f"{name}={value}"] if many == 1 else [name, *[value] * many])
            said = capsys.readouterr().err
            assert stopped.value.code == 2
            assert said.count("\n") == 1
            assert name in said, (name, value, said)


@pytest.mark.parametrize("name", ["text/generate_batch.py", "text/caption_batch.py"])
def test_bulk_recipes_of_text_have_every_setting_of_a_run(name, parser_of):
    given = {action.dest for action in parser_of(ROOT / name)._actions}
    assert {field.name for field in fields(RunSection)} <= given
    assert {"accept", "draft_length", "chat", "drafter"} <= given


@pytest.mark.parametrize(
    ("name", "kind"), [("speech/synthesize_batch.py", "temperature top_k top_p accept"), ("vision/generate_batch.py", "")]
)
def test_bulk_recipes_have_the_sampling_settings_of_the_call(name, kind, parser_of):
    given = {action.dest for action in parser_of(ROOT / name)._actions}
    assert {*kind.split(), "temperature", "top_k", "top_p", "seed"} <= given


def test_the_method_of_recommendations_has_the_name_of_the_call(parser_of):
    assert parser_of(ROOT / "recsys/batch_job.py").parse_args(["--method", "plain"]).mode == "plain"


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("speech/train_drafter.py", ["--mini", "LLASA"], "--mini is LLASA, no folder with target/"),
        ("vision/train_tokenizer.py", ["--pictures", "PHOTOS", "--out", "o", "--size", "48", "--grid", "7"], "48 pixels in 7 codes a side"),
        ("text/train_drafter.py", ["medusa", "--smoke", "--options", '{"heads": 0, "x": 1}'], "do not make a drafter of kind medusa"),
        ("text/train_drafter.py", ["medusa", "--smoke", "--out", "PHOTOS"], "PHOTOS exists and is no drafter"),
        ("text/train_drafter.py", ["medusa", "--smoke", "--precision", "bf17"], "invalid choice: 'bf17'"),
        ("text/train_vlm_drafter.py", ["--size", "2", "100"], "--size has width 100: give a multiple of 32"),
        ("recsys/train_drafter.py", ["--loss", "[1]"], "'[1]' is no object in JSON"),
        ("recsys/train_drafter.py", ["--target", "nowhere"], "--target is nowhere, no folder with target/"),
        ("speech/train_joint.py", ["--smoke", "--target", "nowhere"], "nowhere holds no model"),
        ("recsys/train_target.py", ["--smoke", "--deepen", "nowhere", "4"], "nowhere holds no model"),
        ("text/train_acceptance_head.py", ["--drafter", "lookup"], "has no hidden states"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(name, options, words, tmp_path):
    from PIL import Image

    for number in range(20):
        (tmp_path / "PHOTOS" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "PHOTOS" / "ab"[number % 2] / f"{number}.png")
    done = Started(ROOT / name, *options, cwd=tmp_path, folder=tmp_path).finish(timeout=120)
    assert done.returncode == 2, done.stderr[-2000:]
    said = [line for line in done.stderr.splitlines() if line and "Loading weights" not in line]
    assert len(said) == 1
    assert words in said[0]
