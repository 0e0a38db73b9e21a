"""A target's and a drafter's distributions at positions of text, compared chunk by chunk, so that only the logits of a chunk exist."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from mmspec.drafters.guided import head_of, head_rows
from mmspec.train.losses import Loss
from mmspec.train.states.memory import LOGITS, chunk_of_positions


@dataclass(frozen=True)
class TargetSide:
    """The target's distributions over a drafter's values.

    Args:
        target: the transformers model.
        known: [R] ids of the drafter's values; None for all.
    """

    target: Any
    known: Tensor | None = None

    @property
    def size(self) -> int:
        """Number of values of the target."""
        return self.target.config.get_text_config(decoder=True).vocab_size

    def head(self, rows: bool) -> Callable[[Tensor], Tensor]:
        """Return the map from last hidden states [T, H] to float32 logits, of the known values only with `rows`."""
        found = head_rows(self.target, self.known) if rows and self.known is not None else head_of(self.target)
        weight = getattr(self.target.get_output_embeddings(), "weight", None)
        return lambda last: found(last if weight is None else last.to(weight.dtype)).float()

    def places(self) -> Tensor | None:
        """Return [size] the place of each of the target's values among the known ones, -1 for others; None where all are known."""
        if self.known is None:
            return None
        found = self.known.new_full((max(self.size, int(self.known.max()) + 1),), -1)
        return found.index_copy_(0, self.known, torch.arange(len(self.known), device=found.device))


@dataclass(frozen=True)
class ComparedPositions:
    """T positions of text where a target and a drafter are compared."""

    last: Tensor  # [T, H] the target's last hidden states there
    total: Tensor | None  # [T] logsumexp of its logits; None: computed from `last` where it is needed
    value: Tensor | None  # [T] the third argument of the loss, an id of the target's; None: its likeliest value


class Levels(Protocol):
    """What a drafter predicts at L levels."""

    @property
    def hidden(self) -> Sequence[Tensor]:
        """The tensors that the heads read."""
        ...

    @property
    def sets(self) -> int:
        """Sets of logits that are held for a position."""
        ...

    def parts(self, step: int) -> Iterator[tuple[Any, Any, Sequence[Tensor]]]:
        """Yield chunks: the indices of their positions, what `logits` needs besides, and their part of `hidden`."""
        ...

    def logits(self, where: Any, hidden: Sequence[Tensor]) -> Iterator[tuple[Any, Tensor, Tensor | None]]:
        """Yield for every level which of a chunk's positions it predicts, its logits there over the drafter's values, and logits of its
        estimate of acceptance, None where it has no estimate."""
        ...


@dataclass(frozen=True)
class Predicted:
    """What a drafter predicts at one level, for M of the positions."""

    states: Tensor  # [M, H] what `head` reads
    head: Callable[[Tensor], Tensor]  # gives logits over the drafter's values
    at: Tensor  # [T] bool, which positions
    confidence: Callable[[Tensor], Tensor | None] | None = None  # gives logits [M] of acceptance, where it is estimated


@dataclass(frozen=True)
class SeparateLevels:
    """Levels each of which has states and a head of its own."""

    levels: Sequence[Predicted]

    @property
    def hidden(self) -> Sequence[Tensor]:
        """The states of all levels."""
        return [level.states for level in self.levels]

    @property
    def sets(self) -> int:
        """One set of logits a level."""
        return len(self.levels)

    def parts(self, step: int) -> Iterator[tuple[Any, Any, Sequence[Tensor]]]:
        """Yield chunks of `step` positions; see `Levels.parts`."""
        at = [level.at.split(step) for level in self.levels]
        states = [level.states.split([int(part.sum()) for part in here]) for level, here in zip(self.levels, at, strict=True)]
        for number, (where, hidden) in enumerate(zip(zip(*at, strict=True), zip(*states, strict=True), strict=True)):
            yield slice(number * step, (number + 1) * step), where, hidden

    def logits(self, where: Any, hidden: Sequence[Tensor]) -> Iterator[tuple[Any, Tensor, Tensor | None]]:
        """Yield the levels' positions, logits and estimates; see `Levels.logits`."""
        for level, at, states in zip(self.levels, where, hidden, strict=True):
            yield at, level.head(states), None if level.confidence is None else level.confidence(states)


@dataclass(frozen=True)
class LevelsTogether:
    """Levels that one head makes together, from one state a place. Every place predicts another position at each level."""

    states: Tensor  # [P, H]
    given: Tensor  # [P, D] values that the head reads besides
    head: Callable[[Tensor, Tensor], Iterator[Tensor]]  # gives logits [P, V] level by level
    position: Tensor  # [L, P] the position that is predicted
    at: Tensor  # [L, P] bool, whether it counts
    sets: int

    @property
    def hidden(self) -> Sequence[Tensor]:
        """The states alone."""
        return [self.states]

    def parts(self, step: int) -> Iterator[tuple[Any, Any, Sequence[Tensor]]]:
        """Yield chunks of `step` places, with their positions level by level; see `Levels.parts`."""
        for position, at, given, states in zip(
            self.position.split(step, 1), self.at.split(step, 1), self.given.split(step), self.states.split(step), strict=True
        ):
            yield position[at], (at, given), [states]

    def logits(self, where: Any, hidden: Sequence[Tensor]) -> Iterator[tuple[Any, Tensor, Tensor | None]]:
        """Yield the levels' positions and logits, without estimates; see `Levels.logits`."""
        (at, given), first = where, 0
        for here, count, logits in zip(at, at.sum(1).tolist(), self.head(hidden[0], given), strict=True):
            yield slice(first, first + count), logits[here], None
            first += count


@dataclass(frozen=True)
class Comparison:
    """A target's and a drafter's distributions at positions of text, made chunk by chunk: never all at once.

    Args:
        of: the loss, or what else is compared.
        theirs: the target's side.
        positions: the T positions.
        levels: what the drafter predicts there, L levels.
        logits: about how many logits of the drafter, all levels together, are made at once.
        confidence: weight of the cross-entropy between estimated acceptance and 1 - TV, which is added to `of`.
    """

    of: Loss
    theirs: TargetSide
    positions: ComparedPositions
    levels: Levels
    logits: int = LOGITS
    confidence: float = 0.0

    def sums(self) -> Tensor:
        """Return [L, ...] what `of` gives, summed over each level's positions. Gradients need all logits: see `loss`."""
        chunk = self._chunk()
        return torch.stack([chunk(*part) for part in self._parts()]).sum(0)

    def loss(self, weights: Tensor, leaves: Sequence[Tensor]) -> Tensor:
        """Return the sums [L], weighted by `weights` [L] and added: a scalar.

        Gradients are computed with the sums of a chunk, so that its logits are made once and need not be kept.

        Args:
            weights: [L] weight of each level's sum.
            leaves: the parameters that heads depend on; they are given gradients, as the levels' states are.
        """
        chunk, parts = self._chunk(), self._parts()
        if len(parts) == 1 or not torch.is_grad_enabled():
            return (torch.stack([chunk(*part) for part in parts]).sum(0) * weights).sum()
        scale = torch.ldexp(torch.ones_like(weights[0]), torch.frexp(weights.max()).exponent)  # a power of two: it rounds nothing
        weighted = lambda *part: (chunk(*part) * (weights / scale)).sum()  # noqa: E731  gradients that half precision holds
        return scale * _Accumulated.apply(weighted, parts, leaves, *self.levels.hidden, *leaves)  # type: ignore[operator]

    @property
    def _short(self) -> bool:
        """True if the target's logits of the drafter's values are enough."""
        return not (self.theirs.known is None or self.positions.total is None or self.positions.value is None)

    def _chunk(self) -> Callable[..., Tensor]:
        """Return the function that gives the sums [L, ...] of one of the `_parts`."""
        short, known = self._short, self.theirs.known
        with torch.no_grad():
            head, places = self.theirs.head(short), self.theirs.places()

        def chunk(last: Tensor, total: Tensor | None, value: Tensor | None, where: Any, *hidden: Tensor) -> Tensor:
            with torch.no_grad(), torch.autocast(last.device.type, enabled=False):
                log_p = head(last)
                log_p = log_p - total[:, None] if short and total is not None else log_p.log_softmax(-1)
                value = log_p.argmax(-1) if value is None else value
                if known is not None and places is not None:
                    log_p, value = log_p if short else log_p[:, known], places[value]
            sums = []
            for at, logits, sure in self.levels.logits(where, hidden):
                log_q = logits.float().log_softmax(-1)
                sums.append((self.of(log_p[at], log_q, value[at]) + self._doubt(sure, log_p[at], log_q)).sum(0))
            return torch.stack(sums)

        return chunk

    def _doubt(self, sure: Tensor | None, log_p: Tensor, log_q: Tensor) -> Tensor | float:
        """The weighted cross-entropy [M] of a level's estimate of acceptance; 0 where it is not asked for."""
        if not self.confidence or sure is None:
            return 0.0
        accepted = torch.minimum(log_p, log_q.detach()).exp().sum(-1).clamp(max=1)
        return self.confidence * binary_cross_entropy_with_logits(sure.float(), accepted, reduction="none")

    def _parts(self) -> list[tuple[Any, ...]]:
        """The arguments of each chunk: last, total, value, which of its positions every level has, and the levels' states there."""
        known, own = self.theirs.known, self.positions
        values = len(known) if self._short and known is not None else self.theirs.size
        parts = self.levels.parts(chunk_of_positions(values * self.levels.sets, self.logits))
        return [(*(None if x is None else x[at] for x in (own.last, own.total, own.value)), where, *states) for at, where, states in parts]


class _Accumulated(torch.autograd.Function):
    """The sum of a function over chunks, whose gradients are accumulated chunk by chunk in the forward pass."""

    @staticmethod
    def forward(ctx: Any, chunk: Callable[..., Tensor], parts: list[tuple[Any, ...]], leaves: Sequence[Tensor], *inputs: Tensor) -> Tensor:
        levels = len(inputs) - len(leaves)
        total, states = torch.zeros((), device=inputs[0].device), []
        others: list[Tensor | None] = [None] * len(leaves)
        for part in parts:
            hidden = [each.detach().requires_grad_() for each in part[4:]]
            with torch.enable_grad():
                value = chunk(*part[:4], *hidden)
            found = torch.autograd.grad(value, [*hidden, *leaves], allow_unused=True)
            total += value.detach()
            states.append(found[:levels])
            for number, gradient in enumerate(found[levels:]):
                others[number] = _added(others[number], gradient)
            del found  # it may be as large as a head
        ctx.gradients = [*(torch.cat(each) for each in zip(*states, strict=True)), *others]
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        return None, None, None, *(None if gradient is None else gradient * upstream[0] for gradient in ctx.gradients)


def _added(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """`total` with `gradient` added in place."""
    if total is None or gradient is None:
        return total if gradient is None else gradient.clone()  # two leaves may have the same one
    return total.add_(gradient)
