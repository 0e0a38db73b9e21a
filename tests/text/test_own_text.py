"""What a target writes for its drafters: its own words at the settings asked for, marked as its own, once."""

import pytest
import torch

import mmspec
from mmspec.train.on_policy_text import Writing, write_own_text

PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14], [15]]


class Padder:
    """A tokenizer's padding and nothing else."""

    pad_token_id = 0

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


def test_text_of_other_settings_is_not_taken_for_this_one(big, tmp_path):
    write_own_text(big, Padder(), PROMPTS, Writing(opening=4, new=3, chunk=2), tmp_path)
    again = write_own_text(None, None, PROMPTS, Writing(opening=4, new=3, chunk=2), tmp_path)  # read, not written again
    assert again[0].shape == (4, 7)
    with pytest.raises(ValueError, match="holds text written with new 3, not 5: delete it"):
        write_own_text(big, Padder(), PROMPTS, Writing(opening=4, new=5, chunk=2), tmp_path)
