"""Feature drafters: one decoder layer that reads the target's hidden states and predicts their continuation (EAGLE, Li et al. 2024 and
2025).
Every column of the drafter pairs a value with the state before it: the target's for committed values, the drafter's own for draft tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from mmspec.drafters.features.eagle3_parts import MidLayer, SharedHead
from mmspec.drafters.features.eagle_guide import FeatureGuide
from mmspec.drafters.features.reading import Columns
from mmspec.drafters.guided import llama_sizes
from mmspec.models.target import HFSession


class FeatureNet(nn.Module, ABC):
    """Base class of feature drafters.

    Args:
        reads: hidden states of the target that are read, concatenated, numbered as in `mmspec.models.stack`.
        sizes: options of the LlamaConfig of the drafter's layer.

    Attributes:
        width: width of the target's states.
        window: reach of the layer's attention, None for all.
        embed_tokens: the drafter's own embedding, None to use the target's.

    Raises:
        ValueError: if `sizes` describe no layer.
    """

    kind: ClassVar[str]

    def __init__(self, reads: Sequence[int], sizes: Mapping[str, Any], **rest: Any):
        super().__init__()
        self.config = {"reads": list(reads), "sizes": dict(sizes), **rest}
        self.reads = tuple(reads)
        try:
            self.llama = LlamaConfig(**{"num_hidden_layers": 1, "attn_implementation": "sdpa", **sizes})
        except (TypeError, ValueError, StrictDataclassError) as error:
            raise ValueError(f"the sizes of this {self.kind} drafter make no layer: {' '.join(str(error).split())}") from None
        self.hidden = self.width = self.llama.hidden_size
        self.window: int | None = getattr(self.llama, "sliding_window", None)
        self.rotary = LlamaRotaryEmbedding(self.llama)
        self.embed_tokens: nn.Embedding | None = None

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target of transformers' `config`: one layer of its sizes."""
        return {"sizes": llama_sizes(config)}

    def reading(self, columns: Columns) -> Columns:
        """Return the columns this drafter reads of a prompt: by default all of them, pictures as the target's decoder reads them."""
        return columns

    @abstractmethod
    def take(self, features: Tensor) -> Tensor:
        """Map the target's states [B, M, F] to the drafter's width, [B, M, H]."""
        ...

    def check_sight(self, session: HFSession) -> None:
        """Raise ValueError if this drafter cannot read the vision inputs of the session's target."""

    def enter(self, state: Tensor, level: int, beside: Tensor | None) -> Tensor:
        """Return the input state [B, M, H] of a level.

        Args:
            state: [B, M, H] the target's states at level 0, the drafter's own from level 1 on.
            level: number of draft tokens before.
            beside: [B, M, H] or [B, 1, H] what `reading` put beside the columns, or None.
        """
        return state

    @abstractmethod
    def forward(self, state: Tensor, value: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Return the next states [B, M, H].

        Args:
            state: [B, M, H] states before each value.
            value: [B, M, D] embeddings of the values.
            positions: [B, M] positions.
            mask: [B, 1, M, S] bool.
            cache: the layer's cache.
        """
        ...

    @abstractmethod
    def own_logits(self, state: Tensor, head: Any) -> Tensor:
        """Return logits over the drafter's values: the target's, unless `vocabulary` is set."""
        ...

    @property
    def vocabulary(self) -> Tensor | None:
        """The target id of each of the drafter's values; None if they are the same."""
        return None

    def logits(self, state: Tensor, head: Any, size: int) -> Tensor:
        """Return logits over the target's `size` values; -inf for those the drafter lacks."""
        own, known = self.own_logits(state, head), self.vocabulary
        return own if known is None else own.new_full((*own.shape[:-1], size), -torch.inf).index_copy_(-1, known, own)

    def guide(self, session: HFSession) -> "FeatureGuide":
        """Return the guide of one generation on the target session `session`."""
        return FeatureGuide(self, session)

    def rotate(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of the rotary embedding at `positions` [B, M]."""
        return self.rotary(like, positions)


class Eagle1(FeatureNet):
    """EAGLE and EAGLE-2 (Li et al. 2024): predicts the target's next last hidden state from the previous one and the value after it.

    The layer has no input norm, and the target's own head reads its output, as in the published checkpoints.

    Args:
        sizes: options of the LlamaConfig of the layer.
        bias: the fusing projection has a bias.
        own_embedding: the drafter has its own embedding.
    """

    kind = "eagle1"

    def __init__(self, sizes: Mapping[str, Any], bias: bool = True, own_embedding: bool = False):
        super().__init__((-1,), sizes, bias=bias, own_embedding=own_embedding)
        del self.config["reads"]
        if own_embedding:
            self.embed_tokens = nn.Embedding(self.llama.vocab_size, self.hidden)
        self.fc = nn.Linear(2 * self.hidden, self.hidden, bias=bias)
        self.layers = nn.ModuleList([LlamaDecoderLayer(self.llama, 0)])
        self.layers[0].input_layernorm = nn.Identity()

    def take(self, features: Tensor) -> Tensor:
        """Map the target's states [B, M, F] to the drafter's width; see `FeatureNet.take`."""
        return features

    def forward(self, state: Tensor, value: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Return the next states; see `FeatureNet.forward`."""
        x = self.fc(torch.cat([value, state], -1))
        rope = self.rotate(x, positions)
        return self.layers[0](x, attention_mask=mask, position_embeddings=rope, past_key_values=cache, use_cache=True)

    def own_logits(self, state: Tensor, head: Any) -> Tensor:
        """Return logits over the drafter's own vocabulary; see `FeatureNet.own_logits`."""
        return head(state)


class Eagle3(FeatureNet):
    """EAGLE-3 (Li et al. 2025): reads low, middle and high hidden states, predicts no features, and may draft over a part of the
    vocabulary.
    `d2t` [values] is added to a drafter id to get the target's; `t2d` [size] marks the target ids that the drafter knows.

    Args:
        reads: hidden states of the target, numbered as in `mmspec.models.stack`.
        sizes: options of the LlamaConfig of the layer.
        size: number of values of the target.
        values: number of values of the drafter; 0 for all.
        norm_before_residual: the residual stream is the normed state.
        own_embedding: the drafter has its own embedding.
        target_hidden: width of the target's states where the drafter is narrower; needs `own_embedding`.
        norm_before_fc: one norm over the concatenated states.
        fc_norm: one norm per state.
        norm_output: the state passed on is the normed one.
        shared_head: the rows of the target's head for the drafter's values, not trained and not saved, instead of a head of its own.

    Raises:
        ValueError: for options that contradict one another.
    """

    kind = "eagle3"
    d2t: Tensor
    t2d: Tensor

    def __init__(
        self,
        reads: Sequence[int],
        sizes: Mapping[str, Any],
        size: int,
        values: int = 0,
        norm_before_residual: bool = False,
        own_embedding: bool = False,
        target_hidden: int = 0,
        norm_before_fc: bool = False,
        fc_norm: bool = False,
        norm_output: bool = False,
        shared_head: bool = False,
    ):
        values = values or size
        options = {"size": size, "values": values, "norm_before_residual": norm_before_residual, "own_embedding": own_embedding}
        variants = {"norm_before_fc": norm_before_fc, "fc_norm": fc_norm, "norm_output": norm_output, "shared_head": shared_head}
        super().__init__(reads, sizes, **options, target_hidden=target_hidden, **variants)
        if values > size:
            raise ValueError(f"values is {values}, but the target has {size}: the drafter's vocabulary must be a part of the target's")
        self.width, self.norm_output, self.shared_head = target_hidden or self.hidden, norm_output, shared_head
        if shared_head and self.width != self.hidden:
            raise ValueError(f"the target is {self.width} wide, the drafter {self.hidden}: it cannot share the head; shared_head=False")
        if self.width != self.hidden and not own_embedding:
            raise ValueError(
                f"the target is {self.width} wide, the drafter {self.hidden}: it cannot share the embedding; own_embedding=True"
            )
        wide, eps = len(self.reads) * self.width, self.llama.rms_norm_eps
        self.input_norm = LlamaRMSNorm(wide, eps) if norm_before_fc else None
        self.fc_norm = nn.ModuleList(LlamaRMSNorm(self.width, eps) for _ in self.reads) if fc_norm else None
        self.fc = nn.Linear(wide, self.hidden, bias=False)
        self.midlayer = MidLayer(self.llama, norm_before_residual)
        self.norm = LlamaRMSNorm(self.hidden, self.llama.rms_norm_eps)
        self.lm_head = SharedHead(values) if shared_head else nn.Linear(self.hidden, values, bias=False)
        if own_embedding:
            self.embed_tokens = nn.Embedding(size, self.hidden)
        self.register_buffer("d2t", torch.zeros(values, dtype=torch.long))
        self.register_buffer("t2d", torch.arange(size) < values)

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target with transformers' `config`; see `FeatureNet.fit`. Every state is normed: sizes differ widely."""
        layers = config.num_hidden_layers
        middle = layers // 2
        low, high = (2, layers - 3) if layers > 6 else (max(middle - 1, 0), middle + 1)  # the papers' choice, or its neighbours
        return {**super().fit(config), "reads": (low, middle, high), "size": config.vocab_size, "fc_norm": True}

    def know(self, ids: Tensor) -> None:
        """Make `ids` [values], ascending, the drafter's vocabulary."""
        self.d2t.copy_(ids - torch.arange(len(ids), device=ids.device))
        self.t2d.zero_()[ids] = True

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Raise ValueError unless the maps between the vocabularies in `weights` agree and stay inside the target's."""
        d2t, t2d = weights["d2t"].long(), weights["t2d"].bool()
        if len(d2t) == len(t2d):
            if d2t.any():
                raise ValueError(f"tensor d2t moves ids, but the drafter has all {len(t2d)} values of the target: all zeros are needed")
            return
        ids = d2t + torch.arange(len(d2t), device=d2t.device)
        if ids.min() < 0 or ids.max() >= len(t2d):
            raise ValueError(
                f"tensor d2t leads to target ids {int(ids.min())} to {int(ids.max())}, but there are {len(t2d)}: it holds offsets, not ids"
            )
        if len(ids.unique()) != len(ids) or not t2d[ids].all() or int(t2d.sum()) != len(ids):
            raise ValueError(f"tensors d2t and t2d disagree: {len(ids.unique())} target ids against {int(t2d.sum())}, not the same ones")

    def start_from(self, target: Any) -> None:
        """Initialise with the rows of the target's head for the drafter's vocabulary. Call `know` first."""
        self.attach(target)
        if isinstance(self.lm_head, nn.Linear):
            weight = target.get_output_embeddings().weight.detach()
            self.lm_head.weight.data.copy_(weight if self.vocabulary is None else weight[self.vocabulary])

    def attach(self, target: Any) -> None:
        """Take the shared head's rows of `target`; nothing for a head of its own. ValueError if the target has none to share."""
        if isinstance(self.lm_head, SharedHead):
            self.lm_head.attach(target, None if self.vocabulary is None else self.d2t, self.norm.weight)

    def guide(self, session: HFSession) -> FeatureGuide:
        """Return the guide of one generation on the target session `session`."""
        self.attach(session.target.model)
        return super().guide(session)

    @property
    def vocabulary(self) -> Tensor | None:
        """The target id of each of the drafter's values; see `FeatureNet.vocabulary`."""
        if self.lm_head.out_features == len(self.t2d):
            return None
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def take(self, features: Tensor) -> Tensor:
        """Map the target's states [B, M, F] to the drafter's width; see `FeatureNet.take`."""
        x = features if self.input_norm is None else self.input_norm(features)
        if self.fc_norm is not None:
            x = torch.cat([norm(part) for norm, part in zip(self.fc_norm, x.split(self.width, -1), strict=True)], -1)
        return self.fc(x)

    def forward(self, state: Tensor, value: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Return the next states; see `FeatureNet.forward`."""
        out = self.midlayer(state, value, mask, self.rotate(state, positions), cache)
        return self.norm(out) if self.norm_output else out

    def own_logits(self, state: Tensor, head: Any) -> Tensor:
        """Return logits over the drafter's own vocabulary; see `FeatureNet.own_logits`."""
        return self.lm_head(state if self.norm_output else self.norm(state))
