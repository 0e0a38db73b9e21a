"""The protocols of the decoding loop: targets, drafters, and stopping criteria."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict


class TargetSession(Protocol):
    """A target in one generation. It owns the cache."""

    @property
    def scored(self) -> int:
        """Number of columns of the current draft that have been scored."""
        ...

    def score(self, draft: Draft) -> Scored:
        """Score the nodes that were not scored before in this round.

        Args:
            draft: the current draft. It may have grown since the last call of this round.

        Returns:
            The target's distribution after every node.
        """
        ...

    def commit(self, keep: Tensor, most: int) -> None:
        """Keep a part of the draft in the cache and drop the rest.

        Args:
            keep: LongTensor [B, K], columns of the draft in order, -1 where a row keeps fewer.
            most: the largest number of columns that any row keeps.
        """
        ...


class Target(Protocol):
    """A model and its settings. It holds no state between generations."""

    def begin(self, prompt: Any) -> tuple[TargetSession, Draft]:
        """Open a session.

        Args:
            prompt: what the target reads, in the form that its family defines.

        Returns:
            The session, and the draft that holds the pending token: the prompt's last position. No forward need have run yet.
        """
        ...


class DraftSession(Protocol):
    """A drafter in one generation.

    `decode` calls `propose` and `observe` in turn. Drafters that draft with other drafters (cascades) rely on two more things.
    `propose` may be called again before `observe`; each call replaces the one before. The pending draft may have several roots:
    values that are committed for now and that the next call may take back. Its first root is committed. PAD stands where a row
    has fewer values, and as the last root of a row that has no budget left. Such a drafter then observes a draft without draft
    tokens, whose roots are all values committed since the last `observe`.
    """

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Draft. Random numbers are drawn here only.

        Args:
            pending: the draft that holds the pending tokens only.
            budget: how many values each row may still commit, and the draft length.
            noise: the keyed noise of the generation.

        Returns:
            `pending` with draft tokens behind its last root, and the distribution that each was drawn from.
        """
        ...

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Record the outcome of a round.

        Args:
            draft: what was scored.
            scored: the target's distributions.
            verdict: what the rule kept.
            committed: the newly committed values, the next pending token included, on the host.
        """
        ...


class Drafter(Protocol):
    """A source of draft tokens and its settings. It holds no state between generations."""

    def begin(self, prompt: Any, session: TargetSession) -> DraftSession:
        """Open a session.

        Args:
            prompt: the request's prompt; a drafter may read a view of it.
            session: the target's session, for drafters that read its hidden states or cache.

        Returns:
            The drafter's session.
        """
        ...


class StoppingCriteria(Protocol):
    """Decides where rows end: `DefaultStopping`, or a class for outputs of another form."""

    @property
    def outputs(self) -> Sequence[Sequence[Any]]:
        """The values that each row has committed so far."""
        ...

    @property
    def finish_reasons(self) -> Sequence[str | None]:
        """Why each row ended, of `core.stopping.FINISH_REASONS`; None while it has not."""
        ...

    @property
    def open(self) -> bool:
        """True while any row can still generate."""
        ...

    def budget(self, length: int) -> Budget:
        """Return how many values each row may still commit, in a round of `length` draft tokens.

        Args:
            length: draft length of the round.

        Returns:
            The budget.
        """
        ...

    def commit(self, draft: Draft, scored: Scored, verdict: Verdict) -> tuple[Verdict, Committed]:
        """Cut a verdict where rows end, and transfer the outcome to the host: the one synchronisation of a round.

        Args:
            draft: what was scored.
            scored: the target's distributions.
            verdict: what the rule kept.

        Returns:
            The verdict, cut, and the committed values.
        """
        ...


@runtime_checkable
class OneChoice(Protocol):
    """How the processes that run one target together come to the same draft length: one of them chooses."""

    @property
    def leads(self) -> bool:
        """True in the process that chooses."""
        ...

    def agree(self, length: int) -> int:
        """Exchange the draft length of a round. Every process calls it in every round.

        Args:
            length: this process's own; read in the leading process only.

        Returns:
            The leading process's.
        """
        ...


@runtime_checkable
class InProcesses(Protocol):
    """A target that may run in several processes at once, all of which score the same drafts (tensor parallelism)."""

    def one_choice(self) -> OneChoice | None:
        """Return what makes the processes agree on draft lengths.

        Returns:
            None for a target that runs in this process alone.
        """
        ...


@runtime_checkable
class SelfTested(Protocol):
    """A target that tells whether tokens scored together get the distributions they have when each is scored alone."""

    def require_columns(self, prompt: Any) -> None:
        """Test the target, unless the result is known.

        Args:
            prompt: what `begin` takes.

        Raises:
            ValueError: where a token's distribution depends on what is drafted behind it or beside it; in one line.
        """
        ...


@runtime_checkable
class Later(Protocol):
    """A drafter with a deferred start: a generation that begins without draft tokens does not encode the drafter's prompt."""

    def later(self, prompt: Any, session: TargetSession) -> DraftSession:
        """As `begin`, but nothing is read or encoded before the first draft token is needed.

        Args:
            prompt: the request's prompt.
            session: the target's session.

        Returns:
            The drafter's session.
        """
        ...


@dataclass(frozen=True)
class StartWork:
    """What a drafter has to do before its first draft tokens, and how many of them the request may have a use for.

    Args:
        encoder: work of the drafter's own encoder, relative to that of the target's.
        step: work of a draft token, relative to a plain round of the target.
        values: values that a row is expected to commit.
    """

    encoder: float
    step: float
    values: float


@runtime_checkable
class CostlyStart(Protocol):
    """A drafter that may have an encoder of its own to run."""

    def start_work(self, prompt: Any, session: TargetSession) -> StartWork | None:
        """Estimate the work of the drafter's start. Nothing is encoded.

        Args:
            prompt: the request's prompt.
            session: the target's session.

        Returns:
            The estimate; None for a drafter whose start needs no consideration.
        """
        ...


@runtime_checkable
class Matches(Protocol):
    """A draft session that knows, before a draft length is chosen, how long the match is that its draft tokens would continue."""

    def matches(self, pending: Draft) -> list[int | None] | None:
        """Return the length of every row's match.

        Args:
            pending: the pending tokens of the coming round.

        Returns:
            Tokens by row: 0 where there are no draft tokens, None where the row has ended; or None if lengths are not known.
        """
        ...
