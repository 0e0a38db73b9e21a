"""What a target writes for its drafters: its own words at the settings asked for, marked as its own, once."""

import json
from copy import deepcopy
from dataclasses import asdict, replace

import pytest
import torch

import mmspec
from mmspec.train.on_policy_text import Writing, write_own_text
from mmspec.train.states.identity import weights_checksum
from tests.conftest import llama

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14], [15]]


class Padder:
    """A tokenizer's padding and its words, and nothing else."""

    pad_token_id = 0

    def get_vocab(self):
        return {f"word {number}": number for number in range(50)}

    def pad(self, batch, return_tensors):
        from transformers import BatchEncoding

        width = max(map(len, batch["input_ids"]))
        ids = [[0] * (width - len(row)) + row for row in batch["input_ids"]]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in batch["input_ids"]]
        return BatchEncoding({"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)})


def test_own_words_are_marked_and_nothing_else(big, tmp_path):
    plan = Writing(temperatures=(0.0, 1.0), opening=4, new=6, chunk=2)
    ids, own = write_own_text(big, Padder(), PROMPTS, plan, tmp_path)
    expected = set()
    for first, temperature in ((0, 0.0), (2, 1.0)):
        batch = Padder().pad({"input_ids": [row[:4] for row in PROMPTS[first : first + 2]]}, "pt")
        new = mmspec.text.generate(big, batch, temperature=temperature, max_new_tokens=6, seed=first).sequences.tolist()
        expected |= {(tuple(row[:4]), tuple(said)) for row, said in zip(PROMPTS[first:], new, strict=False)}
    found = set()
    for row, mine in zip(ids.tolist(), own.tolist(), strict=True):
        begin = mine.index(True)
        end = begin + sum(mine)
        assert all(mine[begin:end])
        assert not any(row[end:])
        found.add((tuple(row[:begin]), tuple(row[begin:end])))
    assert found == expected


def test_text_of_other_settings_is_not_taken_for_this_one(big, tmp_path, monkeypatch):
    write_own_text(big, Padder(), PROMPTS, Writing(opening=4, new=3, chunk=2), tmp_path)
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr("mmspec.train.on_policy_text.generate", None)
        again = write_own_text(big, Padder(), PROMPTS, Writing(opening=4, new=3, chunk=2), tmp_path)  # read, not written again
    assert again[0].shape == (4, 7)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == kept
    with pytest.raises(ValueError, match="holds text written with new 3, not 5: delete it"):
        write_own_text(big, Padder(), PROMPTS, Writing(opening=4, new=5, chunk=2), tmp_path)


class OtherWords(Padder):
    """Another tokenizer of as many tokens."""

    def get_vocab(self):
        return {f"other {number}": number for number in range(50)}


def with_changed_row(model):
    other = deepcopy(model)
    other.model.layers[1].self_attn.k_proj.weight.data[0, 0] += 1e-3
    return other


def with_changed_config(model):
    other = deepcopy(model)
    other.config.rms_norm_eps = 0.5
    return other


PLAN = Writing(opening=4, new=3, chunk=2)
OTHERS = {
    "another model's weights": (with_changed_row, Padder, PROMPTS, PLAN, r"target weights checksum \w+, not checksum \w+: .*--model$"),
    "another config": (with_changed_config, Padder, PROMPTS, PLAN, r"target config rms_norm_eps 1e-06, not 0.5: .*--model$"),
    "another size": (lambda model: llama(1, seed=0), Padder, PROMPTS, PLAN, r"target config \w+ 3, not 1: .*--model$"),
    "another dtype": (lambda model: deepcopy(model).bfloat16(), Padder, PROMPTS, PLAN, "dtype float32, not bfloat16: .*--dtype$"),
    "another tokenizer": (lambda model: model, OtherWords, PROMPTS, PLAN, r"tokenizer checksum \w+, not checksum \w+: .*--model$"),
    "other prompts": (lambda model: model, Padder, [[5, 6, 8], *PROMPTS[1:]], PLAN, r"prompt ids checksum \w+, not .*--prompts or --chat$"),
    "other sampling": (lambda model: model, Padder, PROMPTS, replace(PLAN, top_p=0.5), "top_p None, not 0.5: .*--top-p$"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_text_that_another_target_or_tokenizer_wrote_is_refused_by_what_differs(big, tmp_path, name):
    change, tokenizer, prompts, plan, said = OTHERS[name]
    write_own_text(big, Padder(), PROMPTS, PLAN, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=f"^{tmp_path} holds text written with {said}") as caught:
        write_own_text(change(big), tokenizer(), prompts, plan, tmp_path)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_same_target_loaded_again_goes_on(big, tmp_path):
    """Its place, its attention's implementation and the version of transformers do not matter; new entries of a config neither."""
    write_own_text(big, Padder(), PROMPTS, PLAN, tmp_path)
    again = deepcopy(big)
    again.config._name_or_path = "elsewhere"
    again.config.transformers_version = "6.0"
    again.config.brought_by_a_later_version = 3
    assert write_own_text(again, Padder(), PROMPTS, PLAN, tmp_path)[0].shape == (4, 7)


def test_the_beginning_the_middle_and_the_end_of_every_weight_are_read(big):
    found = weights_checksum(big)
    assert weights_checksum(deepcopy(big)) == found
    for name, weight in big.named_parameters():
        for place in (0, weight.numel() // 2, -1):
            other = deepcopy(big)
            other.get_parameter(name).data.view(-1)[place] += 1e-3
            assert weights_checksum(other) != found, (name, place)


def test_text_whose_writer_was_not_noted_is_refused(big, tmp_path):
    """As mmspec 0.1 wrote it."""
    write_own_text(big, Padder(), PROMPTS, PLAN, tmp_path)
    path = tmp_path / "writing.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({key: settings[key] for key in (*asdict(PLAN), "prompts")}))
    with pytest.raises(ValueError, match="holds text written with target that was not noted, not LlamaForCausalLM: delete it or choose"):
        write_own_text(big, Padder(), PROMPTS, PLAN, tmp_path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"writing.json is not JSON"):
        write_own_text(big, Padder(), PROMPTS, PLAN, tmp_path)
