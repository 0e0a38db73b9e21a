"""The driver of decoder-only transformers models, and the masks all families share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mmspec.models.compat import argument_names, attention_of, is_stateful, mask_makers, takes_argument
from mmspec.models.compat.cache_name import CACHE, cache_name_of
from mmspec.models.compat.shared_states import reads_shared_states
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache

_VIEWS_KEYS = ("gpt_neox_japanese",)  # whose attention takes `view`s of cached keys
PIECE = 1024  # columns of a long prompt that one forward runs
UNMASKED_PIECE = 16384  # columns of a prompt's beginning, for which SDPA's causal kernel needs no mask
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


def attention_mask(visible: Tensor, model: Any) -> Tensor:
    """`visible` [B, M, S] as the 4-D mask the model's attention takes: bool for sdpa, additive for eager."""
    visible = visible[:, None]
    if attention_of_decoder(model) == "sdpa":
        return visible
    dtype = model.dtype
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, torch.finfo(dtype).min)


def causal_mask(layout: Layout, model: Any) -> Tensor | None:
    """The mask of a layout's columns as the model's attention takes it; None where SDPA's causal kernel does the same."""
    return None if layout.causal and attention_of_decoder(model) == "sdpa" else attention_mask(layout.visible, model)


def additive_mask(layout: Layout, dtype: torch.dtype) -> Tensor | None:
    """The mask of a layout's columns [B, 1, M, S] as SDPA adds it to the scores, made once for all layers; None where it needs none."""
    if layout.causal:
        return None
    visible = layout.visible[:, None]
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


def attention_of_decoder(model: Any) -> str:
    """The decoder's own attention: the other parts of a multimodal model may run another one."""
    return attention_of(getattr(model.config, "text_config", model.config))


def side_by_side(found: Sequence[Tensor] | None, states: Sequence[int]) -> Tensor | None:
    """Hidden states `states` of all that a model returned, concatenated [B, M, F]; None if none are requested."""
    return torch.cat([found[state] for state in states], -1) if found is not None and states else None


def configured_positions(config: Any) -> int | None:
    """The number of positions that a decoder's config names; None for none."""
    names = ("max_target_positions", "max_position_embeddings")
    return next((getattr(config, name) for name in names if getattr(config, name, None) is not None), None)


def refuse_unsupported(model: Any) -> None:
    """Raise ValueError for models whose state cannot be rolled back or masked."""
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or []) - set(_ATTENTION)
    if reads_shared_states(model):
        raise ValueError(f"{name} reads the keys and values of another model: give it as the drafter of that one")
    if is_stateful(model) or kinds:
        choosing = {kind for kind in kinds if kind.endswith(("indexed_attention", "compressed_attention", "sparse_attention"))}
        what = f"layers of kind {', '.join(sorted(choosing or kinds))}" if kinds else "a recurrent state"
        unknown = " that mmspec does not know, so that drafts cannot be rolled back"
        why = ", which choose the keys they read, so that no mask can be given" if choosing else unknown
        raise ValueError(f"{name} has {what}{why}: use plain transformers generation for this model")
    refuse_other_attention(model)


def refuse_other_attention(model: Any) -> None:
    """Raise ValueError for models whose attention takes no 4-D mask."""
    if attention_of_decoder(model) not in ("sdpa", "eager"):
        raise ValueError(
            f"{type(model).__name__} runs {attention_of_decoder(model)} attention, which takes no 4-D mask: "
            "load it with attn_implementation='sdpa'"
        )


def text_prompt(inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """`input_ids` [B, P] and their mask [B, P] bool, all ones if none is given. ValueError for missing ids or other shapes."""
    if "input_ids" not in inputs:
        raise ValueError(f"inputs has no input_ids (it has {', '.join(inputs) or 'nothing'}): pass what the tokenizer returned")
    ids = inputs["input_ids"]
    if ids.dim() != 2:
        raise ValueError(f"input_ids has shape {tuple(ids.shape)}: expected [batch, length]; ask the tokenizer for return_tensors='pt'")
    mask = inputs.get("attention_mask")
    return ids, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()


def refuse_unfit_decoder(model: Any) -> None:
    """Raise ValueError for decoder-only models that attend to later tokens, keep no cache or build their own masks."""
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    makers = mask_makers(model)
    if getattr(config, "is_decoder", None) is False and "create_bidirectional_mask" in makers:
        raise ValueError(f"{name} runs as an encoder, every token seeing those behind it: load it with is_decoder=True in its config")
    if cache_name_of(model) is None:
        raise ValueError(f"{name} keeps no key-value cache that can be rolled back: use plain transformers generation for this model")
    if not makers & {"create_causal_mask", "create_sliding_window_causal_mask", "create_masks_for_generate"}:
        raise ValueError(f"{name} builds its own attention mask, so drafts cannot be masked: use plain transformers generation for it")


def refuse_shared_positions(model: Any) -> None:
    """Raise ValueError for models whose positions cannot be given row by row."""
    if not takes_argument(model, "position_ids"):
        raise ValueError(
            f"{type(model).__name__} takes no position_ids, so rows of several lengths cannot be given their positions: "
            "use plain transformers generation for this model"
        )


@dataclass(frozen=True)
class DecoderOnly:
    """Causal language models that take `position_ids`.

    `window` is the sliding window and `chunk` the size of attention chunks, if any layer has them; `mixed` means that masks are given by
    kind of layer.
    """

    layers: int
    window: int | None = None
    mixed: bool = False
    chunk: int | None = field(default=None, kw_only=True)
    keeps: bool = field(default=True, kw_only=True)  # the model's forward takes `logits_to_keep`
    sliding: tuple[int, ...] = field(default=(), kw_only=True)  # the layers with a sliding window
    cache_argument: str = field(default=CACHE, kw_only=True)  # the argument of the model's forward that takes the cache

    own_masks: ClassVar[bool] = False  # `forward` makes masks of another kind, for every forward

    @classmethod
    def of(cls, model: Any) -> "DecoderOnly":
        """The family of `model`. ValueError for models it cannot drive."""
        refuse_unsupported(model)
        refuse_unfit_decoder(model)
        refuse_shared_positions(model)
        return cls.read(model)

    @classmethod
    def read(cls, model: Any, **more: Any) -> Self:
        """The family with the layers and masks that the config and the modelling module of `model` define."""
        config = model.config.get_text_config(decoder=True)
        kinds = getattr(config, "layer_types", None)
        sliding = "sliding_attention" in kinds if kinds is not None else "create_sliding_window_causal_mask" in mask_makers(model)
        window = getattr(config, "sliding_window", None) if sliding else None
        chunk = getattr(config, "attention_chunk_size", None) if kinds is not None and "chunked_attention" in kinds else None
        mixed = bool(window or chunk) and kinds is not None and len(set(kinds)) > 1
        named = {"cache_argument": cache_name_of(model) or CACHE}
        keeps = "logits_to_keep" in argument_names(model)
        each = ["sliding_attention"] * config.num_hidden_layers if kinds is None else kinds
        slides = [layer for layer, kind in enumerate(each) if window and kind == "sliding_attention"]
        return cls(config.num_hidden_layers, window, mixed, chunk=chunk, keeps=keeps, sliding=tuple(slides), **named | more)

    def prompt(self, model: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return text_prompt(inputs)

    def begin(self, model: Any, inputs: Mapping[str, Tensor], capacity: int) -> tuple[SlotCache, Any]:
        return SlotCache(self.layers, capacity, contiguous=model.config.model_type in _VIEWS_KEYS, sliding=self.sliding), None

    def positions_table(self, model: Any) -> int | None:
        """Positions that a model looks up, see `models.family.PositionsTable`. A rotary model runs past the length it was trained for."""
        config = model.config.get_text_config(decoder=True)
        return None if getattr(config, "rope_parameters", None) else configured_positions(config)

    def pieces(self, model: Any, state: Any) -> tuple[int, int] | None:
        """Long first pieces where attention needs no mask for them; a mask grows with columns times slots."""
        unmasked = not self.own_masks and self.window is None and self.chunk is None and attention_of_decoder(model) == "sdpa"
        return (UNMASKED_PIECE if unmasked else PIECE, PIECE)

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Any, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        return self.run(model, layout, cache, keep, states, position_ids=layout.positions)

    def run(
        self, model: Any, layout: Layout, cache: SlotCache, keep: int, states: Sequence[int], **extra: Any
    ) -> tuple[Tensor, Tensor | None]:
        """One call of `model` with this forward's ids, masks and cache, and `extra` arguments, which may replace `attention_mask`."""
        if "attention_mask" not in extra:
            extra["attention_mask"] = self._masks(model, layout, self._narrowed(layout, cache))
        if self.keeps:
            extra["logits_to_keep"] = keep
        extra[self.cache_argument] = cache
        out = model(input_ids=layout.ids, use_cache=True, output_hidden_states=bool(states), **extra)
        return out.logits[:, -keep:], side_by_side(out.hidden_states, states)

    def _narrowed(self, layout: Layout, cache: SlotCache) -> int:
        """The first slot that any column sees in a sliding window; from now on layers with such windows read no slot before it."""
        if self.window is None or layout.mask is not None or not cache.slides:
            return 0
        first = max(0, layout.floor - self.window + 1)
        cache.point(layout.slots, layout.view, first)
        return first

    def _masks(self, model: Any, layout: Layout, near: int = 0) -> Any:
        """The masks of one forward; None where attention needs none. In sliding windows only the slots from `near` on are read."""
        unmasked = layout.causal and attention_of_decoder(model) == "sdpa"
        masks: dict[str, Tensor | None] = {}
        if self.mixed or (self.window is None and self.chunk is None):
            masks["full_attention"] = causal_mask(layout, model)
        if self.window is not None:
            within = unmasked and layout.view - near < self.window + self.mixed  # transformers masks a view of the whole window itself
            masks["sliding_attention"] = None if within else attention_mask(layout.near(self.window, near), model)
        if self.chunk is not None:
            same = layout.positions[:, :, None] // self.chunk == layout.slot_positions[:, None, :] // self.chunk
            masks["chunked_attention"] = attention_mask(layout.visible & same, model)
        return masks if self.mixed else next(reversed(masks.values()))
