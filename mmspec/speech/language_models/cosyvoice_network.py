"""CosyVoice's language model: Qwen2 over speech codes, whose prompts also hold embeddings of text and of two controls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.rows.changes import RowState
from mmspec.models.families.base import DecoderOnly, causal_mask, side_by_side, text_prompt
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache

EXTRAS = {2: 3, 3: 200}
"""Values beyond the codes by version: ends, and values that are never a target."""


@dataclass(frozen=True)
class CosyVoiceIds:
    """Ids of prompts: values of the head, then two controls of their own, then text.

    Args:
        version: 2 or 3.
        codes: number of codes.
    """

    version: int
    codes: int

    @property
    def values(self) -> int:
        """Number of values of the head."""
        return self.codes + EXTRAS[self.version]

    @property
    def start(self) -> int:
        """The control that begins a prompt."""
        return self.values if self.version == 2 else self.codes

    @property
    def task(self) -> int:
        """The control between text and codes."""
        return self.values + 1 if self.version == 2 else self.codes + 2

    @property
    def end(self) -> int:
        """The value behind the last code; the other values that are no codes end a row as well."""
        return self.codes if self.version == 2 else self.codes + 1

    @property
    def text(self) -> int:
        """Id of the first token of text."""
        return self.values + 2


def cosyvoice_network(config: Any, ids: CosyVoiceIds) -> Any:
    """Return an untrained language model of CosyVoice.

    Args:
        config: the `Qwen2Config` of its folder CosyVoice-BlankEN; `vocab_size` counts tokens of text.
        ids: the ids.

    Returns:
        A `Qwen2ForCausalLM` over values, with the embeddings of controls and text as `prompt_table`.

    Raises:
        ValueError: for a config with sliding windows.
    """
    import transformers as hf

    own = hf.Qwen2Config.from_dict(config.to_dict() | {"vocab_size": ids.values, "tie_word_embeddings": False, "pad_token_id": None})
    model = hf.Qwen2ForCausalLM(own).eval()
    if DecoderOnly.of(model).window is not None:
        raise ValueError("its config.json has sliding windows, which CosyVoice has not")
    model.lm_head = nn.Linear(own.hidden_size, ids.values, bias=ids.version == 2)
    model.prompt_table = nn.Embedding(2 + config.vocab_size, own.hidden_size)
    return model


class PromptEmbeddings(RowState):
    """The embeddings of a session's prompts [B, P, D], padded on the left."""

    by_row = ("embeds",)

    def __init__(self, embeds: Tensor):
        self.embeds = embeds


@dataclass(frozen=True)
class CosyVoiceFamily:
    """The engine's driver of `cosyvoice_network`. Prompt positions that are no values have ids of their own, from `values` on.

    Args:
        layers: number of layers.
        values: number of values.
        head: the head.
        codes: the embedding of values.
        cache_argument: the argument of the model's forward that takes the cache.
    """

    layers: int
    values: int
    head: Any
    codes: Any
    cache_argument: str

    @staticmethod
    def of(model: Any) -> "CosyVoiceFamily":
        """Return the family of `model`."""
        own = DecoderOnly.of(model)
        return CosyVoiceFamily(own.layers, model.config.vocab_size, model.lm_head, model.get_input_embeddings(), own.cache_argument)

    def prompt(self, model: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the ids and the mask of a prompt; see the family protocol."""
        ids, mask = text_prompt(inputs)
        places = self.values + torch.arange(ids.shape[1] - 1, -1, -1, device=ids.device)
        return torch.where(ids < self.values, ids, places), mask

    def begin(self, model: Any, inputs: Mapping[str, Tensor], capacity: int) -> tuple[SlotCache, PromptEmbeddings]:
        """Open the cache and embed the prompt; see the family protocol."""
        ids = inputs["input_ids"]
        told = model.prompt_table((ids - self.values).clamp_min(0))
        codes = model.get_input_embeddings()(ids.clamp(max=self.values - 1))
        return SlotCache(self.layers, capacity), PromptEmbeddings(torch.where((ids < self.values)[..., None], codes, told))

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: PromptEmbeddings, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run `model` on the columns of `layout`; see the family protocol."""
        out = model(
            inputs_embeds=self._embedded(model.get_input_embeddings(), layout.ids, state.embeds),
            attention_mask=causal_mask(layout, model),
            position_ids=layout.positions,
            use_cache=True,
            logits_to_keep=keep,
            output_hidden_states=bool(states),
            **{self.cache_argument: cache},
        )
        return out.logits[:, -keep:], side_by_side(out.hidden_states, states)

    def embedded(self, ids: Tensor, state: PromptEmbeddings) -> Tensor:
        """Return embeddings [B, M, D] of any ids of a session."""
        return self._embedded(self.codes, ids, state.embeds)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits over the values from last hidden states."""
        return self.head(hidden)

    def _embedded(self, table: Any, ids: Tensor, embeds: Tensor) -> Tensor:
        length = embeds.shape[1]
        place = (length - 1 - (ids - self.values)).clamp(0, length - 1)
        given = embeds.gather(1, place[..., None].expand(*place.shape, embeds.shape[-1]))
        return torch.where((ids >= self.values)[..., None], given, table(ids.clamp(max=self.values - 1)))
