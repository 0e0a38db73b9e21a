"""Rows of Mllama's batches by themselves: in transformers' own batches they depend on their neighbours' pictures."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def row_of(inputs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One row of a batch, as the processor returns it for that row by itself."""
    kept = inputs["attention_mask"][row].bool()
    own = {name: inputs[name][row][kept][None] for name in ("input_ids", "attention_mask")}
    count = int((inputs["aspect_ratio_ids"][row] > 0).sum()) if "aspect_ratio_ids" in inputs else 0
    if count == 0:
        return own
    own |= {name: inputs[name][row, :count][None] for name in ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")}
    return own | {"cross_attention_mask": inputs["cross_attention_mask"][row][kept][None, :, :count]}


def generated_alone(model: Any, inputs: dict[str, Tensor], **options: Any) -> list[list[int]]:
    """The new tokens of `model.generate` on each row by itself."""
    found = []
    for row in range(len(inputs["input_ids"])):
        own = row_of(inputs, row)
        new = model.generate(**own, do_sample=False, **options)
        found.append(new[0, own["input_ids"].shape[1] :].tolist())
    return found


def as_one_batch(rows: list[list[int]], fill: int = 0) -> Tensor:
    """The rows as `generate` returns a batch's new tokens: filled up on the right."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=fill)
