"""What a module of the sweep hands to its runner: one architecture, how to build it, and its inputs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]


def own_generate(model: Any, inputs: Inputs, tokens: int) -> list[int]:
    """New tokens of `inputs`, one row, by the class's own greedy `generate`."""
    out = model.generate(**inputs, do_sample=False, max_new_tokens=tokens)
    out = out if isinstance(out, Tensor) else out.sequences
    known = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    return out[0, known:].tolist()


@dataclass(frozen=True)
class Case:
    """One architecture. `name` is its model type and, with `kind`, the key of its row in docs/families.md.

    `make` returns the model; `alone(model, row)` the unpadded inputs of one row, for rows 0, 1 and 2, which differ in length;
    `batch(model, rows)` the first `rows` rows in one padded batch; `reference` the new tokens of one row by transformers itself.
    """

    name: str
    kind: str  # causal, seq2seq, image, audio or speech
    architecture: str  # class name
    make: Callable[[], Any]
    alone: Callable[[Any, int], Inputs]
    batch: Callable[[Any, int], Inputs]
    reference: Callable[[Any, Inputs, int], list[int]] = own_generate
    tokens: int = 12


LENGTHS = (9, 14, 11)  # of the rows' prompts


def text_row(row: int, vocab: int, lengths: tuple[int, ...] = LENGTHS, first: int = 5) -> dict[str, Tensor]:
    """A prompt of random ids in [first, vocab), unpadded."""
    generator = torch.Generator().manual_seed(100 + row)
    ids = torch.randint(first, vocab, (1, lengths[row]), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def padded(rows: list[dict[str, Tensor]], pad: int = 0, left: bool = True) -> dict[str, Tensor]:
    """Rows of `text_row` in one batch, padded on the left, or on the right."""
    longest = max(row["input_ids"].shape[1] for row in rows)

    def side(tensor: Tensor, value: int) -> Tensor:
        missing = longest - tensor.shape[1]
        return torch.nn.functional.pad(tensor, (missing, 0) if left else (0, missing), value=value)

    return {
        "input_ids": torch.cat([side(row["input_ids"], pad) for row in rows]),
        "attention_mask": torch.cat([side(row["attention_mask"], 0) for row in rows]),
    }
