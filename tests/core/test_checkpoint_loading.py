"""A checkpoint that lacks a tensor of its model, or has one besides, is refused by name in every modality that loads a path."""

import json

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from mmspec.cli import app
from mmspec.loading.recsys import _checkpoint as load_recommender
from mmspec.loading.transformers import load_model
from mmspec.loading.vision import _checkpoint as load_images
from mmspec.models.checkpoint_loading import loaded
from mmspec.speech.checkpoints.load import NEEDED
from mmspec.speech.checkpoints.load import load_checkpoint as load_speech
from tests.families import FAMILIES, build
from tests.tiny import save_all
from tests.vision.small_models import imagegpt

PLACE = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("checkpoints")
    save_all(root)
    return root


def rewritten(folder, change):
    """The checkpoint in `folder` with its tensors changed; what they were."""
    file = folder / "model.safetensors"
    whole = load_file(file)
    tensors = {name: tensor.clone() for name, tensor in whole.items()}
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return lambda: save_file(whole, file, metadata={"format": "pt"})


BROKEN = {
    f"weights {PLACE} are not in the checkpoint and would be random": lambda t: t.pop(PLACE),
    f"weights {PLACE} have another shape in the checkpoint": lambda t: t.update({PLACE: t[PLACE][:32].clone()}),
    "weights model.layers.7.mlp.up_proj.weight are in the checkpoint but not in LlamaForCausalLM": lambda t: t.update(
        {"model.layers.7.mlp.up_proj.weight": t[PLACE].clone()}
    ),
}


@pytest.mark.parametrize("words", BROKEN)
def test_targets_and_drafters_by_path_are_refused_by_the_tensors_name(folder, words, capsys):
    restore = rewritten(folder / "llama", BROKEN[words])
    try:
        with pytest.raises(ValueError, match=words) as caught:
            load_model(str(folder / "llama"), "float32", "cpu")
        assert "\n" not in str(caught.value)
        for options in (("--model", str(folder / "llama")), ("--drafter", str(folder / "llama"))):
            with pytest.raises(SystemExit) as stopped:
                app(["text", "Once", *options, "--max-new-tokens", "2", "--device", "cpu"])
            assert stopped.value.code == 2
            assert words in capsys.readouterr().err
    finally:
        restore()
    load_model(str(folder / "llama"), "float32", "cpu")


def test_every_loader_by_path_refuses_what_is_missing(folder, tmp_path):
    imagegpt().save_pretrained(tmp_path / "imagegpt")
    cases = {
        folder / "llama": lambda place: load_recommender("the model", place, "float32", "cpu"),
        folder / "foreign": lambda place: load_speech(str(place), dict.fromkeys(NEEDED, "codec")),
        tmp_path / "imagegpt": lambda place: load_images("it", str(place), "float32", "cpu"),
    }
    for place, load in cases.items():
        restore = rewritten(place, lambda t: t.pop(next(name for name in sorted(t, reverse=True) if "layer" in name or ".h." in name)))
        try:
            with pytest.raises(ValueError, match=r"cannot be loaded: weights \S+ are not in the checkpoint") as caught:
                load(place)
            assert "\n" not in str(caught.value)
        finally:
            restore()


def test_tied_and_harmless_tensors_are_no_reason(tmp_path):
    for name in ("Whisper", "T5", "GPT-2", "BART"):
        build(FAMILIES[name]).save_pretrained(tmp_path / name)
        kind = (
            hf.AutoModelForCausalLM if name == "GPT-2" else hf.AutoModelForSpeechSeq2Seq if name == "Whisper" else hf.AutoModelForSeq2SeqLM
        )
        loaded(kind, tmp_path / name)
    tied = hf.LlamaConfig(
        vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, tie_word_embeddings=True
    )
    hf.LlamaForCausalLM(tied).save_pretrained(tmp_path / "tied")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    rewritten(
        tmp_path / "tied",
        lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4), "mtp.norm.weight": torch.ones(4)}),
    )
    loaded(hf.AutoModelForCausalLM, tmp_path / "tied")


def test_a_checkpoint_that_asks_for_beams_is_decoded_as_one_path_and_says_so(folder, caplog):
    file = folder / "llama" / "generation_config.json"
    before = json.loads(file.read_text())
    file.write_text(json.dumps(before | {"num_beams": 4}))
    try:
        model, _ = load_model(str(folder / "llama"), "float32", "cpu")
    finally:
        file.write_text(json.dumps(before))
    assert model.generation_config.num_beams == 1
    assert "asks for num_beams 4: decoding one path a row instead" in caplog.text
