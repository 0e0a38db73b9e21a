"""Base class of the results of all modalities, and the result of a sequence."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.protocols import StoppingCriteria
from mmspec.core.stats import Stats
from mmspec.core.stopping import STOP


@dataclass(frozen=True)
class Result:
    """Base class of results.

    Attributes:
        tokens: what was generated, right-padded: token ids LongTensor [B, S], frames of codes [B, S, K], codes of images
            [B, height, width], beams [B, K, L], or vectors, float [B, S, d].
        lengths: LongTensor [B], number of generated entries of each row of `tokens`; the rest is padding.
        stats: counts and seconds, over all rows.
        finish_reasons: why each row ended: "stop" at its end, or complete; "length" where it was cut at the longest length that the call,
            or the model, allows. None for a row that still runs.
    """

    tokens: Tensor = field(repr=False)
    lengths: Tensor
    stats: Stats
    finish_reasons: Sequence[str | None] = field(default=(), kw_only=True)

    def __post_init__(self):
        if not self.finish_reasons:
            object.__setattr__(self, "finish_reasons", (STOP,) * len(self.lengths))


@dataclass(frozen=True)
class Generation(Result):
    """Result with new tokens [B, S, *value] of a text or of any other sequence."""

    @property
    def sequences(self) -> Tensor:
        """Same as `tokens`; the name in transformers."""
        return self.tokens


def committed_row(values: Sequence[Any], stats: Stats, device: torch.device) -> Generation:
    """Return the result of a single row.

    Args:
        values: what it committed.
        stats: its statistics.
        device: device of the result.

    Returns:
        `tokens` [1, S, *value], `lengths` LongTensor [1] and `stats`.
    """
    return Generation(_joined(values, device)[None], torch.tensor([len(values)], device=device), stats)


def committed(stopping: StoppingCriteria, stats: Stats, device: torch.device, pad: int = 0) -> Generation:
    """Collect what has been committed so far.

    Args:
        stopping: the stopping criteria of the generation, which hold the committed values.
        stats: the statistics to return with them.
        device: device of the result.
        pad: fills rows that are shorter than the longest one.

    Returns:
        The committed values [B, S, *value], right-padded, their lengths LongTensor [B], and `stats`.
    """
    lengths = torch.tensor([len(values) for values in stopping.outputs], device=device)
    rows = [_joined(values, device) for values in stopping.outputs]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    return Generation(tokens, lengths, stats, finish_reasons=tuple(stopping.finish_reasons))


def _joined(values: Sequence[Any], device: torch.device) -> Tensor:
    """Return one row's values [S, *value]; vectors are on the device already."""
    vectors = bool(values) and isinstance(values[0], Tensor)
    return torch.stack(list(values)) if vectors else torch.tensor(values, dtype=torch.long, device=device)


class DecodeError(ValueError):
    """A ValueError that a round has raised, as opposed to one for an invalid argument; the message is the same."""
