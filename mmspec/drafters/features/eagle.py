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

from mmspec.drafters.features.eagle3_parts import DraftVocabulary, MidLayer, over_target
from mmspec.drafters.features.eagle_guide import FeatureGuide
from mmspec.drafters.features.reading import Columns
from mmspec.drafters.guided import llama_sizes
from mmspec.models.compat.cache_name import CACHE
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
        cached: number of layers with keys and values.
        most: largest number of draft tokens on a path, None for no bound.
        reads_drafts: draft tokens go through the layers, too.
        across: masks have a second part [B, 1, M, S], the committed columns.
        glancing: share of the net's own states that training replaces by the target's.

    Raises:
        ValueError: if `sizes` describe no layer.
    """

    kind: ClassVar[str]
    cached: int = 1
    most: int | None = None
    reads_drafts: bool = True
    across: bool = False
    glancing: float = 0.0

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
            mask: [B, 1, M, S] bool; [B, 2, M, S] with `across`.
            cache: the layer's cache.
        """
        ...

    def attends(self, level: int) -> bool:
        """Return True if the distributions after the nodes of `level` take a forward; without one they follow from their parents' states,
        by `advance`. Level 0 is the pending token's, and takes one.
        """
        return True

    def node_states(self, out: Tensor, value: Tensor) -> Tensor:
        """Return the states [B, M, S] of nodes from the output [B, M, H] of `forward` and the embeddings [B, M, D] of their values."""
        return out

    def advance(self, state: Tensor, value: Tensor, level: int) -> Tensor:
        """Return the states [B, M, S] of nodes of a `level` without a forward.

        Args:
            state: [B, M, S] their parents' states.
            value: [B, M, D] embeddings of their values.
            level: number of draft tokens up to theirs.
        """
        raise NotImplementedError(f"{self.kind} runs a forward at every level")

    def feature(self, state: Tensor, level: int) -> Tensor:
        """Return what `own_logits` reads, [B, M, H], for nodes of `level` with states [B, M, S]."""
        return state

    @abstractmethod
    def own_logits(self, state: Tensor, head: Any) -> Tensor:
        """Return logits over the drafter's values, those of the target unless `vocabulary` is set, for what `feature` returned."""
        ...

    @property
    def vocabulary(self) -> Tensor | None:
        """The target id of each of the drafter's values; None if they are the same."""
        return None

    def logits(self, state: Tensor, head: Any, size: int) -> Tensor:
        """Return logits over the target's `size` values; -inf for those the drafter lacks."""
        return over_target(self.own_logits(state, head), self.vocabulary, size)

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
        return self.layers[0](x, attention_mask=mask, position_embeddings=rope, **{CACHE: cache}, use_cache=True)

    def own_logits(self, state: Tensor, head: Any) -> Tensor:
        """Return logits over the drafter's own vocabulary; see `FeatureNet.own_logits`."""
        return head(state)


class Eagle3(DraftVocabulary, FeatureNet):
    """EAGLE-3 (Li et al. 2025): reads low, middle and high hidden states, predicts no features, and may draft over a part of the
    vocabulary.

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
        self.set_vocabulary(size, values, self.hidden, shared_head)
        if own_embedding:
            self.embed_tokens = nn.Embedding(size, self.hidden)

    @classmethod
    def fit(cls, config: Any) -> dict[str, Any]:
        """Return options for a target with transformers' `config`; see `FeatureNet.fit`. Every state is normed: sizes differ widely."""
        layers = config.num_hidden_layers
        middle = layers // 2
        low, high = (2, layers - 3) if layers > 6 else (max(middle - 1, 0), middle + 1)  # the papers' choice, or its neighbours
        return {**super().fit(config), "reads": (low, middle, high), "size": config.vocab_size, "fc_norm": True}

    def guide(self, session: HFSession) -> FeatureGuide:
        """Return the guide of one generation on the target session `session`."""
        self.attach(session.target.model)
        return super().guide(session)

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
