"""Options of text/train_drafter.py: what is refused before anything is written, chat templates, dtypes and device maps."""

import importlib.util
import json
import re
import sys
from types import SimpleNamespace

import pytest
import torch

import mmspec
from mmspec.loading.text import load_pair
from mmspec.loading.transformers import load_model
from mmspec.run.config import Config, TargetSection
from mmspec.utils.recipe_options import run_recipe
from tests import tiny
from tests.commands import ROOT
from tests.forked import Started

RECIPE = ROOT / "text/train_drafter.py"
TEMPLATE = "{% for message in messages %}User: {{ message['content'] }}\nModel:{% endfor %}"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tiny target with a chat template, and one with a weight that is not finite."""
    root, tokenizer = tmp_path_factory.mktemp("targets"), mmspec.load("text").processor
    broken = tiny.llama()
    broken.model.norm.weight.data[3] = float("nan")
    tokenizer.save_pretrained(root / "nan")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(root / "chat")
    broken.save_pretrained(root / "nan")
    tiny.llama(num_hidden_layers=4).save_pretrained(root / "chat")
    (root / "prompts.txt").write_text("\n".join(f"Story {i}: The bird" for i in range(6)) + "\n" + "Once " * 60)
    return root


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("train_drafter", RECIPE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def refused(recipe, monkeypatch, capsys, tmp_path):
    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["train_drafter.py", *map(str, arguments), "--work", str(tmp_path / "work"), "--device", "cpu"])
        with pytest.raises(SystemExit) as stopped:
            run_recipe(recipe.main)
        assert stopped.value.code == 2
        said = [each for each in re.split(r"[\r\n]+", capsys.readouterr().err) if each and not each.startswith("Loading weights")]
        assert len(said) == 1
        assert said[0].startswith("train_drafter: ")
        assert not list(tmp_path.rglob("*.safetensors"))
        return said[0]

    return run


def test_a_broken_target_is_refused_before_it_writes(refused, folders):
    said = refused("eagle3", "--smoke", "--model", folders / "nan")
    assert "weight model.norm.weight of the target (LlamaForCausalLM" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["medusa", "--smoke", "--vocabulary", "30"], "vocabulary is 30, but medusa drafts all 2048 values"),
        (["eagle3", "--smoke", "--device-map", "auto"], "device_map is 'auto', but mini stands on one device"),
        (["eagle3", "--smoke", "--chat"], "has no chat template"),
        (["eagle3", "--smoke", "--model", "./nowhere"], "does not exist"),
    ],
)
def test_what_cannot_be_trained_is_refused(refused, arguments, words):
    assert words in refused(*arguments)


def test_more_memory_than_there_is_is_refused(refused, monkeypatch):
    monkeypatch.setattr("mmspec.train.states.memory._available", lambda device: 10**6)
    assert "training needs about" in refused("eagle3", "--smoke")


def test_chat_templates_are_never_cut(recipe, folders, monkeypatch):
    """Prompts are wrapped; those that are longer than a window's opening are left out."""
    from dataclasses import replace

    pair = replace(load_pair(Config(target=TargetSection(path=str(folders / "chat")))), chat=True)
    args = SimpleNamespace(prompts=folders / "prompts.txt", windows=10, chat=True, opening=40)
    texts = {pair.tokenizer.decode(ids) for ids in recipe.openings(args, pair)}
    assert texts == {f"User: Story {i}: The bird\nModel:" for i in range(6)}
    args.opening = 3
    with pytest.raises(ValueError, match="in its chat template every prompt is longer than 3 tokens: raise --opening"):
        recipe.openings(args, pair)
    args.chat = False
    cut = recipe.openings(args, replace(pair, chat=False))
    assert len(cut) == 10
    assert max(map(len, cut)) > 40  # without a template, windows cut them


def test_a_device_map_leads_to_one_device(folders, monkeypatch):
    plain, _ = load_model(str(folders / "chat"), "float32", "cpu")
    placed, _ = load_model(str(folders / "chat"), "bfloat16", "cpu", "auto")
    assert placed.dtype == torch.bfloat16
    assert torch.equal(placed.model.norm.weight, plain.model.norm.weight.bfloat16())
    spread = SimpleNamespace(hf_device_map={"a": 0, "b": "cpu"}, eval=lambda: None)
    monkeypatch.setattr("mmspec.loading.transformers.loaded", lambda *args, **options: spread)
    with pytest.raises(ValueError, match="the device map spreads it over 0, cpu, but models run on one device"):
        load_model(str(folders / "chat"), "float32", "cpu", "auto")


def test_a_run_with_all_of_them(folders, tmp_path):
    """In bfloat16, through a chat template, part of the vocabulary: what is written is loaded and changes no text."""
    options = ["--windows", 12, "--opening", 40, "--new", 8, "--chunk", 6, "--rows", 2, "--steps", 2, "--checkpoint-every", 1]
    target = ["--model", folders / "chat", "--dtype", "bfloat16", "--device-map", "cpu", "--chat", "--prompts", folders / "prompts.txt"]
    sizes = ["--vocabulary", 64, "--options", json.dumps({"shared_head": True}), "--states", "float32", "--precision", "no"]
    run = Started(RECIPE, "eagle3", *options, *target, *sizes, "--work", tmp_path / "work", cwd=tmp_path, folder=tmp_path)
    done = run.finish(timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "memory: target" in done.stdout
    assert "held-out acceptance" in done.stdout
    model, tokenizer = load_model(str(folders / "chat"), "float32", "cpu")
    net = mmspec.load_drafter(tmp_path / "work" / "eagle3", model)
    assert (net.config["values"], net.config["shared_head"], net.config["fc_norm"]) == (64, True, True)
    inputs = tokenizer(["User: Story 2: The bird\nModel:"], return_tensors="pt")
    inputs = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    out = mmspec.text.generate(model, inputs, net, max_new_tokens=8, draft_length=3)
    assert out.sequences.tolist() == mmspec.text.generate(model, inputs, max_new_tokens=8).sequences.tolist()
    assert out.stats.drafted > 0
