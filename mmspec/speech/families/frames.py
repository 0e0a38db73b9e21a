"""Models that write frames: how the engine drives a network whose every step commits K codes.

Values are frames [..., K]. Prompt positions have ids too, counted from the end as those of pictures are: the last one is `size` in every
book, the one before it `size + 1`. So the engine only ever sees integers, whatever a prompt is made of (text, sound, both).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.rows.changes import RowState
from mmspec.models.family import Family
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache
from mmspec.speech.families.base import SpeechModel


@dataclass(frozen=True, slots=True)
class FramePrompt:
    """R embedded prompts; for guidance R = 2B, the unconditional ones behind. Padded on the left."""

    embeds: Tensor  # [R, P, D]
    mask: Tensor  # [R, P] bool
    extra: Any = None  # what else the network needs: encoder states, say


class FrameRows(RowState):
    """A prompt in a session whose rows may change: embeddings and mask, padded on the left, from whose end positions are counted.

    Args:
        prompt: the prompt. Its `extra` must not be read once the prompt has been run: it stays as it is.
    """

    by_row = ("embeds", "mask")

    def __init__(self, prompt: FramePrompt):
        self.embeds, self.mask, self.extra = prompt.embeds, prompt.mask, prompt.extra


class FrameModel(SpeechModel):
    """A model of frames, and its family: `books` codes a frame, each below `size`; `layers` attention layers.

    `distribution` reads what `run` returns for a column: the heads' scores where codes are independent, the backbone's last hidden state
    where a depth net writes them.
    """

    books: int
    size: int  # ids of a book, specials included
    layers: int

    @abstractmethod
    def encode(self, texts: Sequence[str], voices: Sequence[str | None]) -> FramePrompt:
        """Return the prompts of a batch; see `SpeechModel.encode`."""
        ...

    @abstractmethod
    def embed(self, frames: Tensor) -> Tensor:
        """Embeddings [R, M, D] of frames [R, M, K] of codes."""
        ...

    @abstractmethod
    def run(self, embeds: Tensor, layout: Layout, cache: SlotCache, prompt: FramePrompt | FrameRows) -> Tensor:
        """Return the network's output [R, M, ...] after M columns."""
        ...

    @abstractmethod
    def distribution(self, raw: Tensor, history: History, processors: Pipeline) -> Any:
        """The distribution of the frame after each column: `core.distributions.frame.Frame` or `core.distributions.depth_frame.DepthFrame`.

        `history.ids` [R, S, K] are frames, and prompt ids from `size` on.
        """
        ...

    # --- the engine's family ------------------------------------------------------------------------------------------

    @property
    def family(self) -> Family:
        """The family that drives the network: this object."""
        return self  # pyright: ignore[reportReturnType]  # prompts are FramePrompts

    def prompt(self, model: Any, inputs: FramePrompt) -> tuple[Tensor, Tensor]:
        """Ids [R, P, K] of the prompt's positions, counted from its end, and the mask."""
        rows, length = inputs.mask.shape
        ids = self.size + torch.arange(length - 1, -1, -1, device=inputs.mask.device)
        return ids[None, :, None].expand(rows, -1, self.books), inputs.mask.bool()

    def begin(self, model: Any, inputs: FramePrompt, capacity: int) -> tuple[SlotCache, Any]:
        """Open the cache and the state of one generation; see the family protocol."""
        return SlotCache(self.layers, capacity), inputs

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: FramePrompt | FrameRows, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """What `run` says of the last `keep` columns. Hidden states are taken by hooks (`models.stack.tapped`), never here."""
        return self.run(self.embedded(layout.ids, state), layout, cache, state)[:, -keep:], None

    def embedded(self, ids: Tensor, state: FramePrompt | FrameRows) -> Tensor:
        """Embeddings [R, M, D] of any ids [R, M, K] the engine knows: frames and prompt positions."""
        length, own = state.embeds.shape[1], ids[..., 0]
        embeds = self.embed(ids.clamp(max=self.size - 1))
        place = (length - 1 - (own - self.size)).clamp(0, length - 1)
        given = state.embeds.gather(1, place[..., None].expand(*place.shape, state.embeds.shape[-1]))
        return torch.where((own >= self.size)[..., None], given.to(embeds.dtype), embeds)


def frame_history(history: History, book: int) -> History:
    """Return one book's history, as processors of single ids read it."""
    return History(history.ids[..., book], history.visible, history.position)
