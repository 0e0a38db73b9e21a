"""Bark's two language models as families: prompts that are sums of two embeddings, attention by an explicit mask."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.processors.history import History, ban
from mmspec.models.compat.cache_name import cache_keyword
from mmspec.models.families.base import attention_mask, refuse_unsupported
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.speech.families.base import SpeechSampling, sampling_of


@dataclass(frozen=True, slots=True)
class BarkPrompt:
    """Ids [B, P], and ids `beside` [B, P] whose embeddings are added where they are not negative."""

    ids: Tensor
    mask: Tensor  # [B, P] bool
    beside: Tensor | None = None


@dataclass(frozen=True)
class BarkFamily:
    """`BarkSemanticModel` and `BarkCoarseModel`, whose prompts are `BarkPrompt`s.

    Prompt positions that are sums of two embeddings have ids of their own, from `size` on.
    """

    layers: int
    size: int

    @staticmethod
    def of(model: Any) -> "BarkFamily":
        """Return the family of `model`."""
        refuse_unsupported(model)
        return BarkFamily(model.config.num_layers, model.config.input_vocab_size)

    def prompt(self, model: Any, inputs: Any) -> tuple[Tensor, Tensor]:
        """Return the ids and the mask of a prompt; see the family protocol."""
        if inputs.beside is None:
            return inputs.ids, inputs.mask
        length = inputs.ids.shape[1]
        return (self.size + torch.arange(length - 1, -1, -1, device=inputs.ids.device)).expand(len(inputs.ids), -1), inputs.mask

    def begin(self, model: Any, inputs: Any, capacity: int) -> tuple[SlotCache, Tensor | None]:
        """Open the cache and the state of one generation; see the family protocol."""
        cache, embed = SlotCache(self.layers, capacity), model.input_embeds_layer
        if inputs.beside is None:
            return cache, None
        added = embed(inputs.beside.clamp_min(0)) * (inputs.beside >= 0)[..., None]
        return cache, embed(inputs.ids) + added

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Tensor | None, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, None]:
        """Run `model` on the columns of `layout`; see the family protocol."""
        embeds = model.input_embeds_layer(layout.ids.clamp(max=self.size - 1))
        if state is not None:
            place = (state.shape[1] - 1 - (layout.ids - self.size)).clamp(0, state.shape[1] - 1)
            given = state.gather(1, place[..., None].expand(*place.shape, state.shape[-1]))
            embeds = torch.where((layout.ids >= self.size)[..., None], given, embeds)
        with _explicit_mask_only(model):
            out = model(
                inputs_embeds=embeds,
                attention_mask=attention_mask(layout.visible, model),
                position_ids=layout.positions,
                **cache_keyword(model, cache),
                use_cache=True,
            )
        return out.logits[:, -keep:], None


@contextmanager
def _explicit_mask_only(model: Any) -> Iterator[None]:
    """Context without the model's own causal mask, which has `block_size` keys; the slot cache may have more, and `mask` is complete."""
    try:
        for block in model.layers:
            block.attn.is_causal = False
        yield
    finally:
        for block in model.layers:
            block.attn.is_causal = True


@dataclass(frozen=True)
class EndOnceLikely:
    """Processor: only `end` is allowed once its probability is above `least` (the class's `min_eos_p`)."""

    end: int
    least: float

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        others = torch.arange(scores.shape[-1], device=scores.device) != self.end
        likely = scores.float().softmax(-1)[..., self.end] > self.least
        return ban(scores, likely[..., None] & others)


def ragged(rows: list[list[int]], device: Any) -> BarkPrompt:
    """Return prompts of ids only."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return BarkPrompt(ids, torch.arange(width, device=device) >= width - lengths[:, None])


def stage_config(kind: Any, found: Any) -> Any:
    """Return a stage's generation config as a `kind`; checkpoints may hold it as a dict."""
    return found if isinstance(found, kind) else kind(**found)


def stage_sampling(config: Any) -> SpeechSampling:
    """Return a stage's own settings: greedy unless its generation config samples."""
    return sampling_of(config)


class PresetVoices(Mapping[str, Mapping[str, Tensor]]):
    """The voices of a `BarkProcessor` by name, each read when it is first used.

    Args:
        processor: the processor.
    """

    def __init__(self, processor: Any):
        self.processor, self.read = processor, {}

    def __getitem__(self, name: str) -> Mapping[str, Tensor]:
        if name not in self.read:
            if name not in self.processor.available_voice_presets:
                raise KeyError(name)
            self.read[name] = dict(self.processor("a", voice_preset=name, return_tensors="pt")["history_prompt"])
        return self.read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.processor.available_voice_presets)

    def __len__(self) -> int:
        return len(self.processor.available_voice_presets)
