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


def test_limits_are_checked_before_anything_is_answered(run, tmp_path):
    """What the answers do not depend on leaves them where they are."""
    with pytest.raises(ValueError, match=r"--opening is 3, but a prompt has \d+ positions, pictures included: leave it out, or raise it"):
        run("--kind", "hivis", "--opening", "3")
    assert not (tmp_path / "work").exists()
    work = run("--kind", "hivis")
    answers = {path: path.stat().st_mtime_ns for path in work.glob("answers-*.pt")}
    assert answers
    with pytest.raises(ValueError, match=r"hivis.pt is of another run: loss\.draw"):
        run("--kind", "hivis", "--opening", "200", "--out", str(tmp_path / "other"))
    (work / "hivis.pt").unlink()
    run("--kind", "hivis", "--opening", "200", "--out", str(tmp_path / "other"))
    assert {path: path.stat().st_mtime_ns for path in work.glob("answers-*.pt")} == answers
    assert len(list(work.glob("states-*"))) == 2


def test_a_reader_without_room_for_the_prompts_is_refused(recipe, run, tmp_path):
    from mmspec.minis import HOME

    folder = tmp_path / "short"
    model, tokenizer = recipe.load_model(str(HOME / "vlm" / "drafter-text"), "float32", "cpu")
    model.config.max_position_embeddings = 8
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match=r"short has 8 positions, but prompts with answers have \d+: train another, or lower --new"):
        run("--kind", "vlm", "--text", str(folder))


def test_a_picture_of_many_positions_fits_by_itself(recipe, monkeypatch, tmp_path):
    """A LLaVA picture of 24 x 24 patches, more than any default of a text recipe."""
    from transformers import LlavaProcessor

    from mmspec.minis import HOME
    from mmspec.minis import vlm_model as sights

    monkeypatch.setattr(sights, "PATCH", 4)
    monkeypatch.setattr(sights.scenes, "SIDE", 96)
    processor = sights.new_processor()
    assert isinstance(processor, LlavaProcessor)
    processor.save_pretrained(tmp_path / "big")
    config = sights.new_llava(processor, width=32, layers=2, heads=1, feed=32, vision_width=16)
    config.config.text_config.max_position_embeddings = 1024
    config.save_pretrained(tmp_path / "big")
    (tmp_path / "questions.txt").write_text("what do you see?\n")
    line = ["train_vlm_drafter.py", "--smoke", "--precision", "no", "--kind", "hivis", "--model", str(tmp_path / "big"), "--work"]
    line += [str(tmp_path / "work"), "--pictures", str(HOME / "vlm/examples"), "--prompts", str(tmp_path / "questions.txt")]
    monkeypatch.setattr(sys, "argv", line)
    recipe.run(args := recipe.parsed())
    assert args.opening > 576
