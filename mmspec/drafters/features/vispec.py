"""ViSpec: a feature drafter that reads every picture as a few vectors (Kang et al. 2025, arXiv 2509.15235).

Learned queries attend to the picture as the target's decoder reads it. All but the last query give compressed picture tokens, at the last
positions of the picture's span; text keeps its positions. The last query gives a vector of the whole picture, which is mixed into every
state up to the next picture.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from mmspec.drafters.features.eagle import Eagle1
from mmspec.drafters.features.reading import Columns, VisionView
from mmspec.models.families.mllama import Mllama
from mmspec.models.target import HFSession


class Adaptor(nn.Module):
    """`queries` learned queries that attend to pictures of any size."""

    def __init__(self, hidden: int, heads: int, queries: int):
        super().__init__()
        self.heads = heads
        self.queries = nn.Parameter(torch.randn(queries, hidden) * hidden**-0.5)
        self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden, bias=False) for _ in range(3))

    def forward(self, vision: VisionView, count: int) -> Tensor:
        """Return [B, count, Q, H] for the first `count` pictures of every row, zeros for missing ones."""
        embeds = vision.embeds.to(self.queries.dtype)
        of = vision.pictures[:, None] == torch.arange(1, count + 1, device=embeds.device)[:, None]  # [B, count, P]
        seen = of | ~of.any(-1, keepdim=True)  # a softmax over nothing would be NaN
        keys, values = (self._split(proj(embeds)) for proj in (self.k_proj, self.v_proj))
        asked = self._split(self.queries[None]).repeat(len(embeds), 1, count, 1)
        found = nn.functional.scaled_dot_product_attention(asked, keys, values, seen.repeat_interleave(len(self.queries), 1)[:, None])
        found = rearrange(self.o_proj(rearrange(found, "b h n d -> b n (h d)")), "b (c q) d -> b c q d", c=count)
        return found * of.any(-1)[..., None, None]

    def _split(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h d) -> b h n d", h=self.heads)


class ViSpec(Eagle1):
    """EAGLE that reads a picture as a few vectors (ViSpec, Kang et al. 2025, arXiv 2509.15235).

    A compressed token is read as a value with no state before it. The release feeds it to the layer directly, after the projection of
    values and states; here the adaptor's own output projection replaces that.

    Args:
        sizes: options of the LlamaConfig of the layer.
        queries: learned queries per picture.
        bias: the fusing projection has a bias.

    Raises:
        ValueError: if `queries` is below 1.
    """

    kind = "vispec"

    def __init__(self, sizes: Mapping[str, Any], queries: int = 2, bias: bool = True):
        super().__init__(sizes, bias)
        if queries < 1:
            raise ValueError(f"queries is {queries}: at least one is needed, for the vector of the whole picture")
        self.config = {"sizes": dict(sizes), "queries": queries, "bias": bias}
        self.adaptor = Adaptor(self.hidden, self.llama.num_attention_heads, queries)
        self.mix = nn.Linear(2 * self.hidden, self.hidden, bias=False)
        with torch.no_grad():
            self.mix.weight.copy_(torch.eye(self.hidden, 2 * self.hidden))  # as if there were no pictures

    def check_sight(self, session: HFSession) -> None:
        """Raise ValueError for vision inputs this net cannot read; see `FeatureNet.check_sight`."""
        if isinstance(session.target.family, Mllama):
            raise ValueError(
                f"a {self.kind} drafter reads pictures that stand in the prompt, but {type(session.target.model).__name__}'s come in "
                "through cross-attention: use eagle1, eagle3 or hivis"
            )

    def reading(self, columns: Columns) -> Columns:
        """Return the text columns, with each picture replaced by its compressed tokens. One host synchronisation."""
        vision = columns.vision
        count = 0 if vision is None else int(vision.pictures.max())
        if vision is None or count == 0:
            return columns
        found = self.adaptor(vision, count)
        rows, pictures = torch.arange(len(found), device=found.device)[:, None], vision.pictures[:, 1:]
        whole = torch.cat([torch.zeros_like(found[:, :1, -1]), found[:, :, -1]], 1)[rows, vision.newest()]  # [B, P, H]
        left = _left(vision.pictures)[:, 1:]
        tokens, text = found.shape[2] - 1, (pictures == 0)[..., None]
        compressed = found[rows, (pictures - 1).clamp_min(0), (tokens - 1 - left).clamp_min(0)]
        mixed = replace(
            columns,
            embeds=torch.where(text, vision.embeds[:, 1:].to(compressed.dtype), compressed),
            features=columns.features * text,
            beside=torch.cat([whole[:, 1:] * text, whole[:, -1:]], 1),
        )
        return mixed.kept(text[..., 0] | (left < tokens), closing_up=False)

    def enter(self, state: Tensor, level: int, beside: Tensor | None) -> Tensor:
        """Return the input state of a level; see `FeatureNet.enter`."""
        return self.mix(torch.cat([state, torch.zeros_like(state) if beside is None else beside.expand_as(state)], -1))


def _left(pictures: Tensor) -> Tensor:
    """[B, P] the number of later positions of the same picture."""
    place = torch.arange(pictures.shape[1], device=pictures.device).expand_as(pictures)
    last = nn.functional.pad(torch.zeros_like(pictures), (0, 1)).scatter_reduce(1, pictures, place, "amax")  # numbered from 1
    return last.gather(1, pictures) - place
