"""What an engine needs of a model, of a request to it, and of what is made of a request's tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from mmspec.core.accept_rule import AcceptRule
from mmspec.core.control import Control
from mmspec.core.decode import Rounds
from mmspec.core.records import Committed
from mmspec.core.result import committed_row
from mmspec.core.stats import Stats

Options = TypeVar("Options")


PROMPT_COLUMNS = 8
"""So many columns of a prompt count as one token in the size of a request, as they are run many at a time."""


class RequestOutput:
    """What is made of the tokens of one request: here the tokens themselves.

    Args:
        device: device of the result.
    """

    def __init__(self, device: torch.device):
        self.device = device

    def add(self, values: Sequence[Any], ended: bool) -> Sequence[Any]:
        """Take in what a round committed; called in the engine's thread.

        Args:
            values: tokens, none of them for a second time.
            ended: True with the last ones.

        Returns:
            What `RequestHandle.stream` yields of them.
        """
        return values

    def end(self, committed: Committed) -> None:
        """Take in the last round of the request; called in the engine's thread, after `add`.

        Args:
            committed: its outcome, of the request's row alone.
        """

    def stream(self, pieces: Iterator[Any], decode: Callable[[list[int]], str] | None) -> Iterator[Any]:
        """Return what `RequestHandle.stream` iterates over.

        Args:
            pieces: what `add` has returned, as it comes.
            decode: maps ids to text.

        Returns:
            The iterator.

        Raises:
            ValueError: for `decode`, if the tokens are no text.
        """
        if decode is not None:
            raise ValueError("decode is for text, which this model does not generate: leave it out")
        return pieces

    def result(self, tokens: Sequence[Any], stats: Stats) -> Any:
        """Return the result of a finished request, as the modality's own call does for it alone.

        Args:
            tokens: everything that was committed.
            stats: the request's own.

        Returns:
            Here `tokens` [1, S, *value], their `lengths` and `stats`.
        """
        return committed_row(tokens, stats, self.device)


class EngineWork(Protocol):
    """One request, checked."""

    @property
    def columns(self) -> int:
        """Columns of its prompt, by which it is decided which requests start together."""
        ...

    @property
    def size(self) -> int:
        """How long it may run, in tokens, `PROMPT_COLUMNS` columns of its prompt counted as one."""
        ...

    @property
    def together(self) -> bool:
        """True if its prompt can be padded to those of others."""
        ...

    def output(self) -> RequestOutput:
        """Return what takes in its tokens."""
        ...


def may_begin(work: EngineWork, most: int | None) -> bool:
    """Return True if a request may begin now.

    Args:
        work: the request.
        most: most columns of a prompt that is padded to those of others; None where the request would begin alone.
    """
    return most is None or (work.together and work.columns <= most)


class EngineModel(Protocol):
    """A target and a drafter that serve many requests of one modality.

    Attributes:
        options: the class of the options of a request, a frozen dataclass.
    """

    options: ClassVar[type]

    @property
    def rule(self) -> AcceptRule:
        """The accept rule; token-exact, so that requests do not depend on those beside them."""
        ...

    @property
    def control(self) -> Control:
        """Chooses draft lengths."""
        ...

    @property
    def max_length(self) -> int | None:
        """Most tokens of a prompt and its output; None for no bound."""
        ...

    def read(self, inputs: Any, options: Any) -> EngineWork:
        """Check a request.

        Args:
            inputs: what is generated from, as the modality's own call takes it for one row.
            options: an instance of the class `options`.

        Returns:
            The request, checked.

        Raises:
            ValueError: for invalid arguments, in one line.
        """
        ...

    def open(self, works: Sequence[Any], control: Control | None = None) -> Rounds:
        """Open a generation of some requests, one a row, whose rows can join that of others.

        Args:
            works: the requests.
            control: chooses draft lengths; by default those of the rounds before the rows join others.

        Returns:
            The generation, whose target's session is `core.rows.changes.RunsPrompt`. Nothing has run yet.
        """
        ...


def options_of(kind: type[Options], given: Mapping[str, Any], what: str) -> Options:
    """Return options that were given by name.

    Args:
        kind: their class, a frozen dataclass.
        given: options by name.
        what: what each of them is, for the message.

    Returns:
        An instance of `kind`.

    Raises:
        ValueError: for a name that `kind` does not have.
    """
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise ValueError(f"{name} is no {what}; valid: {', '.join(known) or 'none'}")
    return kind(**given)
