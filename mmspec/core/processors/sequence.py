"""Processors that read whole token sequences: repetition, n-grams, biased sequences, length penalties; every row and tree node at once.

transformers gives a processor one padded row per sequence: the prompt with its padding, then the outputs. Each class here takes that prompt
as `prompt` [B, P] and gives the scores of transformers' class at every node of a draft. With `prompt=None` a node's sequence is its path in
the cache without padding, as transformers has it for a row that runs alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmspec.core.processors.history import History, ban, tally
from mmspec.core.processors.pipeline import penalised
from mmspec.utils.devices import to_device


def sequences(history: History, prompt: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The token sequence that ends in each node, ids [B, N, L] aligned to the left, and its length [B, N].

    Args:
        history: the nodes' paths.
        prompt: [B, P] the prompt as transformers' processors see it, padding included; its outputs follow. None for the path itself.
    """
    visible, size = history.visible, history.ids.shape[1]
    total = visible.sum(-1)
    count = total if prompt is None else history.position.clamp(max=size)
    rank = visible.cumsum(-1) - 1 - (total - count)[..., None]
    place = torch.where(visible & (rank >= 0), rank, size).clamp(max=size)
    found = history.ids.new_zeros(*visible.shape[:2], size + 1)
    found = found.scatter_(2, place, history.ids[:, None].expand_as(visible))[..., :size]
    if prompt is None:
        return found, count
    start = prompt.to(found.device)[:, None].expand(-1, found.shape[1], -1)
    return torch.cat([start, found], -1), count + prompt.shape[1]


def last_ids(ids: Tensor, lengths: Tensor, count: int) -> Tensor:
    """The last `count` ids [B, N, count] of sequences `ids` [B, N, L] of `lengths` [B, N]; any ids where a sequence is shorter."""
    columns = lengths[..., None] - count + torch.arange(count, device=ids.device)
    return ids.gather(2, columns.clamp(0, ids.shape[-1] - 1))


@dataclass(frozen=True, eq=False)
class SequencePenalty:
    """CTRL's repetition penalty on every id of the sequence from column `ignored` on: one number, or one per row [B]."""

    penalty: float
    prompt: Tensor | None = None
    ignored: int | Tensor = 0

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        ids, lengths = sequences(history, self.prompt)
        columns = torch.arange(ids.shape[-1], device=ids.device)
        first = self.ignored.to(ids.device)[:, None, None] if isinstance(self.ignored, Tensor) else self.ignored
        counted = (columns < lengths[..., None]) & (columns >= first)
        return penalised(scores, self.penalty, tally(ids, counted, scores.shape[-1]) > 0)


@dataclass(frozen=True, eq=False)
class NoRepeatNGram:
    """Forbid repeating an n-gram of `size` ids in a sequence, the prompt included."""

    size: int
    prompt: Tensor | None = None

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        ids, lengths = sequences(history, self.prompt)
        windows, vocabulary = ids.shape[-1] - self.size + 1, scores.shape[-1]
        if windows <= 0:
            return scores
        prefix = last_ids(ids, lengths, self.size - 1)
        match = torch.arange(windows, device=ids.device) + self.size <= lengths[..., None]
        for place in range(self.size - 1):
            match = match & (ids[..., place : place + windows] == prefix[..., place, None])
        ends = torch.where(match, ids[..., self.size - 1 :].clamp(max=vocabulary), vocabulary)
        return ban(scores, _marked(ends, scores))


@dataclass(frozen=True, eq=False)
class EncoderNoRepeatNGram:
    """Forbid the n-grams of the encoder's input: `grams` [R, M, n] of each line, and which of them are `real` [R, M]."""

    grams: Tensor
    real: Tensor
    prompt: Tensor | None = None

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        ids, lengths = sequences(history, self.prompt)
        grams = _of_each_row(self.grams.to(ids.device), scores)
        size, vocabulary = grams.shape[-1], scores.shape[-1]
        prefix = last_ids(ids, lengths, size - 1)
        match = _of_each_row(self.real.to(ids.device), scores)[:, None] & (lengths >= size - 1)[..., None]
        match = match & (grams[:, None, :, :-1] == prefix[:, :, None]).all(-1)
        ends = torch.where(match, grams[:, None, :, -1].clamp(max=vocabulary), vocabulary)
        return ban(scores, _marked(ends, scores))


@dataclass(frozen=True, eq=False)
class SequenceBias:
    """Add a number to the last id of each biased sequence where a sequence ends with the ids before it; -inf bans it."""

    biases: tuple[tuple[tuple[int, ...], float], ...]
    prompt: Tensor | None = None

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        self._check(scores.shape[-1])
        total = torch.zeros_like(scores)
        for length, group in self._by_length().items():
            last = to_device([ids[-1] for ids, _ in group], scores.device)
            numbers = to_device([number for _, number in group], scores.device, scores.dtype)
            if length == 1:
                total = total.index_add(2, last, numbers.expand(*scores.shape[:2], -1))
                continue
            ids, lengths = sequences(history, self.prompt)
            prefixes = to_device([ids[:-1] for ids, _ in group], scores.device)
            match = (last_ids(ids, lengths, length - 1)[:, :, None] == prefixes).all(-1) & (lengths >= length - 1)[..., None]
            total = total.index_add(2, last, torch.where(match, numbers, 0.0))
        return scores + total

    def _by_length(self) -> dict[int, list[tuple[tuple[int, ...], float]]]:
        """Single ids first, as transformers adds them."""
        groups: dict[int, list[tuple[tuple[int, ...], float]]] = {}
        for ids, number in sorted(self.biases, key=lambda pair: len(pair[0]) > 1):
            groups.setdefault(len(ids), []).append((ids, number))
        return groups

    def _check(self, vocabulary: int) -> None:
        beyond = [i for ids, _ in self.biases for i in ids if i >= vocabulary]
        if beyond:
            raise ValueError(f"sequence_bias or bad_words_ids name the ids {beyond}, but the vocabulary has {vocabulary}: leave them out")


@dataclass(frozen=True)
class LengthPenalty:
    """Raise the scores of `ends` from output position `start` on, by |score| * (factor ** (position - start) - 1)."""

    ends: tuple[int, ...]
    start: int
    factor: float

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        late = history.position - self.start
        growth = (torch.pow(self.factor, late.double()) - 1).to(scores.dtype)[..., None]
        ends = to_device(list(self.ends), scores.device)
        added = (scores[..., ends].abs() * growth).masked_fill(~scores[..., ends].isfinite(), 0.0)
        out = scores.clone()
        out[..., ends] = torch.where((late > 0)[..., None], scores[..., ends] + added, scores[..., ends])
        return out


@dataclass(frozen=True)
class ReplaceInvalid:
    """Replace NaN by 0 and infinities by the largest and smallest finite numbers."""

    repairs: ClassVar[bool] = True

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        stopping = torch.finfo(scores.dtype)
        return scores.nan_to_num(nan=0.0, posinf=stopping.max, neginf=stopping.min)


def _of_each_row(lines: Tensor, scores: Tensor) -> Tensor:
    """`lines` [R, ...] repeated for the rows [B] of `scores`, where several outputs of one input are adjacent."""
    rows = scores.shape[0]
    return lines.repeat_interleave(rows // lines.shape[0], 0) if rows > lines.shape[0] else lines


def _marked(ids: Tensor, scores: Tensor) -> Tensor:
    """[B, N, V] bool: the value is among `ids` [B, N, W]. The id V stands for none."""
    found = torch.zeros(*scores.shape[:2], scores.shape[-1] + 1, dtype=torch.bool, device=scores.device)
    return found.scatter_(2, ids, True)[..., :-1]


def biases_of(pairs: dict[Sequence[int], float]) -> tuple[tuple[tuple[int, ...], float], ...]:
    """`SequenceBias.biases` of transformers' mapping from sequences to numbers."""
    return tuple((tuple(map(int, ids)), float(number)) for ids, number in pairs.items())
