"""Fakes with explicit distributions: a target whose every conditional is a row of a table, and the joint distributions that follow from
it."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.protocols import Drafter
from mmspec.core.records import CONTEXT, Budget, Draft, Scored, Verdict
from mmspec.core.stopping import DefaultStopping
from tests.oracles.enumerate import Outcomes, Tape, TapeNoise, explore


@dataclass(frozen=True)
class Table:
    """A distribution for every history. A history's code is 1 followed by its values as base-V digits, so no two share one."""

    probs: Tensor  # [codes, V] float64

    @property
    def size(self) -> int:
        return self.probs.shape[1]

    @staticmethod
    @cache
    def random(size: int, length: int, seed: int, *, zeros: float = 0.0, sharp: float = 0.7) -> "Table":
        """Dirichlet(sharp) distributions for every history of up to `length` values; a share `zeros` of the entries is impossible."""
        generator = torch.Generator().manual_seed(seed)
        codes = 2 * size ** (length + 1)
        weights = torch._standard_gamma(torch.full((codes, size), sharp, dtype=torch.float64), generator) + 1e-3
        gone = torch.rand(codes, size, generator=generator) < zeros
        gone[torch.arange(codes), weights.argmax(-1)] = False
        weights = weights.masked_fill(gone, 0)
        return Table(weights / weights.sum(-1, keepdim=True))

    def blend(self, other: "Table", share: float) -> "Table":
        """`share` of this table and the rest of `other`: a drafter that knows something of the target."""
        return Table(share * self.probs + (1 - share) * other.probs)

    def truncated(self, k: int) -> "Table":
        """Every distribution restricted to its k likeliest values."""
        kept = self.probs.masked_fill(self.probs < self.probs.topk(k).values[:, -1:], 0)
        return Table(kept / kept.sum(-1, keepdim=True))

    def greedy(self) -> "Table":
        return Table(torch.nn.functional.one_hot(self.probs.argmax(-1), self.size).double())

    def distribution(self, codes: Tensor) -> Categorical:
        return Categorical(self.probs[codes].log())

    def step(self, codes: Tensor, values: Tensor) -> Tensor:
        return codes * self.size + values

    def extend(self, mass: Tensor, level: int) -> Tensor:
        """`mass` over histories of `level` values [V^level] pushed one value further, [V^(level + 1)]."""
        codes = torch.arange(self.size**level) + self.size**level
        return (mass[:, None] * self.probs[codes]).flatten()

    def joint(self, length: int) -> Tensor:
        """[V^length] distribution of the first `length` values."""
        mass = torch.ones(1, dtype=torch.float64)
        for level in range(length):
            mass = self.extend(mass, level)
        return mass


@dataclass(frozen=True)
class TableTarget:
    """A target that reads its distributions from a table; the prompt is the number of rows."""

    table: Table
    dtype: torch.dtype = torch.float64
    ordered = True

    def begin(self, prompt: int) -> tuple["TableSession", Draft]:
        ones = torch.ones(prompt, dtype=torch.long)
        return TableSession(self, prompt), Draft.root(ones, torch.zeros_like(ones))


class TableSession:
    """Keeps the committed history's code and honours the contract of a session: growing drafts, commits, nothing else."""

    def __init__(self, target: TableTarget, rows: int):
        self.target, self.table = target, target.table
        self.context = torch.zeros(rows, dtype=torch.long)  # the first committed value, 1, makes the empty history's code
        self.codes = self.nodes = torch.zeros(rows, 0, dtype=torch.long)
        self.scored = 0

    def score(self, draft: Draft) -> Scored:
        first = self.scored
        for column in range(first, draft.size):
            parent = draft.parents[:, column : column + 1]
            above = self.codes.gather(1, parent.clamp_min(0)) if column else self.context[:, None]
            above = torch.where(parent == CONTEXT, self.context[:, None], above)
            code = self.table.step(above, draft.nodes[:, column : column + 1]) % len(self.table.probs)
            self.codes = torch.cat([self.codes, code], 1)
        self.nodes, self.scored = draft.nodes, draft.size
        distribution = self.table.distribution(self.codes[:, first:])
        return Scored(Categorical(distribution.scores.to(self.target.dtype)))

    def commit(self, keep: Tensor, most: int) -> None:
        for column in keep.unbind(1):
            value = self.nodes.gather(1, column.clamp_min(0)[:, None])[:, 0]
            code = self.table.step(self.context, value) % len(self.table.probs)
            self.context = torch.where(column >= 0, code, self.context)
        self.codes = self.codes[:, :0]
        self.scored = 0


def run_loop(target, drafter: Drafter, rule, noise, rows: int, most: int, length: int) -> DefaultStopping:
    """A whole `decode`; its outputs and ends stand in the limits."""
    stopping = DefaultStopping(rows, most)
    for _ in decode(target, drafter, rule, rows, stopping=stopping, noise=noise, control=Fixed(length)):
        pass
    return stopping


def encode(values: Tensor, size: int) -> Tensor:
    """Base-V index of each row of `values` [R, n]."""
    code = torch.zeros(len(values), dtype=torch.long)
    for column in values.unbind(1):
        code = code * size + column
    return code


def loop_distribution(
    target, drafter: Drafter, rule, *, most: int, length: int, salt: int = 0, once: bool = True, together: int = 1 << 14
) -> Tensor:
    """[V^most] exact joint distribution of the outputs of whole runs of `decode`."""

    def run(tape: Tape) -> Tensor:
        noise = TapeNoise(tape, most)
        return torch.tensor(run_loop(target, drafter, rule, noise, tape.rows, most, length).outputs)

    outcomes = explore(run, salt=salt, once=once, together=together)
    size = target.table.size
    return outcomes.distribution(encode(outcomes.values, size), size**most)


def one_round(target, drafter: Drafter, rule, noise, rows: int, most: int, length: int) -> tuple[Draft, Verdict]:
    """The first round of a generation with room for `most` values."""
    session, pending = target.begin(rows)
    proposer = drafter.begin(rows, session)
    draft = proposer.propose(pending, Budget(torch.full((rows,), most), length), noise)
    return draft, rule(draft, session.score(draft), noise)


def round_outcomes(
    target, drafter: Drafter, rule, *, most: int, length: int, salt: int = 0, once: bool = True, together: int = 1 << 14
) -> Outcomes:
    """Every outcome of the first round: values [leaves, most] (-1 where none was committed), with judged counts and meters."""

    def run(tape: Tape) -> Tensor:
        _, verdict = one_round(target, drafter, rule, TapeNoise(tape, most), tape.rows, most, length)
        inside = torch.arange(verdict.values.shape[1]) < verdict.count[:, None]
        values = torch.where(inside, verdict.values, -1)
        values = torch.nn.functional.pad(values, (0, max(0, most - values.shape[1])), value=-1)[:, :most]
        meters = [verdict.accepted, verdict.judged]
        meters += [torch.zeros(tape.rows) if m is None else m for m in (verdict.drift, verdict.expected)]
        return torch.cat([values.double(), torch.stack([m.double() for m in meters], 1)], 1)

    outcomes = explore(run, salt=salt, once=once, together=together)
    names = ("accepted", "judged", "drift", "expected")
    extra = {name: outcomes.values[:, most + i] for i, name in enumerate(names)}
    return Outcomes(outcomes.values[:, :most].long(), outcomes.weights, extra)


def round_distribution(
    target, drafter: Drafter, rule, *, most: int, length: int, salt: int = 0, once: bool = True, together: int = 1 << 14
) -> Tensor:
    """[V^most] distribution of one round's committed values, completed to `most` by the target's own conditionals.

    A rule is exact if and only if this is the target's joint distribution, for it must be so after every round.
    """
    outcomes, table = round_outcomes(target, drafter, rule, most=most, length=length, salt=salt, once=once, together=together), target.table
    count = (outcomes.values >= 0).sum(1)
    mass = torch.zeros(1, dtype=torch.float64)
    for level in range(1, most + 1):
        mass = table.extend(mass, level - 1)
        here = count == level
        codes = encode(outcomes.values[here, :level], table.size)
        mass = mass.index_add(0, codes, outcomes.weights[here])
    return mass


def first_value_distribution(target, drafter: Drafter, rule, *, length: int = 1, most: int = 2, salt: int = 0, once: bool = True) -> Tensor:
    """[V] distribution of the first value one round commits."""
    outcomes = round_outcomes(target, drafter, rule, most=most, length=length, salt=salt, once=once)
    return outcomes.distribution(outcomes.values[:, 0], target.table.size)


def pair(size: int, length: int, seed: int, *, zeros: float = 0.15, knows: float = 0.5) -> tuple[TableTarget, TableTarget]:
    """A target and a smaller target to draft with: half the drafter's mass is the target's, and each rules out values of its own."""
    target, other = Table.random(size, length, 2 * seed, zeros=zeros), Table.random(size, length, 2 * seed + 1, zeros=zeros)
    return TableTarget(target), TableTarget(other.blend(target, knows) if seed % 2 else other)


def exact_error(
    target, drafter, rule, *, most: int, length: int, whole: bool = True, salt: int = 0, once: bool = True, together: int = 1 << 14
) -> float:
    """The largest error in any probability of the first `most` values, after one round and (if `whole`) in whole runs of `decode`."""
    goal = target.table.joint(most)
    settings = {"most": most, "length": length, "salt": salt, "once": once, "together": together}
    error = (round_distribution(target, drafter, rule, **settings) - goal).abs().max().item()
    if whole:
        distribution = loop_distribution(target, drafter, rule, **settings)
        error = max(error, (distribution - goal).abs().max().item())
    return error
