"""P-EAGLE: EAGLE-3's net with mask columns, so that one forward gives the distributions of all draft tokens.

The newest column pairs the pending token with the target's state before it, as in EAGLE-3. The columns behind it hold a mask and a learned
state, and see the columns before them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from mmspec.drafters.block.guide import BlockColumns, BlockGuide
from mmspec.drafters.features.eagle import Eagle3
from mmspec.drafters.guided import Fresh
from mmspec.models.compat.cache_name import CACHE
from mmspec.models.family import OwnValues
from mmspec.models.slot_cache import SlotCache
from mmspec.models.target import HFSession


class ParallelEagle(Eagle3):
    """P-EAGLE: draft tokens are independent of one another, given the context, and q is their product.

    PARD (An et al. 2025) drafts so with a whole model. Images in a prompt are read as the embeddings of their placeholders.

    Args:
        reads, sizes, size: as of `Eagle3`.
        tokens: draft tokens.
        deeper: further decoder layers, behind EAGLE-3's.
        mask_id: the value that masks are embedded as; None for an embedding of their own.
        kept: share of the columns of a depth that are trained at the next one (conditional drop-token sampling).
        rest: further options of `Eagle3`.

    Raises:
        ValueError: for sizes out of range, and as `Eagle3`.
    """

    kind = "p-eagle"
    blind = True

    def __init__(
        self,
        reads: Sequence[int],
        sizes: Mapping[str, Any],
        size: int,
        tokens: int = 4,
        deeper: int = 0,
        mask_id: int | None = None,
        kept: float = 0.7,
        **rest: Any,
    ):
        super().__init__(reads, sizes, size, **rest)
        if tokens < 1 or deeper < 0 or not 0 < kept <= 1 or (mask_id is not None and not 0 <= mask_id < size):
            raise ValueError(
                f"tokens is {tokens}, deeper {deeper}, kept {kept} and mask_id {mask_id}: give at least 1 token, 0 layers, a share "
                f"above 0 up to 1, and a value from 0 to {size - 1}"
            )
        self.config |= {"tokens": tokens, "deeper": deeper, "mask_id": mask_id, "kept": kept}
        self.most, self.extra, self.cached, self.mask_id, self.kept = tokens, tokens - 1, 1 + deeper, mask_id, kept
        self.deeper = nn.ModuleList(LlamaDecoderLayer(self.llama, 1 + k) for k in range(deeper))
        self.mask_hidden = nn.Parameter(torch.randn(len(self.reads) * self.width))
        self.mask = nn.Parameter(0.02 * torch.randn(self.hidden)) if mask_id is None else None

    def start_from(self, target: Any) -> None:
        """Initialise the masks with the mean of the target's embeddings, and the head as `Eagle3` does."""
        super().start_from(target)
        table = target.get_input_embeddings().weight
        if self.mask is not None and table.shape[1] == self.hidden:
            self.mask.data.copy_(table.detach().float().mean(0))

    def forward(self, state: Tensor, value: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Return the next states; see `FeatureNet.forward`."""
        rope = self.rotate(state, positions)
        x = self.midlayer(state, value, mask, rope, cache)
        for layer in self.deeper:
            x = layer(x, attention_mask=mask, position_embeddings=rope, **{CACHE: cache}, use_cache=cache is not None)
        return self.norm(x) if self.norm_output else x

    def masks(self, embed: Any, rows: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states and the embeddings of mask columns, both [rows, count, H].

        Args:
            embed: the embedding of values.
            rows: number of rows.
            count: number of columns.
            like: a tensor of the dtype that states have, on the device.
        """
        state = self.take(self.mask_hidden.to(like.dtype)).expand(rows, count, -1)
        if self.mask is not None:
            return state, self.mask.to(like.dtype).expand(rows, count, -1)
        return state, embed(torch.full((rows, count), self.mask_id or 0, device=like.device))

    def embedding(self, target: Any, usual: Any) -> Any:
        """Return the embedding that values are read by; see `BlockNet.embedding`."""
        return usual if self.embed_tokens is None else self.embed_tokens

    def run(self, fresh: Fresh, embed: Any, columns: BlockColumns, cache: SlotCache) -> Tensor:
        """Return the states behind each row's newest value and behind the masks; see `BlockNet.run`."""
        values = fresh.values.clamp(max=self.config["size"] - 1)  # placeholders may lie beyond the vocabulary
        state, mask = self.masks(embed, len(values), self.extra, fresh.features)
        slot = torch.arange(columns.view, device=columns.slots.device)
        seen = slot <= columns.slots[..., None]
        if self.window is not None:
            seen = seen & (columns.positions[..., None] - slot < self.window)
        both = torch.cat([self.take(fresh.features), state], 1), torch.cat([embed(values), mask], 1)
        return self(*both, columns.positions, seen[:, None], cache)[:, values.shape[1] - 1 :]

    def feature(self, state: Tensor, previous: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the state itself; see `BlockNet.feature`."""
        return state, None

    def confidence(self, feature: Tensor) -> Tensor | None:
        """Return None: acceptance is not estimated."""
        return None

    def guide(self, session: HFSession) -> BlockGuide:  # type: ignore[override]
        """Return the guide of one generation on the target session `session`. ValueError where prompts are no values."""
        if isinstance(session.target.family, OwnValues):
            raise ValueError(
                f"{self.kind} reads the values of a prompt, but {type(session.target.model).__name__} reads others than it writes"
            )
        return BlockGuide(self, session)
