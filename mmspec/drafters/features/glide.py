"""GLIDE (Du et al. 2024): one small decoder layer that reads embeddings and the keys and values the target has cached.

Besides its own text, every column attends to the target's last layer at all values committed before the draft: a draft token of depth d
skips the d draft tokens before it. A column's own keys depend on its embedding alone, so committed values need not be run again. The
target's slots are read in place; nothing is copied.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

from mmspec.core.records import PAD, Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState, SessionRowState
from mmspec.drafters.features.blocks import Blocks, llama_layer
from mmspec.drafters.guided import Fresh, check_width, head_of
from mmspec.models.compat.cache_name import CACHE, cache_keyword, cache_of
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.models.stack import stack
from mmspec.models.target import HFSession, HFTarget

_RESERVE = 192


@dataclass(frozen=True)
class LastLayer:
    """The target's last layer: how its keys are made, and how queries are rotated to match them."""

    layer: Any
    rotary: Any
    turn: Any  # the family's apply_rotary_pos_emb

    @staticmethod
    def of(target: Any) -> "LastLayer":
        """Return the last layer of `target`. ValueError for families whose keys are placed differently from Llama's."""
        config, layer = target.config.get_text_config(decoder=True), stack(target)[-1]
        ropes = getattr(config, "rope_parameters", None) or {}
        one = "mrope_section" not in ropes and not any(isinstance(rope, Mapping) for rope in ropes.values())
        attention, rotary = getattr(layer, "self_attn", None), getattr(target.get_decoder(), "rotary_emb", None)
        turn = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
        if not one or None in (attention, rotary, turn, getattr(layer, "input_layernorm", None)):
            raise ValueError(
                f"glide cannot read the keys of {type(target).__name__}: its last layer is not built as Llama's; use another drafter"
            )
        return LastLayer(layer, rotary, turn)

    def rope(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines at `positions` [B, M], in the dtype of `x`."""
        return self.rotary(x, position_ids=positions)

    def turned(self, query: Tensor, positions: Tensor) -> Tensor:
        """Return `query` [B, heads, M, width] rotated as the target would at `positions` [B, M]."""
        return self.turn(query, query, *self.rope(query, positions))[0]

    def keys(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values [B, heads, M, width] that the layer caches for its input `hidden` [B, M, H]."""
        held = _Held()
        self.layer.self_attn(
            hidden_states=self.layer.input_layernorm(hidden),
            position_embeddings=self.rope(hidden, positions),
            attention_mask=None,
            **cache_keyword(self.layer.self_attn, held),
            position_ids=positions,
        )
        return held.keys, held.values

    @torch.no_grad()
    def check(self, target: Any) -> None:
        """Raise ValueError unless `keys` gives what `target` caches."""
        ids = torch.arange(6, device=target.device)[None] % target.config.get_text_config(decoder=True).vocab_size
        out = target(ids, use_cache=True, output_hidden_states=True)
        try:
            found = self.keys(out.hidden_states[-2], torch.arange(6, device=ids.device)[None])
            cached = cache_of(out).layers[-1]
            close = [_close(a, b) for a, b in zip(found, (cached.keys, cached.values), strict=True)]
        except (TypeError, AttributeError, RuntimeError):
            close = [False]
        if not all(close):
            raise ValueError(
                f"the keys {type(target).__name__} caches do not follow from what enters its last layer: train another kind of drafter"
            )


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= 1e-2 * b.abs().max())


class _Held:
    """A cache that stores the keys and values it is given."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = keys, values
        return keys, values


@dataclass(frozen=True)
class Across:
    """What a forward reads of the target."""

    keys: Tensor  # [B, kv heads, S, width]
    values: Tensor  # [B, kv heads, S, width]
    visible: Tensor  # [B, M or 1, S] bool
    layer: LastLayer


class Cross(nn.Module):
    """Attention from the drafter's columns to the target's cached keys and values."""

    def __init__(self, hidden: int, heads: int, width: int):
        super().__init__()
        self.heads, self.width = heads, width
        self.q_proj = nn.Linear(hidden, heads * width, bias=False)
        self.o_proj = nn.Linear(heads * width, hidden, bias=False)

    def forward(self, x: Tensor, positions: Tensor, across: Across) -> Tensor:
        """Return the attention output [B, M, H] of `x` [B, M, H] at `positions` [B, M]."""
        query = rearrange(self.q_proj(x), "b n (h d) -> b h n d", h=self.heads)
        query = across.layer.turned(query, positions)
        something = across.visible.any(-1, keepdim=True)
        mask = across.visible | ~something  # a column that sees nothing would be NaN: its share is zero
        keys, values = across.keys.to(query.dtype), across.values.to(query.dtype)
        found = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask[:, None], enable_gqa=True)
        return self.o_proj(rearrange(found, "b h n d -> b n (h d)")) * something


class Glide(nn.Module):
    """GLIDE (Du et al. 2024): one Llama layer with cross-attention to the target's last layer.

    To train one, call `start_from` first, because the target's keys are recomputed from recorded states.

    Args:
        sizes: options of the LlamaConfig of the layer. Its attention heads must be a multiple of `kv_heads`.
        kv_heads: key-value heads of the target's last layer.
        kv_width: width of those heads.

    Raises:
        ValueError: if the attention heads do not divide.
    """

    kind = "glide"
    reads: tuple[int, ...] = (-2,)

    def __init__(self, sizes: Mapping[str, Any], kv_heads: int, kv_width: int):
        super().__init__()
        self.config = {"sizes": dict(sizes), "kv_heads": kv_heads, "kv_width": kv_width}
        llama = Blocks.of({**sizes, "model_type": "llama"}, 1).config
        if kv_heads < 1 or llama.num_attention_heads % kv_heads:
            raise ValueError(f"{llama.num_attention_heads} attention heads cannot share the target's {kv_heads}: take a multiple of them")
        self.hidden = llama.hidden_size
        self.rotary = LlamaRotaryEmbedding(llama)
        self.self_attn, self.mlp = LlamaAttention(llama, 0), LlamaMLP(llama)
        self.cross_attn = Cross(self.hidden, llama.num_attention_heads, kv_width)
        self.norms = nn.ModuleList(LlamaRMSNorm(self.hidden, llama.rms_norm_eps) for _ in range(4))  # before each part, and after all
        self._layer: tuple[LastLayer, ...] = ()  # in a tuple, or the target would become a part of the drafter

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`: one layer of its sizes."""
        sizes = llama_layer(config)
        heads = sizes["num_attention_heads"]
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        del sizes["model_type"]
        return {"sizes": sizes, "kv_heads": getattr(config, "num_key_value_heads", None) or heads, "kv_width": width}

    def start_from(self, target: Any) -> None:
        """Prepare for training on `target`. ValueError where its keys do not follow from recorded states."""
        layer = LastLayer.of(target)
        layer.check(target)
        self._layer = (layer,)

    @property
    def layer(self) -> LastLayer:
        """The target's last layer, set by `start_from`."""
        if not self._layer:
            raise ValueError("glide needs the target's keys to be trained: call its start_from(target) first")
        return self._layer[0]

    def forward(self, value: Tensor, positions: Tensor, mask: Tensor, cache: Any, across: Across) -> Tensor:
        """Return the input [B, M, H] of the target's head from the values' embeddings; `mask` [B, 1, M, S] bool covers the drafter's own
        text.
        """
        own, over, inside, after = self.norms
        rope = self.rotary(value, position_ids=positions)
        x = value + self.self_attn(own(value), position_embeddings=rope, attention_mask=mask, **{CACHE: cache})[0]
        x = x + self.cross_attn(over(x), positions, across)
        return after(x + self.mlp(inside(x)))

    def guide(self, session: HFSession) -> "GlideGuide":
        """Return the guide of one generation on the target session `session`."""
        return GlideGuide(self, session)


@dataclass
class Made(RowState):
    """Outputs of the forwards of the current draft."""

    out: Any = None  # [B, n, H] of the last one's new columns


@dataclass(frozen=True)
class Reader:
    """Family of GLIDE nets: lets an `HFSession` run one beside `session`, the target's, whose slots it reads."""

    session: HFSession
    layer: LastLayer
    embed: Any
    head: Any

    def forward(
        self, model: Glide, layout: Layout, cache: SlotCache, state: Made, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run `model` on the columns of `layout`; see the family protocol."""
        out = model(self.embed(layout.ids), layout.positions, layout.visible[:, None], cache, self.across())
        state.out = out[:, -keep:]
        return self.head(state.out), None

    def across(self) -> Across:
        """Return the committed slots of the target; slots after them belong to drafts."""
        store, view = self.session.cache.slot_layers[-1], self.session.view(0)
        keys, values = (x[:, :, :view] for x in (store.keys, store.values))  # type: ignore[index]
        committed = torch.arange(view, device=keys.device) < self.session.lengths[:, None]
        return Across(keys, values, committed[:, None], self.layer)


class GlideGuide(SessionRowState):
    """Guide of a GLIDE net: its own session over the whole text, and the committed values it has not run yet."""

    by_row = ("fresh",)

    most = None

    def __init__(self, net: Glide, session: HFSession):
        model = session.target.model
        check_width(net.kind, net.hidden, model)
        wanted, found = net.config, net.fit(model.config.get_text_config(decoder=True))
        for name in ("kv_heads", "kv_width"):
            if wanted[name] != found[name]:
                raise ValueError(f"this glide drafter has {name} {wanted[name]}, but the target {found[name]}: use one trained for it")
        assert session.context is not None, "the target has already run its prompt"
        reader = Reader(session, LastLayer.of(model), model.get_input_embeddings(), head_of(model))
        target = HFTarget(net, reader, session.target.processors)  # type: ignore[arg-type]
        ids, lengths = session.context
        self.made = Made()
        self.session = HFSession(target, SlotCache(1, -(-(ids.shape[1] + _RESERVE) // 64) * 64), self.made, ids, lengths)
        self.begun = False
        self.fresh: Fresh | None = None

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        keep = verdict.keep[:, : draft.height + 1]
        values, real = verdict.values[:, : draft.height + 1], keep >= 0
        if not self.begun:  # the prompt's last value was the first pending token
            values = torch.cat([draft.nodes[:, : draft.roots], values], 1)
            real = torch.cat([draft.parents[:, : draft.roots] != PAD, real], 1)
        self.begun = True
        self.fresh = Fresh(values, values[..., None][..., :0], real).behind(self.fresh)

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        if self.fresh is None:
            return None
        self.fresh = self.fresh.packed()
        return self.fresh.rooted(pending)

    @torch.no_grad()
    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        return Scored(self.session.score(draft).p, self.made.out)

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        assert self.fresh is not None
        columns = torch.arange(self.fresh.real.shape[1], device=self.fresh.real.device)
        self.session.commit(torch.where(self.fresh.real, columns, -1), len(columns))
        self.fresh = None
