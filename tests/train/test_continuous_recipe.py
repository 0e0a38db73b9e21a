"""vision/train_continuous.py: drafts of every kind and deeper targets, by the command alone, and options that do not go together."""

import importlib.util
import sys

import pytest

from mmspec.minis import HOME
from mmspec.vision.checkpoints.latents import load_continuous_model
from mmspec.vision.continuous.ar import ContinuousAR
from mmspec.vision.continuous.state_draft import StateDraft
from tests.commands import ROOT


@pytest.fixture
def recipe(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("train_continuous", ROOT / "vision/train_continuous.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def run(*arguments: object) -> None:
        words = ["train_continuous.py", *map(str, arguments), "--smoke", "--precision", "no"]
        words += ["--work", str(tmp_path), "--out", str(HOME / "continuous")]
        monkeypatch.setattr(sys, "argv", words)
        module.main()

    return run


@pytest.mark.parametrize(
    ("options", "name", "kind", "own_head"),
    [
        (("--kind", "state"), "state", StateDraft, False),
        (("--kind", "state", "--own-head", "--name", "quick"), "quick", StateDraft, True),
        ((), "small", ContinuousAR, True),
    ],
    ids=["state", "own head", "model"],
)
def test_a_draft_is_written_with_its_card(recipe, tmp_path, options, name, kind, own_head):
    recipe("--draft", *options)
    folder = tmp_path / "mini" / "diffusion" / "drafters" / name
    draft = load_continuous_model(folder)
    assert isinstance(draft, kind)
    assert (draft.head is not None) == own_head
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert "python vision/train_continuous.py --head diffusion --draft" in card
    assert "acceptance" in card


def test_a_deeper_target(recipe, tmp_path):
    recipe("--begin", "diffusion", "--target", "deep", "--layers", 6, "--inner", 32)
    config = load_continuous_model(tmp_path / "mini" / "deep" / "target").config
    assert (config.num_hidden_layers, config.intermediate_size, config.hidden_size) == (6, 32, 160)


@pytest.mark.parametrize(
    "options",
    [
        ("--kind", "state"),
        ("--own-head", "--draft"),
        ("--kind", "state", "--draft", "--every", 2),
        ("--kind", "state", "--draft", "--head", "masked"),
        ("--layers", 6),
        ("--begin", "diffusion"),
        ("--begin", "diffusion", "--layers", 6, "--draft"),
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_options_that_do_not_go_together_are_refused(recipe, options, capsys):
    with pytest.raises(SystemExit) as stopped:
        recipe(*options)
    assert stopped.value.code == 2
    assert len([line for line in capsys.readouterr().err.splitlines() if line.startswith("train_continuous: ")]) == 1
