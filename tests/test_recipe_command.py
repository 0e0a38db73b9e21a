"""`mmspec recipe`: what ships is listed, shown, run and copied, and messages name what ships."""

import json
import re
from pathlib import Path

import pytest

from mmspec.utils.recipe_files import recipe_names
from tests.commands import ROOT


def test_recipes_are_listed_shown_and_copied(tmp_path, capsys):
    from mmspec.cli import app

    def run(*args: str) -> tuple[int | str | None, str, str]:
        with pytest.raises(SystemExit) as stopped:
            app(["recipe", *args])
        return (stopped.value.code, *capsys.readouterr())

    listed = json.loads(run("--json")[1])
    assert [each["name"] for each in listed] == recipe_names()
    assert {"text/train_drafter.py", "vision/train_target.py", "configs/text/tree.yaml"} <= {each["name"] for each in listed}
    assert all(each["summary"] and Path(each["path"]).is_file() for each in listed)
    code, out, _ = run("text/train_drafter")
    assert code == 0
    assert f"python {ROOT / 'text/train_drafter.py'} eagle3" in out
    assert run("configs/text/tree.yaml", "--path")[1].strip() == str(ROOT / "configs/text/tree.yaml")
    assert run("configs/text/tree.yaml", "--copy", str(tmp_path / "new"))[1].strip() == str(tmp_path / "new/tree.yaml")
    assert (tmp_path / "new/tree.yaml").read_bytes() == (ROOT / "configs/text/tree.yaml").read_bytes()
    for args, words in {
        ("configs/text/tree.yaml", "--copy", str(tmp_path / "new")): "already exists",
        ("text/train_drafer.py",): "did you mean text/train_drafter.py",
        ("--path",): "needs a recipe's name",
        ("zzz",): "mmspec recipe lists them",
        ("configs/text/tree.yaml", "--", "a"): "is a config",
        ("text/plan_tree.py", "--path", "--", "a"): "both given",
    }.items():
        code, out, err = run(*args)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err


def test_a_recipe_runs_with_the_arguments_behind_the_dashes(capfd):
    from mmspec.cli import app

    with pytest.raises(SystemExit) as stopped:
        app(["recipe", "text/build_datastore.py", "--", "--help"])
    assert stopped.value.code == 0
    assert "usage: build_datastore.py" in capfd.readouterr().out


def test_a_config_that_ships_is_found_from_anywhere(tmp_path, monkeypatch):
    from mmspec.run.config import load_config

    monkeypatch.chdir(tmp_path)
    assert load_config("configs/text/tree.yaml").drafter.tree == [4, 2, 1]
    (tmp_path / "configs/text").mkdir(parents=True)
    (tmp_path / "configs/text/tree.yaml").write_text("drafter: {tree: [2]}")
    assert load_config("configs/text/tree.yaml").drafter.tree == [2]


def test_messages_name_recipes_that_ship():
    for path in (ROOT / "mmspec").rglob("*.py"):
        for name in re.findall(r"\b(?:text|vision|speech|recsys)/\w+\.py|\bconfigs/[\w/]+\.yaml", path.read_text(encoding="utf-8")):
            assert name in recipe_names() or (ROOT / "mmspec" / name).exists(), f"{path.relative_to(ROOT)} names {name}"
