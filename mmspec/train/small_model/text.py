"""The text that a small model learns from: its target's, its own, or written by both in turns.

Off-policy text is the target's own. On-policy text is written by the small model as it stands at each step (DistillSpec, Zhou et al. 2024),
which is what the target will have to judge. Early on such text is poor; in speculative knowledge distillation (Xu et al. 2024) the target
replaces every token that is not among its likeliest.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.text.generation import generate
from mmspec.train.parallel import computed_in_shares, join_processes
from mmspec.train.small_model.interleaved import Interleaved
from mmspec.train.small_model.loss import SmallModelLoss, TextWindow, hidden_states
from mmspec.train.states.memory import TrainingMemory, small_model_memory
from mmspec.utils.screen import track

TEXTS = ("off-policy", "on-policy", "speculative")
"""Whose text a small model is trained on."""
KEPT_STATES = 1 << 30
"""Bytes of the target's hidden states in all processes up to which they are computed once; for more the target runs at every step."""


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """Whose text a small model is trained on.

    Args:
        kind: one of `TEXTS`.
        share: part of the steps that take the small model's text; the others take the target's.
        temperature: of the small model's text, and of the target's replacements.
        new: most tokens written after a prompt.
        k: "speculative": rank a token may have among the target's likeliest.
        draft_length: "speculative": tokens proposed a round.

    Raises:
        ValueError: for an unknown kind, and numbers out of range.
    """

    kind: str = "off-policy"
    share: float = 0.5
    temperature: float = 1.0
    new: int = 208
    k: int = 25
    draft_length: int = 5

    def __post_init__(self):
        if self.kind not in TEXTS:
            raise ValueError(f"unknown text {self.kind!r}; valid: {', '.join(TEXTS)}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}: the part of steps with the small model's text is above 0 and at most 1")
        if self.k < 1:
            raise ValueError(f"k is {self.k}: a token has rank 1 or more")


class TrainingText:
    """Windows of the target's text, of which the first are held out, and text that the small model writes in training.

    Args:
        target: the target, in eval mode.
        ids: windows LongTensor [N, W], padded behind.
        own: bool [N, W], tokens that the target wrote.
        held: number of windows held out.
        source: whose text is trained on.
        rows: windows that run together outside of training.

    Raises:
        ValueError: if no window is left to train on.
    """

    def __init__(self, target: Any, ids: Tensor, own: Tensor, held: int, source: TextSource, rows: int = 16):
        if not 0 < held < len(ids):
            raise ValueError(f"{held} of {len(ids)} windows are held out: hold out at least one, and leave one to train on")
        self.target, self.ids, self.own, self.held, self.source, self.rows = target, ids, own, held, source, rows
        self.states = _states(target, ids, rows)
        starts = own.long().argmax(1).tolist()
        self.prompts = [ids[row, : starts[row]] for row in range(held, len(ids)) if starts[row]]
        if source.kind != "off-policy" and not self.prompts:
            raise ValueError(f"no window begins with a prompt: {source.kind} text needs one")

    def window(self, rows: Sequence[int]) -> TextWindow:
        """Return windows of the target's text by number, on the target's device."""
        chosen = list(rows)
        states = None if self.states is None else self.states[chosen]
        return TextWindow(self.ids[chosen], self.own[chosen], states).to(self.target.device)

    def held_out(self) -> Iterator[TextWindow]:
        """Yield the windows held out, some at a time."""
        for first in range(0, self.held, self.rows):
            yield self.window(range(first, min(first + self.rows, self.held)))

    def draw(self, model: Any, turn: int, rows: int, processes: int = 1) -> TextWindow:
        """Return the windows of one step, or the part of them that one of several processes takes.

        Args:
            model: the small model as it stands.
            turn: number of the step; of several processes, the turn that `fit` gives each of them. With the model's weights it determines
                the windows, so that a resumed run sees the same ones, and several processes together those of one.
            rows: number of windows of the step.
            processes: number of processes.

        Raises:
            ValueError: for fewer rows than processes.
        """
        if rows < processes:
            raise ValueError(f"rows is {rows} for {processes} processes: give every process a window")
        step, part = divmod(turn, processes)
        generator = torch.Generator().manual_seed(step)
        if self.source.kind != "off-policy" and torch.rand((), generator=generator).item() < self.source.share:
            chosen, own = torch.randint(len(self.prompts), (rows,), generator=generator).tolist(), range(part, rows, processes)
            return self._written(model, [self.prompts[chosen[row]] for row in own], [step * rows + row for row in own])
        chosen = torch.randint(self.held, len(self.ids), (rows,), generator=generator).sort().values[part::processes].tolist()
        return replace(self.window(chosen), seeds=tuple(range(step * rows + part, (step + 1) * rows, processes)))

    def acceptance(self, example: SmallModelLoss) -> list[tuple[float, float]]:
        """Return `SmallModelLoss.acceptance` over all windows held out, for the draft tokens of a block one by one."""
        sums = torch.stack([example.acceptance_sums(window) for window in self.held_out()]).sum(0)
        return [(taken / max(1.0, count), agreed / max(1.0, count)) for taken, agreed, count in sums.tolist()]

    def _written(self, model: Any, prompts: Sequence[Tensor], seeds: list[int]) -> TextWindow:
        """What the small model, alone or with the target, writes after `prompts`."""
        settings = {"temperature": self.source.temperature, "max_new_tokens": self.source.new, "seed": seeds}
        inputs, trained = _padded_prompts(prompts, self.target.device), model.training
        model.eval()
        try:
            with torch.autocast(self.target.device.type, enabled=False):
                if self.source.kind == "on-policy":
                    out = generate(model, inputs, **settings)
                else:
                    rule = Interleaved(self.source.k)
                    out = generate(self.target, inputs, model, accept=rule, draft_length=self.source.draft_length, **settings)
        finally:
            model.train(trained)
        return replace(_behind(prompts, out.tokens.cpu(), out.lengths.tolist()), seeds=tuple(seeds)).to(self.target.device)


def estimated_memory(example: SmallModelLoss, target: Any, windows: int, rows: int, length: int) -> TrainingMemory:
    """Estimate what the training of a small model takes.

    Args:
        example: the small model and its loss.
        target: its target.
        windows: number of windows of the target's text.
        rows: windows of a step in this process.
        length: ids of a window.
    """
    size, kept = target.get_output_embeddings().weight.shape[0], _kept_bytes(target, windows * length)
    length = length if example.masks is None else round(length * sum(example.masks.shares))
    logits = min(example.most_logits, rows * length * size)
    return small_model_memory(example.model, target, rows=rows, length=length, logits=logits, kept=kept)


def opening_ids(tokenizer: Any, texts: Sequence[str], count: int) -> list[list[int]]:
    """Return the ids of `count` of the texts in a random order that is always the same; fewer texts are repeated."""
    drawn = list(texts)
    random.Random(0).shuffle(drawn)
    ids = [tokenizer(text)["input_ids"] for text in drawn[:count]]
    return [ids[i % len(ids)] for i in range(count)]


def counted_ids(ids: Tensor, own: Tensor, size: int) -> Tensor:
    """Return how often each of `size` ids occurs among the tokens `own` [N, W] of windows `ids` [N, W]: LongTensor [size]."""
    return torch.bincount(ids[own], minlength=size)


def _kept_bytes(target: Any, tokens: int) -> int:
    """Bytes of the target's hidden states that every process keeps for a number of tokens; 0 if they are too many to keep."""
    size = tokens * target.get_output_embeddings().weight.shape[1] * target.dtype.itemsize
    return size if size * join_processes().num_processes <= KEPT_STATES else 0


@torch.no_grad()
def _states(target: Any, ids: Tensor, rows: int) -> Tensor | None:
    """The target's last hidden states [N, W, H], on the CPU; None if they are too many to keep. Several processes share the work."""
    if not _kept_bytes(target, ids.numel()):
        return None
    here = join_processes()
    parts = computed_in_shares(lambda part: hidden_states(target, part.to(target.device)), ids, rows)
    count = -(-len(ids) // (rows * here.num_processes))
    return torch.cat([part.cpu() for part in track(parts, "target's states", count, disable=not here.is_main_process)])


def _padded_prompts(prompts: Sequence[Tensor], device: torch.device) -> dict[str, Tensor]:
    """Prompts as a batch, padded in front."""
    longest = max(map(len, prompts))
    ids, mask = torch.zeros(2, len(prompts), longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :], mask[row, longest - len(prompt) :] = prompt, 1
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def _behind(prompts: Sequence[Tensor], tokens: Tensor, lengths: Sequence[int]) -> TextWindow:
    """Windows of prompts with what was written after them."""
    rows = [torch.cat([prompt, new[:length]]) for prompt, new, length in zip(prompts, tokens, lengths, strict=True)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    places = torch.arange(ids.shape[1])
    starts, ends = (torch.tensor([len(each) for each in parts])[:, None] for parts in (prompts, rows))
    return TextWindow(ids, (places >= starts) & (places < ends))
