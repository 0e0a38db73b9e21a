"""Weights as bytes: close to what they were, the same every time, and half the size."""

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.minis.card import as_stored
from mmspec.minis.weights import llama, save_llama
from mmspec.utils.packing import packed, read_bytes, save_bytes, unpacked


def test_a_matrix_is_off_by_half_a_step_of_its_row_at_most(tmp_path):
    torch.manual_seed(0)
    weights = {"matrix": torch.randn(7, 40) * torch.logspace(-4, 1, 7)[:, None], "kernel": torch.randn(3, 4, 5), "bias": torch.randn(6)}
    weights["matrix"][3] = 0
    save_bytes(weights, tmp_path / "w.safetensors")
    found = read_bytes(tmp_path / "w.safetensors")
    assert found.keys() == weights.keys()
    for name in ("matrix", "kernel"):
        rows, back = weights[name].flatten(1), found[name].flatten(1)
        assert ((rows - back).abs().amax(1) <= rows.abs().amax(1) / 254 + 1e-7).all()
    assert torch.equal(found["bias"], weights["bias"].half().float())
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_what_is_read_is_written_again_as_it_is(tmp_path):
    torch.manual_seed(1)
    save_bytes({"matrix": torch.randn(9, 30)}, tmp_path / "a")
    save_bytes(read_bytes(tmp_path / "a"), tmp_path / "b")
    assert torch.equal(read_bytes(tmp_path / "a")["matrix"], read_bytes(tmp_path / "b")["matrix"])


def test_files_in_half_precision_are_read_too(tmp_path):
    matrix = torch.randn(4, 5)
    save_file({"matrix": matrix.half()}, tmp_path / "half")
    assert torch.equal(read_bytes(tmp_path / "half")["matrix"], matrix.half().float())


def test_only_bytes_have_scales():
    """A tensor called `.scale` beside one that is no matrix of bytes is a tensor; whole numbers and flags are not rounded."""
    stored = {"w": torch.ones(2, 3), "w.scale": torch.full((2,), 5.0), "ids": torch.tensor([[2**40 + 1, 3]]), "flag": torch.tensor([True])}
    back = unpacked(stored)
    assert back.keys() == stored.keys()
    assert all(torch.equal(back[name], stored[name]) for name in stored)
    whole = unpacked(packed({"ids": stored["ids"], "flag": stored["flag"]}))
    assert torch.equal(whole["ids"], stored["ids"])
    assert torch.equal(whole["flag"], stored["flag"])


def test_what_is_measured_is_what_is_read_back(tmp_path):
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    model = as_stored(LlamaForCausalLM(config).eval())
    save_llama(model, tmp_path / "m")
    again = llama(tmp_path / "m").state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())


def test_a_llama_comes_back_with_its_embeddings_tied(tmp_path):
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, tie_word_embeddings=True
    )
    model = LlamaForCausalLM(config).eval()
    save_llama(model, tmp_path / "m")
    again = llama(tmp_path / "m")
    assert again.lm_head.weight is again.model.embed_tokens.weight
    ids = torch.arange(8)[None]
    assert (again(ids).logits - model(ids).logits).abs().max() < 0.05
    assert (tmp_path / "m" / "model.safetensors").stat().st_size < 2 * sum(p.numel() for p in model.parameters())
