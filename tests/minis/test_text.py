"""Mini text as it ships: bytes, small, its drafters accepted; and what its writer writes is what is read."""

import pytest
import torch
from safetensors.torch import load_file

import mmspec
from mmspec.minis import HOME, load_text, shipped_drafters
from mmspec.minis.card import as_stored, write_text_mini
from tests.tiny import llama


@pytest.fixture(scope="module")
def mini():
    return mmspec.load("text")


def some(mini):
    return {key: value[:3] for key, value in mini.examples.items()}


@pytest.fixture(scope="module")
def plain(mini):
    return mmspec.text.generate(mini.target, some(mini), max_new_tokens=40).sequences


def test_every_matrix_is_stored_as_bytes():
    files = sorted((HOME / "text").rglob("*.safetensors"))
    assert len(files) == 2 + len(shipped_drafters("text"))
    for path in files:
        stored = load_file(path)
        assert all(tensor.dtype == torch.int8 for tensor in stored.values() if tensor.dim() >= 2), path
    assert sum(path.stat().st_size for path in (HOME / "text").rglob("*") if path.is_file()) <= 11.5e6


def test_it_runs_in_single_precision(mini):
    assert {weight.dtype for net in (mini.target, *mini.drafters.values()) for weight in net.parameters()} == {torch.float32}


LEAST = {"model": 2.2, "eagle1": 2.0, "eagle3": 2.4, "hydra": 1.4, "kangaroo": 2.0, "medusa": 1.3, "mixture-of-attentions": 2.4}


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_its_drafters_are_accepted_and_change_nothing(mini, plain, name, least):
    out = mmspec.text.generate(mini.target, some(mini), mini.drafters[name], max_new_tokens=40, draft_length=4)
    assert torch.equal(out.sequences, plain)
    assert out.stats.tokens_per_call > least


def test_plain_decoding_is_that_of_transformers(mini, plain):
    inputs = some(mini)
    theirs = mini.target.generate(**inputs, max_new_tokens=40, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    assert torch.equal(theirs[:, : plain.shape[1]], plain)


def test_what_is_written_is_read(tmp_path, mini):
    """The writer rounds as `as_stored` does, keeps texts, and replaces an older mini whole."""
    pair = [as_stored(llama(tie_word_embeddings=tied)) for tied in (True, False)]
    (tmp_path / "mini").mkdir()
    (tmp_path / "mini" / "older").write_text("")
    write_text_mini(tmp_path / "mini", *pair, mini.processor, prompts=["Once", "Question: 2?"], card="# caf\u00e9")
    found = load_text(tmp_path / "mini")
    for net, written in zip((found.target, found.drafters["model"]), pair, strict=True):
        assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in written.state_dict().items())
    assert found.card == "# caf\u00e9"
    assert found.processor.get_vocab() == mini.processor.get_vocab()
    assert found.processor("na\u00efve 12")["input_ids"] == mini.processor("na\u00efve 12")["input_ids"]
    assert found.examples["input_ids"].shape[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mini"]
    assert not (tmp_path / "mini" / "older").exists()
