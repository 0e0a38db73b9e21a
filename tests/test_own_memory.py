"""Files that were loaded may be written over in place or cut short: what runs keeps its weights, tables and answers.

A mapped file that is cut short ends a process by SIGBUS, so the checks run in a fork.
"""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.drafters.retrieval.bigrams import Bigrams
from mmspec.drafters.retrieval.datastore import Datastore
from mmspec.models.checkpoint_loading import loaded
from mmspec.recsys import Catalogue
from mmspec.utils.fp16 import float_weights
from mmspec.utils.packing import read_bytes
from mmspec.utils.private_copy import private_copy
from mmspec.utils.weights import read_weights
from tests.recsys import shops

SIZES: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
ROOT = Path(__file__).parents[1]


def a_model(folder):
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder)
    model = loaded(LlamaForCausalLM, folder)
    return lambda: model(input_ids=torch.arange(20)[None]).logits.sum().item()


def tensors(folder):
    save_file({"weight": torch.randn(600, 600)}, folder / "model.safetensors")
    found = [read_weights(folder), float_weights(folder), read_bytes(folder / "model.safetensors")]
    return lambda: [each["weight"].sum().item() for each in found]


def a_datastore(folder):
    store = Datastore.build([list(range(5000))], folder / "store.npy")
    return lambda: (int(store.tokens.sum()), int(store.suffixes.sum()))


def a_mapped_catalogue(folder):
    shops.catalogue(3000).write(folder / "catalogue.safetensors")
    found = Catalogue.read(folder / "catalogue.safetensors")
    return lambda: (found.digest, found.paths.sum().item(), found.trie.token.sum().item())


def counts(folder):
    Bigrams.count([torch.tensor([1, 2, 3] * 500)], 64).save(folder / "counts.safetensors")
    found = Bigrams.load(folder / "counts.safetensors")
    return lambda: (found.pairs.sum().item(), found.counts.sum().item())


def survives(load, folder):
    """Whether what `load` returns stays the same while its files are written over in place, and then cut short."""
    answer = load(folder)
    before = answer()
    for path in folder.iterdir():
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(size // 2)
            file.write(b"A" * (size - size // 2))
        if answer() != before:
            return False
        os.truncate(path, 8)
        if answer() != before:
            return False
    return True


@pytest.mark.parametrize("load", [a_model, tensors, a_datastore, a_mapped_catalogue, counts])
def test_what_was_loaded_does_not_change_with_its_file(load, tmp_path, monkeypatch):
    (tmp_path / "files").mkdir()
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    child = os.fork()
    if not child:
        try:
            os._exit(0 if survives(load, tmp_path / "files") else 1)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0  # 7: SIGBUS; 256: another answer


def test_no_weights_of_the_package_stay_mapped():
    """safetensors' own loader maps: everything goes through the function that copies."""
    found = re.compile(r"from safetensors\.torch import .*\bload_file\b")
    assert not [path for path in (ROOT / "mmspec").rglob("*.py") if found.search(path.read_text(encoding="utf-8"))]


def test_a_copy_is_made_once_for_each_version_and_earlier_ones_go(tmp_path, monkeypatch):
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "table.npy"
    np.save(path, np.arange(9))
    first = private_copy(path)
    assert first is not None
    assert first.read_bytes() == path.read_bytes()
    assert private_copy(tmp_path / "." / "table.npy") == first
    mapped = np.load(first, mmap_mode="r")
    np.save(path, np.arange(9)[::-1])
    second = private_copy(path)
    assert second is not None
    assert second != first
    assert list(second.parent.iterdir()) == [second]
    assert mapped.tolist() == list(range(9))
    (tmp_path / "cache").rename(tmp_path / "old")
    (tmp_path / "cache").write_text("no folder")
    assert private_copy(path) is None  # read into memory then
    with pytest.raises(FileNotFoundError):
        private_copy(tmp_path / "no.npy")


def test_copying_leaves_tied_weights_tied(tmp_path):
    made = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))
    made.save_pretrained(tmp_path)
    found = loaded(LlamaForCausalLM, tmp_path)
    assert found.lm_head.weight is found.model.embed_tokens.weight
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in made.state_dict().items())
