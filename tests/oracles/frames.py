"""Frame targets with explicit distributions: every distribution of a frame is a row of a table over its V^K values, read whole or code by
code."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import generate
from mmspec.core.distributions.depth_frame import Choose, DepthFrame, FrameWriter, one_by_one
from mmspec.core.distributions.frame import Frame
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from tests.oracles.enumerate import Outcomes, Tape, TapeNoise, explore
from tests.oracles.tables import Table, TableSession, TableTarget, encode, one_round, run_loop


@dataclass(frozen=True)
class FrameTable:
    """A distribution over frames of `books` codes below `size` for every history. A frame's number is its codes as base-V digits, book 0
    first."""

    table: Table  # [codes, V^K]
    books: int
    size: int
    hangs: bool  # does a code hang on those before it in its frame?

    @staticmethod
    def independent(books: int, size: int, length: int, seed: int, **options: Any) -> "FrameTable":
        """Each code has a distribution of its own: histories of up to `length` frames have their own."""
        rows = books * (length + 1) - 1  # as many distributions as there are histories of frames
        return FrameTable(
            _product([Table.random(size, rows, 31 * seed + book, **options).probs for book in range(books)]), books, size, False
        )

    @staticmethod
    def depth(books: int, size: int, length: int, seed: int, **options: Any) -> "FrameTable":
        """Any distribution over frames, which is what a depth net can write."""
        return FrameTable(Table.random(size**books, length, 31 * seed, **options), books, size, True)

    def like(self, other: "FrameTable", share: float) -> "FrameTable":
        """A drafter's table that knows something of `other`: the mean of both distributions, code by code where codes are independent."""
        if self.hangs:
            return replace(self, table=self.table.blend(other.table, share))
        distributions = [share * self.marginal(book) + (1 - share) * other.marginal(book) for book in range(self.books)]
        return replace(self, table=_product(distributions))

    def marginal(self, book: int) -> Tensor:
        """[codes, V]"""
        return self.table.probs.view(-1, self.size**book, self.size, self.size ** (self.books - book - 1)).sum((1, 3))

    def given(self, codes: Tensor, frames: Tensor) -> Tensor:
        """[M, K, V] distribution of every code of `frames` [M, K], given those before it, after histories `codes` [M]."""
        distributions, rest = [], self.table.probs[codes]
        for book in range(self.books):
            rest = rest.view(len(rest), self.size, -1)
            mass = rest.sum(-1)
            total = mass.sum(-1, keepdim=True)
            distributions.append(torch.where(total > 0, mass / total, 1 / self.size))  # behind what cannot be, anything may stand
            rest = rest[torch.arange(len(rest)), frames[:, book]]
        return torch.stack(distributions, 1)

    def number(self, frames: Tensor) -> Tensor:
        """[...] numbers of `frames` [..., K]."""
        return encode(frames.flatten(0, -2), self.size).view(frames.shape[:-1])

    def frame(self, numbers: Tensor) -> Tensor:
        """[..., K] frames of `numbers` [...]."""
        digits = self.size ** torch.arange(self.books - 1, -1, -1)
        return numbers[..., None] // digits % self.size

    def all(self) -> Tensor:
        """[V^K, K] every frame."""
        return self.frame(torch.arange(self.size**self.books))


def _product(distributions: Sequence[Tensor]) -> Table:
    """Distributions [codes, V] of independent codes as one of frames."""
    joint = distributions[0]
    for distribution in distributions[1:]:
        joint = (joint[..., None] * distribution[:, None]).flatten(1)
    return Table(joint)


@dataclass
class TableDepth:
    """A depth net that reads its distributions from a table; its state is the history's number. Counts its runs."""

    table: FrameTable
    runs: int = 0

    @property
    def books(self) -> int:
        return self.table.books

    def scores(self, hidden: Tensor, codes: Tensor) -> Tensor:
        self.runs += 1
        return self.table.given(hidden[:, 0], codes).log()

    def write(self, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
        codes = codes.clone()
        for book in range(first, self.books):
            codes[:, book] = choose(self.scores(hidden, codes)[:, book], book)
        return codes


def always(depth: Any, hidden: Tensor, codes: Tensor, first: int, choose: Choose) -> Tensor:
    """One by one from book 0 on, whatever `first`: an enumeration needs the same draws in every batch. `choose` keeps what is to stay."""
    return depth.write(hidden, codes, 0, choose)


@dataclass
class FrameTarget:
    """A target of frames; the prompt is the number of rows."""

    frames: FrameTable
    writer: FrameWriter = one_by_one

    def __post_init__(self):
        self.depth = TableDepth(self.frames)

    def begin(self, prompt: int) -> tuple["FrameSession", Draft]:
        inner, pending = TableTarget(self.frames.table).begin(prompt)
        return FrameSession(self, inner), replace(pending, nodes=self.frames.frame(pending.nodes))

    def distribution(self, codes: Tensor) -> Any:
        """The distribution of the frame after histories `codes` [...]."""
        if self.frames.hangs:
            return DepthFrame(codes[..., None], self.depth, self.writer)
        return Frame(torch.stack([self.frames.marginal(book)[codes] for book in range(self.frames.books)], -2).log())


class FrameSession:
    """A table's session behind frames."""

    def __init__(self, target: FrameTarget, inner: TableSession):
        self.target, self.inner = target, inner

    @property
    def scored(self) -> int:
        return self.inner.scored

    def score(self, draft: Draft) -> Scored:
        first = self.inner.scored
        self.inner.score(replace(draft, nodes=self.target.frames.number(draft.nodes), q=None))
        return Scored(self.target.distribution(self.inner.codes[:, first:]))

    def commit(self, keep: Tensor, most: int) -> None:
        self.inner.commit(keep, most)


# --- exact distributions -------------------------------------------------------------------------------------------------------


def frame_pair(
    books: int, size: int, length: int, seed: int, *, hangs: bool, knows: float = 0.5, **options: Any
) -> tuple[FrameTarget, FrameTarget]:
    """A target and a drafter that knows half of it."""
    make = FrameTable.depth if hangs else FrameTable.independent
    target, other = (make(books, size, length, 2 * seed + turn, **options) for turn in (0, 1))
    return FrameTarget(target, always), FrameTarget(other.like(target, 1 - knows), always)


def frames_loop_distribution(
    target: FrameTarget, drafter: Any, rule: Any, *, most: int, length: int, salt: int = 0, once: bool = True
) -> Tensor:
    """[V^(K most)] exact joint distribution of the outputs of whole runs of `decode`."""

    def run(tape: Tape) -> Tensor:
        noise = TapeNoise(tape, most)
        outputs = torch.tensor(run_loop(target, drafter, rule, noise, tape.rows, most, length).outputs)
        return target.frames.number(outputs)

    outcomes = explore(run, salt=salt, once=once)
    size = target.frames.table.size
    return outcomes.distribution(encode(outcomes.values, size), size**most)


def frames_round(target: FrameTarget, drafter: Any, rule: Any, *, most: int, length: int, salt: int = 0, once: bool = True) -> Outcomes:
    """Every outcome of the first round: numbers [leaves, most] (-1 where none was committed), with judged counts and meters."""

    def run(tape: Tape) -> Tensor:
        _, verdict = one_round(target, drafter, rule, TapeNoise(tape, most), tape.rows, most, length)
        return torch.cat([_numbers(target.frames, verdict, most).double(), _meters(verdict, tape.rows)], 1)

    outcomes = explore(run, salt=salt, once=once)
    names = ("accepted", "judged", "drift", "expected")
    extra = {name: outcomes.values[:, most + i] for i, name in enumerate(names)}
    return Outcomes(outcomes.values[:, :most].long(), outcomes.weights, extra)


def _numbers(table: FrameTable, verdict: Verdict, most: int) -> Tensor:
    inside = torch.arange(verdict.values.shape[1]) < verdict.count[:, None]
    values = torch.where(inside, table.number(verdict.values), -1)
    return torch.nn.functional.pad(values, (0, max(0, most - values.shape[1])), value=-1)[:, :most]


def _meters(verdict: Verdict, rows: int) -> Tensor:
    meters = [verdict.accepted, verdict.judged]
    meters += [torch.zeros(rows) if meter is None else meter for meter in (verdict.drift, verdict.expected)]
    return torch.stack([meter.double() for meter in meters], 1)


def frames_round_distribution(
    target: FrameTarget, drafter: Any, rule: Any, *, most: int, length: int, salt: int = 0, once: bool = True
) -> Tensor:
    """[V^(K most)] distribution of one round's committed frames, completed to `most` by the target's own conditionals."""
    outcomes, table = frames_round(target, drafter, rule, most=most, length=length, salt=salt, once=once), target.frames.table
    count, mass = (outcomes.values >= 0).sum(1), torch.zeros(1, dtype=torch.float64)
    for level in range(1, most + 1):
        here = count == level
        mass = table.extend(mass, level - 1)
        mass = mass.index_add(0, encode(outcomes.values[here, :level], table.size), outcomes.weights[here])
    return mass


def frames_run(
    target: FrameTarget, drafter: Any, rule: Any, noise: Any, rows: int, *, most: int, length: int, ends: Any = ()
) -> tuple[list[list[Any]], Stats]:
    """A whole generation: every row's frames, and what it took."""
    stopping = DefaultStopping(rows, most, ends)
    out = generate(target, drafter, rule, rows, stopping=stopping, noise=noise, control=Fixed(length))
    return stopping.outputs, out.stats
