"""On-policy training of drafters of vision-language models: text-only ones (Gagrani et al. 2024) and ones with a vision tower (MASSV,
2025).
A training example is an answer after two prompts, the target's and the drafter's view of it; the distributions of the answer are compared.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.drafters.views.base import View
from mmspec.models.families.registry import family_of


@dataclass(frozen=True)
class Answered:
    """Prompts with the answers behind them, padded on the right: `inputs` as a model's forward takes them, `own` [B, S] the answers."""

    inputs: dict[str, Any]
    own: Tensor

    @property
    def said(self) -> Tensor:
        """[T] the answers' ids, row after row."""
        return self.inputs["input_ids"][self.own]

    def to(self, device: Any) -> "Answered":
        """Return this object with its tensors on `device`."""
        return Answered({key: value.to(device) for key, value in self.inputs.items()}, self.own.to(device))


def with_answers(inputs: Mapping[str, Any], answers: Sequence[Tensor], pad: int) -> Answered:
    """The processor's `inputs`, padded on either side, each followed by its answer [A]. What goes with every token is 0 in answers."""
    mask = inputs["attention_mask"].bool()
    prompts = [ids[real] for ids, real in zip(inputs["input_ids"], mask, strict=True)]
    found = _joined(prompts, answers, pad)
    more: dict[str, Any] = {}
    for key, value in inputs.items():
        if key in found.inputs or not isinstance(value, Tensor):
            continue
        if value.shape == mask.shape:  # such as token types
            parts = [torch.cat([row[real], row.new_zeros(len(new))]) for row, real, new in zip(value, mask, answers, strict=True)]
            value = nn.utils.rnn.pad_sequence(parts, batch_first=True)
        more[key] = value
    return Answered({**found.inputs, **more}, found.own)


def _joined(prompts: Sequence[Tensor], answers: Sequence[Tensor], pad: int) -> Answered:
    rows = [torch.cat([prompt, answer.to(prompt)]) for prompt, answer in zip(prompts, answers, strict=True)]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    places, device = torch.arange(ids.shape[1], device=ids.device), ids.device
    starts, ends = (torch.tensor([len(each) for each in parts], device=device)[:, None] for parts in (prompts, rows))
    real = places < ends
    return Answered({"input_ids": ids, "attention_mask": real.long()}, real & (places >= starts))


def distributions(model: nn.Module, example: Answered) -> Tensor:
    """Return the logits [T, V] of each id of the answers."""
    logits = model(**example.inputs, use_cache=False).logits
    return logits[:, :-1][example.own[:, 1:]].float()


def divergence(target: Tensor, drafter: Tensor) -> Tensor:
    """Return KL(p || q) a token, of logits [T, V], over the shared values: the heads may be padded differently."""
    size = min(target.shape[-1], drafter.shape[-1])
    p, q = (logits[:, :size].log_softmax(-1) for logits in (target, drafter))
    return F.kl_div(q, p, log_target=True, reduction="batchmean")


def with_eyes_of(target: Any, reader: Any) -> Any:
    """Return a model of the target's class with the language model `reader`, the target's frozen vision tower and a new projector.

    Raises:
        ValueError: if the class names its tower and projector differently from LLaVA.
    """
    if not all(hasattr(target.model, part) for part in ("vision_tower", "multi_modal_projector", "language_model")):
        raise ValueError(
            f"{type(target).__name__} has no vision_tower and multi_modal_projector to build a drafter from: train --kind text"
        )
    config = copy.deepcopy(target.config)
    config.text_config = copy.deepcopy(reader.config)
    model = type(target)(config)
    model.model.vision_tower.load_state_dict(target.model.vision_tower.state_dict())
    model.model.language_model.load_state_dict(reader.model.state_dict())
    model.lm_head.load_state_dict(reader.lm_head.state_dict())
    model.model.vision_tower.requires_grad_(False)
    return model


class _Target(NamedTuple):
    model: Any
    family: Any


class _Session(NamedTuple):
    """What a view of prompts as text looks at in a session."""

    target: _Target


@dataclass
class Course:
    """Training examples from `target`'s answers to batches of prompts; the last batch is left out.

    A drafter that `sees` reads the pictures in three of four steps, or always without `words`. Otherwise it reads the prompts through one
    of the text views `words` in turn. `hard` examples are the answers only, others the target's distributions on them.
    """

    target: Any
    pad: int
    words: Sequence[View]
    read: Callable[[int], Mapping[str, Any]]  # batch by number -> what the processor returned, on the target's device
    said: Sequence[Sequence[Tensor]]  # [batch][row] the answers' ids
    sees: bool = False
    hard: bool = False
    known: dict[int, Tensor] = field(default_factory=dict, compare=False)  # distributions of batches that were asked for

    def loss(self, drafter: nn.Module, step: int) -> Tensor:
        """Return the loss of `drafter` at `step`, a function of `step` alone."""
        batch = step % (len(self.said) - 1)
        inputs, said = self.read(batch), self.said[batch]
        seen = whole = with_answers(inputs, said, self.pad)
        if not self.sees or (self.words and step % 4 == 3):
            view = self.words[(step // 4 if self.sees else step) % len(self.words)]
            seen = with_answers(view(inputs, _Session(_Target(self.target, family_of(self.target)))), said, self.pad)
        q = distributions(drafter, seen)
        return F.cross_entropy(q, seen.said) if self.hard else divergence(self._distribution(whole, batch), q)

    @torch.no_grad()
    def _distribution(self, example: Answered, batch: int) -> Tensor:
        """The target's distribution; kept where the vocabulary is small."""
        if batch in self.known:
            return self.known[batch]
        distribution = distributions(self.target, example)
        if distribution.shape[-1] <= 4096:
            self.known[batch] = distribution
        return distribution
