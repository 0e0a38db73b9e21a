"""Any transformers model as a target: a session packs every row's committed values into slots and scores drafts in one forward.

The padding side of a prompt has no effect: prompts are packed, positions are logical, and one 4-D mask per forward states what each node
sees. The prompt is cached lazily, by the first `score`, in the same forward as the first draft.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import Draft
from mmspec.models.compat import many_shapes, tensor_parallel_group, with_whole_cache
from mmspec.models.family import Family, OwnScoring, PositionsTable
from mmspec.models.layout import Layout
from mmspec.models.module_copy import on_copy, own_copy, refresh, shared_copy
from mmspec.models.prompt_proof import require_columns
from mmspec.models.session import ROUND, HFSession, Room
from mmspec.models.slot_cache import SlotCache

_SHAPES = 128  # that a process may compile of one model


@dataclass(frozen=True)
class Captured:
    """The forward of a family over the process's copy of a model, compiled and as it is.

    Args:
        root: the copy.
        compiled: runs a forward whose shapes repeat.
        plain: the same, not compiled, for the prompt's.
        states: hidden states can be returned.
    """

    root: nn.Module
    compiled: Callable[..., tuple[Tensor, Tensor | None]]
    plain: Callable[..., tuple[Tensor, Tensor | None]]
    states: bool

    @staticmethod
    def of(family: Family, model: Any, options: dict[str, Any]) -> "Captured":
        """Compile a family's forward.

        Args:
            family: drives `model`. Adapters of pictures and of frames hold their network: then the whole forward is compiled.
            model: the model.
            options: of `torch.compile`.

        Returns:
            The captured forward; nothing is compiled before it is first called.

        Raises:
            ValueError: for families whose forward cannot be captured.
        """
        name = type(model).__name__
        if not getattr(family, "capturable", True):
            raise ValueError(f"{name} cannot be captured: its positions or layers are put in place anew for every forward")
        if isinstance(family, OwnScoring):
            raise ValueError(f"{name} cannot be captured: it scores a draft by several forwards; leave capture out")
        root, own = shared_copy(model), on_copy(family, model, shared=True)
        if own is family:
            quick = torch.compile(root, **options)
            return Captured(root, lambda *parts: family.forward(quick, *parts), lambda *parts: family.forward(root, *parts), True)
        whole = torch.compile(own.forward, **options)
        return Captured(root, lambda *parts: whole(root, *parts), lambda *parts: own.forward(root, *parts), False)

    def forward(
        self, layout: Layout, cache: SlotCache, state: Any, keep: int, states: Sequence[int], prompt: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Run one forward; see `Family.forward`.

        Args:
            layout, cache, state, keep, states: as `Family.forward` takes them.
            prompt: the columns hold a prompt, whose length differs from request to request: it is not worth compiling.

        Returns:
            Logits, a copy, since the next replay of a graph overwrites its output, and the hidden states.
        """
        run = self.plain if prompt else self.compiled  # the prompt's run also sets up transformers' recorders
        with many_shapes(_SHAPES):
            logits, hidden = with_whole_cache(lambda: run(layout, cache, state, keep, states))
        return logits.to(torch.float32, copy=True), hidden


@dataclass(frozen=True)
class HFTarget:
    """A transformers model, its family, and the processors of its distributions. It holds no state between calls.

    Attention reads as many slots as are in use, rounded up, unless `static`: then every forward reads all of them, so that shapes and
    addresses never change and the forward can be captured.

    Args:
        model: a transformers model.
        family: drives the model.
        processors: applied to its logits.
        reserve: slots allocated beyond the prompt; longer generations grow by doubling.
        static: fixed shapes and addresses.
        captured: the compiled forward that runs every one but the prompt's.
        limit: the model's number of positions; None for no limit.
        trees: False refuses branching drafts, as does a family with `trees = False`.
    """

    model: Any
    family: Family
    processors: Pipeline = field(default_factory=Pipeline)
    reserve: int = 192
    static: bool = False
    captured: Captured | None = None
    limit: int | None = None
    trees: bool = True

    def begin(self, prompt: Mapping[str, Tensor]) -> tuple["HFSession", Draft]:
        """Open a session; runs encoders, but nothing of the decoder yet.

        Args:
            prompt: what the model's processor returned.

        Returns:
            The session, and the last prompt position as the first pending draft.

        Raises:
            ValueError: for an empty prompt or batch, or a prompt longer than the model's positions.
        """
        parts, pending = self.opened(prompt)
        return HFSession(*parts), pending

    def opened(self, prompt: Mapping[str, Tensor]) -> tuple[tuple["HFTarget", SlotCache, Any, Tensor, Tensor, int, Room], Draft]:
        """Prepare what a session is made of, for sessions of other kinds.

        Args:
            prompt: what the model's processor returned.

        Returns:
            The arguments of `HFSession`, and the first pending draft.

        Raises:
            ValueError: as `begin`; also for a model that has changed since it was captured.
        """
        refresh(self.model)
        if self.captured is not None and self.captured.root is not shared_copy(self.model):
            raise ValueError(f"this {type(self.model).__name__} has changed since it was captured: call capture() again")
        model = own_copy(self.model)
        ids, mask = self.family.prompt(model, prompt)
        counts = _check_prompt(ids, mask, self.limit)
        most = self.family.positions_table(model) if isinstance(self.family, PositionsTable) else None
        room = None if most is None else [most - count for count in counts]
        order = torch.argsort((~mask).long(), dim=1, stable=True)  # pack: real ids first, whatever the padding side
        rows = torch.arange(len(ids), device=ids.device)
        packed, lengths = ids[rows[:, None], order], mask.sum(1)
        capacity = -(-(ids.shape[1] + self.reserve + 1) // ROUND) * ROUND
        cache, state = self.family.begin(model, prompt, capacity)
        last = packed[rows, lengths - 1]
        return (self, cache, state, packed[:, :-1], lengths - 1, min(counts) - 1, room), Draft.root(last, torch.zeros_like(lengths))

    def require_columns(self, prompt: Any, whole: Callable[["HFTarget"], Any] | None = None) -> None:
        """Test, unless the result is known, whether values that are scored together get the logits of plain decoding.

        Args:
            prompt: what `begin` takes.
            whole: makes what decodes of a target; by default the target itself.

        Raises:
            ValueError: where they do not; in one line.
        """
        bare = replace(self, processors=self.processors.bare, static=False, captured=None)
        rows = lambda: len(self.family.prompt(self.model, prompt)[0])  # noqa: E731
        require_columns(bare if whole is None else whole(bare), self.model, self.family, prompt, rows)

    @property
    def ordered(self) -> bool:
        """True if values are in order, so that their numbers have distances: a family says so by a true attribute `ordered`."""
        return getattr(self.family, "ordered", False)

    @property
    def values(self) -> int | None:
        """Values that a distribution is over: those of the family where it has its own, else the ids of the vocabulary; None if unknown."""
        known = getattr(self.family, "values", None)
        text = getattr(getattr(self.model, "config", None), "get_text_config", None)
        return known if known is not None or text is None else getattr(text(decoder=True), "vocab_size", None)

    @property
    def codebook_size(self) -> int | None:
        """How many of the values, the first, are codes of a codebook; None where a family does not say."""
        return getattr(self.family, "codebook_size", None)

    def own(self) -> tuple[Family, Any]:
        """Return the family and this thread's copy of the model, on which hooks and changes for the length of a forward are made.

        Returns:
            The family for the copy, and the copy.
        """
        return on_copy(self.family, self.model), own_copy(self.model)

    def one_choice(self) -> "RankZeroChoice | None":
        """Return what makes the processes of a tensor-parallel model agree on draft lengths; None for a model in one process.

        Returns:
            The exchange over the group that splits the model's layers.
        """
        group = tensor_parallel_group(self.model)
        return None if group is None else RankZeroChoice(group, self.model.device)

    def capture(self, reserve: int, **options: Any) -> "HFTarget":
        """Make a target with fixed shapes and addresses, its rounds run by a compiled model. Every draft length is captured once.

        A copy over the same weights is compiled, on which transformers' recorders of hidden states stay.

        Args:
            reserve: slots beyond the prompt.
            options: of `torch.compile`; the default captures CUDA graphs on a GPU.

        Returns:
            The new target.

        Raises:
            ValueError: for families whose forward cannot be captured.
        """
        options = {"mode": "reduce-overhead", "fullgraph": True, "dynamic": False} | options
        return replace(self, static=True, reserve=reserve, captured=Captured.of(self.family, self.model, options))


@dataclass(frozen=True)
class RankZeroChoice:
    """The first rank of a process group chooses for all.

    Args:
        group: the process group.
        device: where the exchanged number is kept; one that the group's backend reads.
    """

    group: Any
    device: torch.device

    @property
    def leads(self) -> bool:
        """True on the first rank."""
        return distributed.get_rank(self.group) == 0

    def agree(self, length: int) -> int:
        """Broadcast the first rank's length.

        Args:
            length: this rank's.

        Returns:
            The first rank's.
        """
        number = torch.tensor([length], device=self.device)
        distributed.broadcast(number, distributed.get_global_rank(self.group, 0), self.group)
        return int(number)


def _check_prompt(ids: Tensor, mask: Tensor, limit: int | None) -> list[int]:
    """The lengths of the prompts. ValueError for an empty batch or prompt, and for one longer than `limit`."""
    if ids.shape[0] == 0:
        raise ValueError("the batch is empty: give at least one prompt")
    lengths = mask.sum(1).tolist()
    if min(lengths, default=0) == 0:
        raise ValueError(f"prompt {lengths.index(0)} is empty: every prompt needs at least one token that is not padding")
    if limit is not None and max(lengths) >= limit:
        raise ValueError(f"prompt {lengths.index(max(lengths))} has {max(lengths)} tokens, but the model has {limit} positions: shorten it")
    return lengths
