"""Rows that join and leave a running generation: the protocol of its sessions, and selections and joins of tensors by row."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn


class ChangesRows(Protocol):
    """What holds state by row and lets rows leave and join between two rounds.

    What a row generates does not depend on it: noise is keyed by the row's seed and output positions.
    """

    @property
    def joinable(self) -> bool:
        """True once rows can be taken and joined: the prompt has been run, and nothing of it waits."""
        ...

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows, in a new order.

        Args:
            rows: numbers of the rows that stay.
        """
        ...

    def join_rows(self, other: Self) -> None:
        """Append the rows of another one, which is not used afterwards.

        Args:
            other: of the same class and settings.
        """
        ...


@runtime_checkable
class KeepsRoots(Protocol):
    """What counts columns of the pending draft from round to round, where that is a tree of many roots."""

    def shift_roots(self, by: int) -> None:
        """Count columns before the roots; see `ManyRoots`.

        Args:
            by: columns that were added there; below 0, that were dropped there.
        """
        ...


class ManyRoots(Protocol):
    """What a pending draft of many roots carries in `aux`: moves their columns."""

    def packed(self, pending: Any) -> Any:
        """Drop columns that no row uses.

        Args:
            pending: the draft.

        Returns:
            A draft of as many roots or fewer.
        """
        ...

    def widened(self, pending: Any, roots: int) -> Any:
        """Put columns of PAD before the roots.

        Args:
            pending: the draft.
            roots: how many columns there are then, more than now.

        Returns:
            A draft of `roots` roots.
        """
        ...


class RunsPrompt(Protocol):
    """A target's session whose prompt can be run piece by piece before the first round."""

    @property
    def waiting(self) -> int:
        """Columns of the prompt that have not been run."""
        ...

    def prefill(self, columns: int) -> bool:
        """Run a piece of the prompt. What remains is run with the first draft.

        Args:
            columns: columns to run, at least 1.

        Returns:
            True if nothing is left to run before the first round.
        """
        ...


class RowState:
    """Base of what keeps its state by row in attributes; see `ChangesRows`.

    Attributes:
        by_row: their names. Each holds a tensor [B, ...], an object with `take_rows` and `join_rows` that return a new one, or None until
            the prompt has been run.
    """

    by_row: ClassVar[tuple[str, ...]] = ()

    @property
    def joinable(self) -> bool:
        """True once every one of them is there."""
        return all(getattr(self, name) is not None for name in self.by_row)

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows.

        Args:
            rows: numbers of the rows that stay.
        """
        for name in self.by_row:
            found = getattr(self, name)
            setattr(self, name, rows_of(found, rows) if isinstance(found, Tensor) else found.take_rows(rows))

    def join_rows(self, other: Self) -> None:
        """Append the rows of another one.

        Args:
            other: of the same class and settings.
        """
        for name in self.by_row:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, join_tensors(mine, theirs) if isinstance(mine, Tensor) else mine.join_rows(theirs))


class RowRecord:
    """Base of frozen dataclasses that hold values by row: changes return a new one.

    Attributes:
        by_row: names of the fields that may hold such values: a tensor [B, ...], or a record with `take_rows` and `join_rows`. Anything
            else in them is the same for all rows.
    """

    by_row: ClassVar[tuple[str, ...]] = ()

    def take_rows(self, rows: Sequence[int]) -> Self:
        """Return some rows.

        Args:
            rows: their numbers, in their new order.
        """
        found: dict[str, Any] = {name: _taken(getattr(self, name), rows) for name in self.by_row}
        return replace(self, **found)  # type: ignore[type-var]

    def join_rows(self, other: Self) -> Self:
        """Return the rows of both.

        Args:
            other: of the same class, with the same values where they are not by row.
        """
        found: dict[str, Any] = {name: _joined(getattr(self, name), getattr(other, name)) for name in self.by_row}
        return replace(self, **found)  # type: ignore[type-var]


def _taken(part: Any, rows: Sequence[int]) -> Any:
    return rows_of(part, rows) if isinstance(part, Tensor) else part.take_rows(rows) if changes_rows(part) else part


def _joined(part: Any, other: Any) -> Any:
    return join_tensors(part, other) if isinstance(part, Tensor) else part.join_rows(other) if changes_rows(part) else part


class SessionRowState(RowState):
    """Base of what keeps state by row in a session of its own, too.

    Attributes:
        session: the session, `ChangesRows`; None until the prompt has been read.
    """

    session: Any

    @property
    def joinable(self) -> bool:
        """True once the session has run its prompt, too."""
        return self.session is not None and self.session.joinable and super().joinable

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `RowState.take_rows`."""
        self.session.take_rows(rows)
        super().take_rows(rows)

    def join_rows(self, other: Self) -> None:
        """Append the rows of another one; see `RowState.join_rows`."""
        self.session.join_rows(other.session)
        super().join_rows(other)


def changes_rows(part: Any) -> bool:
    """Return True if rows of `part` can join and leave.

    Args:
        part: a session or a state.

    Returns:
        Whether its class is `ChangesRows`; one that inherits it sets `join_rows` to None to say no. Nothing of `part` is read.
    """
    return all(callable(getattr(type(part), name, None)) for name in ("take_rows", "join_rows"))


def refuse_fixed_rows(part: Any, role: str) -> None:
    """Refuse what cannot let rows join and leave.

    Args:
        part: a session.
        role: what it is, for the message.

    Raises:
        ValueError: if it is not `ChangesRows`.
    """
    if not changes_rows(part):
        raise ValueError(
            f"{role} ({type(part).__name__}) keeps states of the whole batch, so that rows cannot join a running generation: "
            "use the modality's own call, or another drafter, such as lookup, suffix, a model or a trained drafter"
        )


def rows_of(found: Tensor, rows: Sequence[int]) -> Tensor:
    """Select rows of a tensor.

    Args:
        found: [B, ...].
        rows: their numbers.

    Returns:
        [len(rows), ...]; `found` itself where nothing changes.
    """
    if list(rows) == list(range(len(found))):
        return found
    return found[torch.tensor(list(rows), dtype=torch.long, device=found.device)]


def join_tensors(one: Tensor, other: Tensor, pad: int | float | bool = 0, left: bool = True) -> Tensor:
    """Concatenate tensors by rows; the narrower one is padded in the second dimension.

    Args:
        one: [A, N, ...], or [A].
        other: [B, M, ...], or [B].
        pad: what fills the columns that are added.
        left: add them in front; False behind.

    Returns:
        [A + B, max(N, M), ...], or [A + B].
    """
    if one.dim() > 1 and one.shape[1] != other.shape[1]:
        most = max(one.shape[1], other.shape[1])
        one, other = widened(one, most, pad, left), widened(other, most, pad, left)
    return torch.cat([one, other])


def widened(found: Tensor, columns: int, pad: int | float | bool = 0, left: bool = True) -> Tensor:
    """Pad the second dimension of `found` [B, N, ...] to `columns` with `pad`, in front or behind."""
    more = columns - found.shape[1]
    if more <= 0:
        return found
    sides = (more, 0) if left else (0, more)
    return nn.functional.pad(found, (*(0, 0) * (found.dim() - 2), *sides), value=pad)
