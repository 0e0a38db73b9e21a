"""DFlash (arXiv 2602.06036) and DSpark (arXiv 2607.05147): block drafters whose layers read context features of the target.

States of several target layers are joined and projected to one context feature a value. Every layer of the drafter makes keys and values of
them, as it does of its own columns: the pending token and mask columns behind it, which see the whole context and one another. One forward
gives the distributions of a block.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from torch.nn.functional import embedding, scaled_dot_product_attention
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding

from mmspec.drafters.block.guide import BlockColumns, BlockGuide
from mmspec.drafters.block.heads import ConfidenceHead, MarkovHead
from mmspec.drafters.block.layers import BlockLayer, block_sights
from mmspec.drafters.features.eagle3_parts import DraftVocabulary, over_target
from mmspec.drafters.guided import Fresh, llama_sizes
from mmspec.models.slot_cache import SlotCache
from mmspec.models.target import HFSession

_SLIDING = "sliding_attention"


class DFlash(DraftVocabulary):
    """DFlash: the draft tokens of a block are independent of one another, given the context. q is their product.

    With `markov`, each also depends on the path to it (DSpark): q is the product of these conditional distributions.

    Args:
        reads: hidden states of the target that are read, numbered as in `mmspec.models.stack`.
        sizes: options of the Qwen3Config of the layers; `layer_types` and `sliding_window` are kept.
        size: number of values of the target.
        layers: number of layers.
        block: columns of a block: the pending token and `block` - 1 masks.
        from_anchor: the pending token's column predicts a draft token, too.
        mask_id: the value that masks are embedded as; None for an embedding of their own.
        embedding_scale: values are embedded by the target's bare table times this; None: by its embedding.
        values: number of values of the drafter; 0 for all.
        shared_head: the target's head, or its rows for the drafter's values, instead of a head of its own.
        fc_norm: one norm for each hidden state that is read.
        causal: for each layer, whether columns of a block see earlier ones only; none does by default.
        markov: rank of the Markov head; 0 for none.
        markov_kind: "vanilla", "gated" or "rnn".
        confidence: add a head that estimates acceptance.
        anchors: blocks of a window in training.

    Raises:
        ValueError: for options that contradict one another.
    """

    kind = "dflash"

    def __init__(
        self,
        reads: Sequence[int],
        sizes: Mapping[str, Any],
        size: int,
        layers: int = 1,
        block: int = 8,
        from_anchor: bool = False,
        mask_id: int | None = None,
        embedding_scale: float | None = None,
        values: int = 0,
        shared_head: bool = True,
        fc_norm: bool = False,
        causal: Sequence[bool] = (),
        markov: int = 0,
        markov_kind: str = "vanilla",
        confidence: bool = False,
        anchors: int = 64,
    ):
        super().__init__()
        self.config = {"reads": list(reads), "sizes": dict(sizes), "size": size, "layers": layers, "block": block, "fc_norm": fc_norm}
        self.config |= {"from_anchor": from_anchor, "mask_id": mask_id, "embedding_scale": embedding_scale, "causal": list(causal)}
        self.config |= {"values": values, "shared_head": shared_head, "anchors": anchors}
        self.config |= {"markov": markov, "markov_kind": markov_kind, "confidence": confidence}
        self.most = block if from_anchor else block - 1
        if min(layers, self.most, anchors, len(reads)) < 1 or values > size or len(causal) not in (0, layers):
            raise ValueError(
                f"layers is {layers}, block {block}, anchors {anchors}, reads {list(reads)}, values {values} of {size} and causal "
                f"{list(causal)}: a {self.kind} drafter needs at least one of each, draft tokens in a block, and causal for every layer"
            )
        if mask_id is not None and not 0 <= mask_id < size:
            raise ValueError(f"mask_id is {mask_id}, but the target has values 0 to {size - 1}")
        self.reads, self.extra, self.cached, self.blind, self.anchors = tuple(reads), block, layers, not markov, anchors
        self.mask_id, self.embedding_scale, self.causal = mask_id, embedding_scale, tuple(causal) or (False,) * layers
        self.layer_config = config = self._config(sizes, layers)
        self.hidden = self.width = config.hidden_size
        wide, eps = len(self.reads) * self.hidden, config.rms_norm_eps
        self.fc_norm = nn.ModuleList(Qwen3RMSNorm(self.hidden, eps) for _ in reads) if fc_norm else None
        self.fc = nn.Linear(wide, self.hidden, bias=False)
        self.hidden_norm = Qwen3RMSNorm(self.hidden, eps)
        self.layers = nn.ModuleList(BlockLayer(config, k) for k in range(layers))
        self.norm = Qwen3RMSNorm(self.hidden, eps)
        self.rotary = Qwen3RotaryEmbedding(config)
        self.mask = nn.Parameter(0.02 * torch.randn(self.hidden)) if mask_id is None else None
        self.lm_head = None
        if values or not shared_head:
            self.set_vocabulary(size, values or size, self.hidden, shared_head)
        self.shared_head = shared_head and self.lm_head is not None
        self.markov_head = MarkovHead(size, values or size, markov, self.hidden, markov_kind) if markov else None
        self.confidence_head = ConfidenceHead(self.hidden + markov) if confidence else None

    def _config(self, sizes: Mapping[str, Any], layers: int) -> Any:
        sliding = _SLIDING in (sizes.get("layer_types") or ())
        try:
            return Qwen3Config(**{**sizes, "num_hidden_layers": layers, "use_sliding_window": sliding})
        except (TypeError, ValueError, StrictDataclassError) as error:
            raise ValueError(f"the sizes of this {self.kind} drafter make no layer: {' '.join(str(error).split())}") from None

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Choose options for a target: a seventh of its layers, at most 5, of its sizes.

        Args:
            config: transformers' config of the target's decoder.

        Returns:
            The options.
        """
        sizes, layers, attends = llama_sizes(config), config.num_hidden_layers, hasattr(config, "num_attention_heads")
        heads = sizes["num_attention_heads"]
        sizes.setdefault("num_key_value_heads", heads)
        sizes |= {"head_dim": (getattr(config, "head_dim", None) if attends else None) or config.hidden_size // heads}
        chosen = {"reads": spread_states(layers), "layers": max(1, min(5, layers // 7)), "fc_norm": True}
        return {"sizes": sizes, "size": config.vocab_size, **chosen}

    def start_from(self, target: Any) -> None:
        """Initialise the masks with the mean of the target's embeddings, and a head of its own with the target's rows."""
        super().start_from(target)
        if self.mask is not None:
            self.mask.data.copy_(target.get_input_embeddings().weight.detach().float().mean(0))

    def embedding(self, target: Any, usual: Any) -> Any:
        """Return the embedding that values are read by, `usual` being the target's; see `BlockNet.embedding`."""
        if self.embedding_scale is None:
            return usual
        table, scale = target.get_input_embeddings().weight, self.embedding_scale
        return lambda ids: embedding(ids, table) * scale

    def take(self, features: Tensor) -> Tensor:
        """Project the target's states.

        Args:
            features: [B, M, F] states side by side.

        Returns:
            Context features [B, M, H].
        """
        if self.fc_norm is not None:
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, features.split(self.width, -1), strict=True)], -1)
        return self.hidden_norm(self.fc(features))

    def block_values(self, embed: Any, anchor: Tensor) -> Tensor:
        """Embed blocks.

        Args:
            embed: the embedding of values.
            anchor: [...] the values that blocks begin with.

        Returns:
            [..., block, H].
        """
        masks = self.extra - 1
        if self.mask_id is not None:
            return embed(nn.functional.pad(anchor[..., None], (0, masks), value=self.mask_id))
        first = embed(anchor)[..., None, :]
        assert self.mask is not None
        return torch.cat([first, self.mask.to(first.dtype).expand(*anchor.shape, masks, -1)], -2)

    def forward(self, values: Tensor, context: Tensor, positions: Tensor, attend: Any) -> Tensor:
        """Return the states [B, Q, H] of block columns.

        Args:
            values: [B, Q, H] their embeddings.
            context: [B, M, H] context features.
            positions: [B, M + Q] positions of both.
            attend: see `BlockAttention`.
        """
        rope, x = self.rotary(values, position_ids=positions), values
        for layer in self.layers:
            x = layer(x, context, rope, attend)
        return self.norm(x)

    def run(self, fresh: Fresh, embed: Any, columns: BlockColumns, cache: SlotCache) -> Tensor:
        """Return the states of a block behind each row's newest value; see `BlockNet.run`."""
        slot = torch.arange(columns.view, device=columns.slots.device)
        seen = (slot < columns.lengths[:, None] + self.extra)[:, None]
        between = columns.positions[:, -self.extra :, None] - slot
        masks = [self._seen(k, seen, between)[:, None] for k in range(len(self.layers))]

        def attend(k: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = cache.update(key, value, k)
            return scaled_dot_product_attention(query, keys, values, attn_mask=masks[k], enable_gqa=True)

        values = self.block_values(embed, fresh.values[:, -1])
        return self(values, self.take(fresh.features), columns.positions, attend)[:, self.extra - self.most :]

    def _seen(self, k: int, seen: Tensor, between: Tensor) -> Tensor:
        """What of `seen` [B, Q or 1, S] bool layer `k` attends to, `between` [B, Q, S] being queries' positions minus keys'."""
        if self.causal[k]:
            seen = seen & (between >= 0)
        if self.layer_config.layer_types[k] == _SLIDING:
            seen = seen & (between.abs() < self.layer_config.sliding_window)
        return seen

    def blocks(self, features: Tensor, values: Tensor, anchors: Tensor) -> Tensor:
        """Run many blocks of a text, each behind the context before its anchor: for training.

        Args:
            features: [B, W, F] the target's states along the text.
            values: [B, A, block, H] the blocks' embeddings.
            anchors: [B, A] positions of their first values.

        Returns:
            States [B, A, most, H].
        """
        wide, many = features.shape[1], anchors.shape[1]
        columns = (anchors[..., None] + torch.arange(self.extra, device=anchors.device)).flatten(1)
        along = torch.arange(wide, device=anchors.device).expand(len(anchors), -1)
        size = self.extra * max(1, wide // self.extra)  # columns that attend in one step, as whole blocks: about as many as the context has
        parts = [slice(first, min(first + size, many * self.extra)) for first in range(0, many * self.extra, size)]
        sights = [block_sights(along, anchors, columns, part) for part in parts]

        def attend(k: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            found = []
            for part, (seen, between) in zip(parts, sights, strict=True):
                own = slice(wide + part.start, wide + part.stop)
                keys, held = (torch.cat([x[:, :, :wide], x[:, :, own]], 2) for x in (key, value))
                mask = self._seen(k, seen, between)[:, None]
                found.append(scaled_dot_product_attention(query[:, :, part], keys, held, attn_mask=mask, enable_gqa=True))
            return torch.cat(found, 2)

        states = self(values.flatten(1, 2), self.take(features), torch.cat([along, columns], 1), attend)
        return states.unflatten(1, (many, self.extra))[:, :, self.extra - self.most :]

    def feature(self, state: Tensor, previous: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return what `own_logits` and `confidence` read; see `BlockNet.feature`."""
        if self.markov_head is None:
            return state, None
        bias, before, memory = self.markov_head(state, previous, memory)
        return torch.cat([state, bias, before], -1), memory

    def own_logits(self, feature: Tensor, head: Any) -> Tensor:
        """Make logits over the drafter's own values.

        Args:
            feature: [..., R] what `feature` returned.
            head: the target's.

        Returns:
            [..., values].
        """
        own = (head if self.lm_head is None else self.lm_head)(feature[..., : self.hidden])
        if self.markov_head is None:
            return own
        return own + self.markov_head.markov_w2(feature[..., self.hidden : self.hidden + self.markov_head.rank])

    def logits(self, feature: Tensor, head: Any, size: int) -> Tensor:
        """Return logits over the target's `size` values; -inf for those the drafter lacks."""
        return over_target(self.own_logits(feature, head), self.vocabulary, size)

    def confidence(self, feature: Tensor) -> Tensor | None:
        """Return the logits of acceptance; None without a confidence head."""
        if self.confidence_head is None:
            return None
        state = feature[..., : self.hidden]
        if self.markov_head is None:
            return self.confidence_head(state)
        return self.confidence_head(torch.cat([state, feature[..., self.hidden + self.markov_head.rank :]], -1))

    def guide(self, session: HFSession) -> BlockGuide:
        """Return the guide of one generation on the target session `session`."""
        return BlockGuide(self, session)


class DSpark(DFlash):
    """DSpark: DFlash with a Markov head, a confidence head, and a draft token from the pending token's column."""

    kind = "dspark"

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`; the Markov head has a quarter of its width, at most rank 256."""
        heads = {"markov": max(1, min(256, config.hidden_size // 4)), "confidence": True, "from_anchor": True}
        return super().fit(config) | heads


def spread_states(layers: int) -> tuple[int, ...]:
    """Return five hidden states at even distances of a target of `layers` layers, as published for DFlash; of a small one three."""
    if layers < 9:
        middle = layers // 2
        return (max(middle - 1, 0), middle, middle + 1)
    return tuple(round(2 + i * (layers - 4) / 4) for i in range(5))
