"""Options of text/train_vlm_drafter.py: memory estimated first, targets in half precision, and what is refused."""

import sys

import pytest
from safetensors.torch import load_file

from tests.train.test_work_folders import module_of


@pytest.fixture(scope="module")
def recipe():
    return module_of("train_vlm_drafter")


@pytest.fixture
def run(recipe, monkeypatch, tmp_path):
    def started(*arguments):
        line = ["train_vlm_drafter.py", "--smoke", "--precision", "no", "--work", str(tmp_path / "work"), *arguments]
        monkeypatch.setattr(sys, "argv", line)
        recipe.run(recipe.parsed())
        return tmp_path / "work"

    return started


@pytest.mark.parametrize("kind", ["text", "vlm", "vispec"])
def test_more_memory_than_there_is_is_refused(run, monkeypatch, capsys, tmp_path, kind):
    monkeypatch.setattr("mmspec.train.states.memory._available", lambda device: 10**5)
    with pytest.raises(ValueError, match=r"training needs about .* --force-memory"):
        run("--kind", kind)
    said = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(said) == 1
    assert said[0].startswith("memory: target 0.0")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("kind", ["text", "eagle1"])
def test_a_target_in_bfloat16_is_trained_for_with_any_memory(run, monkeypatch, capsys, kind):
    """The drafter itself is in float32."""
    monkeypatch.setattr("mmspec.train.states.memory._available", lambda device: 10**5)
    work = run("--kind", kind, "--dtype", "bfloat16", "--force-memory")
    said = capsys.readouterr().out
    assert "tokens per call at 5 draft tokens" in said
    assert "memory: target" in said
    assert list((work / kind).iterdir())
    if kind == "eagle1":
        (states,) = work.glob("states-*/windows-0.safetensors")
        assert "state-" in " ".join(load_file(states))


def test_a_drafter_with_the_targets_tower_refuses_half_precision(recipe, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_vlm_drafter.py", "--smoke", "--kind", "vlm", "--dtype", "bfloat16"])
    with pytest.raises(SystemExit) as stopped:
        recipe.parsed()
    assert stopped.value.code == 2
    assert "--dtype is bfloat16, but --kind vlm reads the target's pictures in float32" in capsys.readouterr().err
