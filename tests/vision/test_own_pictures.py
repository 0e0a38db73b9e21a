"""A folder of one's own pictures by the commands alone: tokenizer, target, drafter and judge, then drawing."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

import mmspec
from mmspec.loading.vision import load_image_model
from mmspec.minis.images import load_judge
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.quality.classifier import classify
from tests.forked import Started
from tests.minis.test_picture_sets import captioned_folder, class_folder

ROOT = Path(__file__).parents[2]
SHAPES = {"classes": (24, 6), "captions": (16, 8)}  # pixels, codes a side


def train(kind: str, folder: Path, make) -> Path:
    make(folder / "mine")
    size, grid = SHAPES[kind]
    made = [("tokenizer", ["--size", size, "--grid", grid, "--codes", 32]), ("target", []), ("classifier", [])]
    for recipe, more in [*made, ("drafter", []), ("drafter", ["--kind", "model"])]:
        words = ["--smoke", "--pictures", folder / "mine", "--out", folder / "model", *more]
        done = Started(ROOT / f"vision/train_{recipe}.py", *words, cwd=folder, folder=folder).finish(timeout=240)
        assert done.returncode == 0, done.stderr[-2000:]
    return folder / "model"


@pytest.fixture(scope="module", params=list(SHAPES))
def trained(request, tmp_path_factory):
    make = {"classes": class_folder, "captions": captioned_folder}[request.param]
    return request.param, train(request.param, tmp_path_factory.mktemp(request.param), make)


def test_pictures_are_drawn_by_every_kind_of_method(trained):
    kind, folder = trained
    size, grid = SHAPES[kind]
    loaded = load_image_model(str(folder))
    prompts = list(loaded.examples[:2])
    plain = mmspec.vision.generate(loaded.model, prompts, method="plain", guidance=2.0, seed=3)
    assert plain.tokens.shape == (2, grid, grid)
    assert plain.images[0].size == (size, size)
    fast = mmspec.vision.generate(loaded.model, prompts, guidance=2.0, seed=3)
    assert torch.equal(plain.tokens, fast.tokens)
    small = mmspec.vision.generate(loaded.model, prompts, method="assisted", guidance=2.0, seed=3)
    assert torch.equal(plain.tokens, small.tokens)
    assert loaded.model.assistant.model.config.num_hidden_layers == 1
    for method in ("scd", "eagle", "lantern++"):
        assert mmspec.vision.generate(loaded.model, prompts, method=method, guidance=2.0, seed=3).tokens.shape == plain.tokens.shape


def test_prompts_are_classes_or_held_out_captions(trained):
    kind, folder = trained
    examples = load_image_model(str(folder)).examples
    if kind == "classes":
        assert examples == ("dark", "light")
    else:
        lines = [json.loads(line) for line in (folder.parent / "mine" / "captions.jsonl").read_text().splitlines()]
        assert list(examples) == [line["caption"] for line in lines[::10]]
        words = {word for number, line in enumerate(lines) if number % 10 for word in line["caption"].split()}
        assert load_image_model(str(folder)).model.captions.words == words
        with pytest.warns(UserWarning, match="not trained on: apple"):
            load_image_model(str(folder)).model.encode(["a red apple"], False)


def test_the_judge_sees_attributes_or_classes(trained):
    kind, folder = trained
    judge = load_judge(folder)
    shown = tokens.as_tensor([Image.new("RGB", (SHAPES[kind][0],) * 2, "red")])
    assert classify(judge, shown)[0].shape == (1, sum(judge.groups))
    if kind == "classes":
        assert judge.values == {"class": ["dark", "light"]}
    else:
        assert len(judge.values) == 12
        assert judge.values["top left size"] == ["large", "none", "small"]


def test_the_card_names_the_folder_and_its_command(trained):
    _, folder = trained
    card = (folder / "drafters" / "eagle1" / "card.md").read_text()
    assert "drafter for the mine target" in card
    assert f"--pictures {folder.parent / 'mine'}" in card
    assert "--set" not in card


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pictures", "here"], "--pictures needs --out"),
        (["--pictures", "here", "--out", "there", "--set", "fashion"], "and no --set"),
        (["--size", 32], "--size is for your own pictures"),
        (["--grid", 8], "--grid is for your own pictures"),
        (["--pictures", "nowhere", "--out", "there"], "nowhere is no folder"),
    ],
)
def test_options_that_do_not_fit_are_one_line(words, message, tmp_path):
    done = Started(ROOT / "vision/train_tokenizer.py", *words, cwd=tmp_path, folder=tmp_path).finish(timeout=120)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert not (tmp_path / "there").exists()
