"""Drafting ahead of a target that verifies meanwhile: the messages between two processes, and the loop of the process that drafts.

A row's chain holds the draft tokens behind its last committed value. When values are committed, a chain that begins with them goes on
behind them; any other is dropped, and the row is drafted anew. Both processes keep the chains and change them by the same rule, in the
order of the messages, so that the target may take what has arrived while the drafter is in the middle of a step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Committed, Draft
from mmspec.drafters.model.drafter import ModelDrafter, committed_values
from mmspec.drafters.shapes import Score, Shape
from mmspec.drafters.views.base import same_prompt
from mmspec.models.compat import execution_device
from mmspec.models.model_checks import model_name, refuse_unhealthy


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """To the drafter: the outcome of a round."""

    values: list[list[int]]  # newly committed, by row
    ended: list[bool]


@dataclass(frozen=True, slots=True)
class DraftingEnd:
    """To the drafter: the generation is over, or was given up."""


@dataclass(frozen=True, slots=True)
class DraftingBegun:
    """From the drafter: what follows belongs to the generation that was begun last."""


@dataclass(frozen=True, slots=True)
class DrafterRoom:
    """From the drafter, before its first draft token: the values that its table of positions can take behind each prompt."""

    room: list[int]


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """From the drafter: one draft token a row; None where a row has none."""

    observed: int  # rounds whose outcome was known when it was drawn
    values: list[int | None]


@dataclass(frozen=True, slots=True)
class DrafterFailed:
    """From the drafter: an error ended the generation."""

    kind: str  # name of its class
    message: str


@dataclass(frozen=True)
class DraftingStart:
    """What a generation begins with in the process that drafts.

    Args:
        prompt: what the drafter's model reads, tensors on the host.
        seeds: one a row.
        coupled: draft tokens are drawn with the noise of the target's own draws.
        pending: the pending token of each row.
        left: values that each row may still commit.
        ahead: draft tokens that may wait for the target, by row.
    """

    prompt: Mapping[str, Any]
    seeds: list[int]
    coupled: bool
    pending: list[int]
    left: list[int]
    ahead: int


class DraftedChains:
    """The draft tokens behind the last committed value of each row.

    Args:
        rows: their number.
    """

    def __init__(self, rows: int):
        self.rows: list[list[int]] = [[] for _ in range(rows)]

    def copy(self) -> "DraftedChains":
        """Return chains that may be changed on their own."""
        found = DraftedChains(0)
        found.rows = [list(row) for row in self.rows]
        return found

    def extend(self, values: Sequence[int | None]) -> None:
        """Append one draft token to each row.

        Args:
            values: by row; None for no token.
        """
        for row, value in zip(self.rows, values, strict=True):
            if value is not None:
                row.append(value)

    def advance(self, committed: Sequence[Sequence[int]]) -> bool:
        """Move behind committed values; drop the chains that do not begin with them.

        Args:
            committed: newly committed values, by row.

        Returns:
            True if every chain goes on.
        """
        kept = [row[: len(values)] == list(values) for row, values in zip(self.rows, committed, strict=True)]
        self.rows = [row[len(values) :] if keep else [] for row, values, keep in zip(self.rows, committed, kept, strict=True)]
        return all(kept)


class Superseded(Exception):
    """The target committed something else than was drafted, or the generation is over."""


@dataclass(frozen=True)
class PublishedShape:
    """A shape whose draft tokens are shown to a function while they are drawn.

    Args:
        shape: the shape.
        show: called with the growing draft before each forward of the drafter.
    """

    shape: Shape
    show: Callable[[Draft], None]

    def grow(self, score: Score, draft: Draft, budget: Budget, noise: Noise) -> tuple[Draft, Tensor]:
        """Return the finished draft and the column that each draft token was scored in; see `Shape.grow`."""

        def shown(grown: Draft) -> Any:
            self.show(grown)
            return score(grown)

        return self.shape.grow(shown, draft, budget, noise)


class DraftingAhead:
    """One generation in the process that drafts.

    Args:
        drafter: drafts chains of point masses with a model.
        opening: what the generation begins with.
        connection: to the process of the target.
    """

    def __init__(self, drafter: ModelDrafter, opening: DraftingStart, connection: Connection):
        self.opening, self.connection = opening, connection
        model = getattr(drafter.target, "target", drafter.target).model  # type: ignore[attr-defined]
        self.name, self.device = model_name(model), execution_device(model)
        prompt = {key: value.to(self.device) if isinstance(value, Tensor) else value for key, value in opening.prompt.items()}
        shape = PublishedShape(drafter.shape, self._publish)
        self.session = replace(drafter, view=same_prompt, shape=shape).begin(prompt, None)  # type: ignore[arg-type]
        self.noise = Noise.from_seed(opening.seeds, len(opening.seeds), self.device, opening.coupled)
        self.chains, self.left = DraftedChains(len(opening.left)), list(opening.left)
        self.unread = [[value] for value in opening.pending]  # committed values that the session was not told yet; the last is pending
        self.committed = [0] * len(self.left)
        self.room: list[int] | None = getattr(self.session.session, "room", None)
        self.observed = 0
        self.shown = 0  # draft tokens of the draft under way that were sent
        self.over = False

    def run(self) -> None:
        """Draft until the generation is over.

        Raises:
            EOFError: when the other process has gone.
            FloatingPointError: when the model's logits hold NaN or +inf.
        """
        if self.room is not None:
            self.connection.send(DrafterRoom(self.room))
        while not self.over:
            try:
                most = [min(left - 1, self.opening.ahead) for left in self.left]
                if self.room is not None:
                    most = [min(own, have - used) for own, have, used in zip(most, self.room, self.committed, strict=True)]
                room = [max(0, own - len(row)) for own, row in zip(most, self.chains.rows, strict=True)]
                if any(room):
                    self._publish(self._draft(room))
                else:
                    self._receive()
            except Superseded:
                continue

    def _draft(self, room: list[int]) -> Draft:
        """Continue the chains by at most `room` draft tokens."""
        settled = [row[:-1] if left else [] for row, left in zip(self.unread, self.left, strict=True)]
        if any(settled):
            told = Committed(settled, *([[]] * 7))  # type: ignore[arg-type]  # its roots tell the session all
            self.session.observe(self._roots(settled, self.committed), None, None, told)  # type: ignore[arg-type]
            self.unread = [row[-1:] for row in self.unread]
        texts = [[*row, *chain] if left else [] for row, chain, left in zip(self.unread, self.chains.rows, self.left, strict=True)]
        start = [done + len(chain) for done, chain in zip(self.committed, self.chains.rows, strict=True)]
        roots = self._roots(texts, start)
        budget = Budget(torch.tensor(room, device=self.device) + 1, max(room))
        self.shown = 0
        return self.session.propose(roots, budget, self.noise)

    def _roots(self, texts: list[list[int]], start: list[int]) -> Draft:
        """A draft of roots only, PAD before shorter rows."""
        width = max(map(len, texts))
        table = torch.tensor([[0] * (width - len(row)) + row for row in texts], device=self.device)
        missing = torch.tensor([width - len(row) for row in texts], device=self.device)
        real = torch.arange(width, device=self.device) >= missing[:, None]
        return committed_values(table, real, torch.tensor(start, device=self.device))

    def _publish(self, draft: Draft) -> None:
        """Send the draft tokens not sent yet, and read what has arrived. Superseded if the draft is not to be continued."""
        if draft.drafter_healthy is not None:
            refuse_unhealthy(draft.drafter_healthy, [left > 0 for left in self.left], self.name)
        for column in range(draft.roots + self.shown, draft.size):
            table = torch.stack([draft.nodes[:, column], draft.valid[:, column].long()]).tolist()
            values = [value if real else None for value, real in zip(*table, strict=True)]
            self.chains.extend(values)
            self.connection.send(DraftedTokens(self.observed, values))
        self.shown = draft.size - draft.roots
        while self.connection.poll():
            self._receive()

    def _receive(self) -> None:
        """Wait for one message."""
        message = self.connection.recv()
        if isinstance(message, DraftingEnd):
            self.over = True
            raise Superseded
        self.observed += 1
        for row, values in enumerate(message.values):
            self.unread[row] += values
            self.committed[row] += len(values)
            self.left[row] = 0 if message.ended[row] else self.left[row] - len(values)
        if not self.chains.advance(message.values):
            raise Superseded
