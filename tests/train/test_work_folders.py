"""Work folders of the recipes that train on a target's text: another target, tokenizer or settings are refused by what differs."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

import mmspec
from tests import tiny
from tests.commands import ROOT


def module_of(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"text/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """A tiny target, another of the same config, and other prompts than a smoke run's."""
    root, tokenizer = tmp_path_factory.mktemp("targets"), mmspec.load("text").processor
    one = tiny.llama(num_hidden_layers=4)
    one.save_pretrained(root / "one")
    for weight in one.parameters():
        weight.data.neg_()
    one.save_pretrained(root / "other")
    for name in ("one", "other"):
        tokenizer.save_pretrained(root / name)
    (root / "prompts.txt").write_text("\n".join(f"Story {number}: The bird" for number in range(6)))
    return root


def contents(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def refusals(targets, tmp_path, monkeypatch):
    """Run a recipe, then again with changes; return the messages of the second runs, which change nothing."""
    work = tmp_path / "work"

    def run(start, *arguments) -> None:
        monkeypatch.setattr(sys, "argv", ["recipe.py", *map(str, arguments), "--work", str(work), "--device", "cpu"])
        start()

    def refused(start, *arguments) -> list[str]:
        target = tmp_path / "target"
        shutil.copytree(targets / "one", target)
        common = [*arguments, "--smoke", "--precision", "no", "--model"]
        run(start, *common, target)
        run(start, *common, target)  # goes on
        before, said = contents(work), []
        for changes in ([targets / "other"], [target, "--top-p", 0.9], [target, "--prompts", targets / "prompts.txt"]):
            with pytest.raises(ValueError) as caught:
                run(start, *common, *changes)
            said.append(str(caught.value))
        shutil.copy(targets / "other" / "model.safetensors", target)  # the same path, other weights
        with pytest.raises(ValueError, match="holds text written with target weights") as caught:
            run(start, *common, target)
        assert contents(work) == before
        assert all("\n" not in line and str(work) in line for line in [*said, str(caught.value)])
        return said

    return refused


def test_the_folder_of_a_drafters_text_is_tied_to_what_wrote_it(refusals):
    recipe = module_of("train_drafter")
    said = refusals(lambda: recipe.run(recipe.parsed(), recipe.join_processes("cpu")), "medusa")
    for line, words in zip(said, ("target weights", "top_p None, not 0.9", "prompt ids"), strict=True):
        assert f"holds text written with {words}" in line
    assert [line.rpartition(" change ")[2] for line in said] == ["--model", "--top-p", "--prompts or --chat"]


def test_the_folder_of_a_small_models_run_is_tied_to_what_wrote_it(refusals):
    recipe = module_of("distil_model")
    said = refusals(lambda: recipe.run(recipe.parsed()))
    for line, words in zip(said, ("model ", "top_p None, not 0.9", "prompts None, not "), strict=True):
        assert f"holds a run with {words}" in line
    assert [line.rpartition(" change ")[2] for line in said] == ["--model", "--top-p", "--prompts"]
