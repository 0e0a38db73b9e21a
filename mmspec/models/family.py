"""Protocols of what drives one kind of model, and of work that a drafter has done ahead of the target."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from mmspec.core.distributions.protocol import Distribution
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import Draft
from mmspec.models.layout import Layout
from mmspec.models.slot_cache import SlotCache

if TYPE_CHECKING:
    from mmspec.models.target import HFSession


class Family(Protocol):
    """The driver of one kind of model: decoder-only, encoder-decoder, or one of their exceptions."""

    def prompt(self, model: Any, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Read the decoder's prompt.

        Args:
            model: the model.
            inputs: what its processor returned.

        Returns:
            Ids [B, P] and mask [B, P] bool.
        """
        ...

    def begin(self, model: Any, inputs: Mapping[str, Tensor], capacity: int) -> tuple[SlotCache, Any]:
        """Prepare a session; runs encoders.

        Args:
            model: the model.
            inputs: what its processor returned.
            capacity: slots a row.

        Returns:
            A cache, and what `forward` needs besides, such as encoder states.
        """
        ...

    def forward(
        self, model: Any, layout: Layout, cache: SlotCache, state: Any, keep: int, states: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run the model on one forward's columns.

        Args:
            model: the model, or a copy of it.
            layout: slots, positions and mask of M columns.
            cache: the session's cache.
            state: what `begin` returned.
            keep: last columns whose logits are needed.
            states: numbers of the hidden states to return.

        Returns:
            Logits [B, keep, V], and the hidden states of all columns [B, M, F] or None.
        """
        ...


@runtime_checkable
class OwnValues(Protocol):
    """A family whose values are not its model's token ids: `values` of them, and prompt positions whose ids are not values."""

    @property
    def values(self) -> int:
        """Number of values."""
        ...

    def embedded(self, ids: Tensor, state: Any) -> Tensor:
        """Embeddings [B, M, D] of any ids a session holds."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the values from last hidden states."""
        ...


@runtime_checkable
class OwnDistributions(Protocol):
    """A family whose steps are not single ids."""

    def distribution(self, raw: Tensor, history: History, processors: Pipeline) -> Distribution:
        """Make the distribution after each node.

        Args:
            raw: the result of `forward` [B, M, ...].
            history: the nodes' paths.
            processors: the target's processors.

        Returns:
            Distributions [B, M].
        """
        ...


@runtime_checkable
class OwnScoring(Protocol):
    """A family that may need more than one forward to score a draft. Its drafts are always scored completely: `ahead` is ignored."""

    def scored(self, session: "HFSession", layout: Layout, keep: int) -> Tensor:
        """Score a draft's new columns; afterwards the session's cache holds all columns.

        Args:
            session: the session.
            layout: slots, positions and mask of M columns.
            keep: last columns whose logits are needed.

        Returns:
            Logits [B, keep, V].
        """
        ...


@runtime_checkable
class Splitting(Protocol):
    """A family that may run a long prompt in several forwards. The prompts of other families are always run in one."""

    def pieces(self, model: Any, state: Any) -> tuple[int, int] | None:
        """Choose the size of pieces.

        Args:
            model: the model.
            state: what `begin` returned.

        Returns:
            The most columns of the first forward, and of every later one; None for a prompt that must stay whole, because columns see later
            ones or the first forward does more than the others.
        """
        ...


@runtime_checkable
class PositionsTable(Protocol):
    """A family whose models may look positions up in a table, past whose end a forward fails."""

    def positions_table(self, model: Any) -> int | None:
        """Return the number of positions.

        Args:
            model: the model.

        Returns:
            Positions; None where they are computed, and so without end.
        """
        ...


@runtime_checkable
class StateCommit(Protocol):
    """What a family keeps for a session where every forward overwrites a part of it, which no length of slots can roll back."""

    def fork(self) -> "StateCommit":
        """Return the same for a draft that is never committed; what it does leaves this one as it is."""
        ...

    def commit(self, keep: Tensor) -> None:
        """End the draft under way.

        Args:
            keep: columns [B, K] of the draft that each row keeps, in path order, -1 for none.
        """
        ...


class PrecomputedStates(Protocol):
    """Work on `draft` that its drafter has already done. Ignored if a different draft is scored."""

    @property
    def draft(self) -> Draft:
        """The draft it belongs to."""
        ...

    def done(self, session: "HFSession", layout: Layout) -> AbstractContextManager[None]:
        """Make a context in which a forward of the model does only the remaining work. Not for captured models.

        Args:
            session: the session that scores the draft.
            layout: slots, positions and mask of the draft's columns.

        Returns:
            The context.
        """
        ...
