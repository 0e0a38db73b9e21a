"""Measurements for planners: acceptance by level and rank, and the seconds of drafting and verifying."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import torch

from mmspec.core.accept_rule import AcceptRule
from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.noise import Noise
from mmspec.core.protocols import Drafter, Target, TargetSession
from mmspec.core.records import Budget, Draft, Step
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.trees.planners import sparse_tree
from mmspec.drafters.trees.static import StaticTree, Template

# --- acceptance -------------------------------------------------------------------------------------------------------


@dataclass
class Calibration:
    """Counts how often the rank-r draft token at level d is kept, given that its parent was. Pass it as `on_step`; works with any rule.

    The children of a kept node count where the value after that node was committed. Where a row is cut by an end value, a stop or its
    budget, the children of its last value do not count. The rank of a draft token is its place among its siblings in column order, which
    is draw order. One host synchronisation a round.
    """

    hits: list[list[int]] = field(default_factory=list)  # [level][rank]
    tries: list[list[int]] = field(default_factory=list)

    def __call__(self, step: Step) -> None:
        """Count the draft tokens of one round."""
        for level, rank, _, kept in judged_nodes(step):
            _bump(self.tries, level, rank, 1)
            _bump(self.hits, level, rank, int(kept))

    def accuracy(self, least: int = 1) -> list[list[float]]:
        """Return the share of draft tokens kept, `[level][rank]`; 0 where fewer than `least` were judged."""
        return [
            [hit / tried if tried >= max(1, least) else 0.0 for hit, tried in zip(hits, tries, strict=True)]
            for hits, tries in zip(self.hits, self.tries, strict=True)
        ]

    def by_rank(self) -> list[float]:
        """Return the share of draft tokens kept by rank, over all levels: Sequoia's acceptance vector."""
        hits, tries = ([sum(rank) for rank in zip_longest(*counts, fillvalue=0)] for counts in (self.hits, self.tries))
        return [hit / tried for hit, tried in zip(hits, tries, strict=True)]

    def to_json(self) -> dict[str, list[list[int]]]:
        """Return plain data that `json.dump` can write."""
        return {"hits": self.hits, "tries": self.tries}

    @staticmethod
    def from_json(data: Any) -> "Calibration":
        """Rebuild a calibration from what `to_json` returned. ValueError for anything else."""
        tables: list[Any] = [data.get(name) if isinstance(data, Mapping) else None for name in ("hits", "tries")]
        if not all(map(_counts, tables)) or len({tuple(map(len, table)) for table in tables}) > 1:
            raise ValueError('not a calibration: give {"hits": ..., "tries": ...}, two tables [level][rank] of counts of one shape')
        hits, tries = tables
        if any(hit > tried for pair in zip(hits, tries, strict=True) for hit, tried in zip(*pair, strict=True)):
            raise ValueError("a calibration counts more hits than tries: measure it again")
        return Calibration([list(row) for row in hits], [list(row) for row in tries])


def judged_nodes(step: Step) -> Iterator[tuple[int, int, int, bool]]:
    """Yield (level, rank, column, kept) of every draft token of a round whose parent was kept, row by row; see `Calibration`."""
    draft = step.draft
    rows = torch.cat([draft.parents, step.verdict.keep], 1).tolist()
    for row, values in zip(rows, step.committed.values, strict=True):
        if not values:
            continue
        children: dict[int, list[int]] = {}
        for column in range(draft.roots, draft.size):
            children.setdefault(row[column], []).append(column)
        path = [draft.roots - 1, *(column for column in row[draft.size + draft.roots :] if column >= 0)]
        for level, (node, kept) in enumerate(zip_longest(path[: len(values)], path[1 : len(values) + 1])):
            for rank, column in enumerate(children.get(node, ())):
                yield level, rank, column, column == kept


def _bump(counts: list[list[int]], level: int, rank: int, by: int) -> None:
    counts.extend([] for _ in range(level + 1 - len(counts)))
    counts[level].extend([0] * (rank + 1 - len(counts[level])))
    counts[level][rank] += by


def _counts(table: Any) -> bool:
    return isinstance(table, list) and all(isinstance(row, list) and all(type(n) is int and n >= 0 for n in row) for row in table)


# --- runs that calibrate ----------------------------------------------------------------------------------------------


class Play(Protocol):
    """A generation over one batch, with drafts in the form of `tree`: a modality's public call, or a function made by `playing`."""

    def __call__(self, batch: Any, /, *, tree: Template, seed: int, on_step: Callable[[Step], None]) -> Any:
        """Generate over one batch.

        Args:
            batch: inputs of the call.
            tree: form of the draft.
            seed: seed of the noise.
            on_step: called with every round.
        """
        ...


def broad(nodes: int, depth: int, decay: float = 0.4) -> Template:
    """Return a tree to calibrate on, for a drafter whose rank r is right with probability (1 - decay) decay^r.

    Every level has all ranks that such a drafter has right in more than one of fifty cases. 0.4 suits text; for flat distributions, such
    as codes of speech, use 0.8.

    Args:
        nodes: number of nodes.
        depth: number of levels.
        decay: factor by which a rank is less probable than the one before it.

    Raises:
        ValueError: for a decay out of range.
    """
    if not 0 < decay < 1:
        raise ValueError(f"decay is {decay}: a drafter's ranks decay by a factor between 0 and 1")
    rates = [(1 - decay) * decay**rank for rank in range(2 * nodes)]
    ranks = 1 + max(0, math.floor(math.log(0.02 / (1 - decay), decay)))
    likely = sparse_tree([rates] * depth, 2 * nodes)
    return Template(tuple({*likely.paths, *((*[0] * level, rank) for level in range(depth) for rank in range(ranks))}))


def calibrate(play: Play, batches: Iterable[Any], tree: Template, seed: int = 0) -> tuple[Stats, Calibration]:
    """Decode all batches with `tree` and count how often each of its draft tokens is kept.

    The result holds for the sampler, temperature and rule of `play`: calibrate with those that the planned tree will be used with.

    Args:
        play: decodes one batch.
        batches: prompts, batch by batch.
        tree: the template to draft with.
        seed: row r of all batches together uses seed `seed` + r, whatever the batch size.

    Returns:
        Statistics of the runs, and the calibration, whose `accuracy()` planners take.
    """
    stats, calibration, rows = Stats(), Calibration(), 0

    def count(step: Step) -> None:
        nonlocal rows
        rows = len(step.committed.values)
        stats.add(step)
        calibration(step)

    for batch in batches:
        play(batch, tree=tree, seed=seed, on_step=count)
        seed, rows = seed + rows, 0
    return stats, calibration


def playing(target: Target, drafter: Callable[[Template], Drafter], rule: AcceptRule, *, most: int, ends: Sequence[int] = ()) -> Play:
    """Return a `Play` for any target, such as an `HFTarget` with its processors.

    Args:
        target: the target.
        drafter: makes the drafter for a given template, with siblings as `rule` needs them; see `mmspec.run.drafters.drafter_of`.
        rule: the accept rule.
        most: values per row.
        ends: values that end a row.
    """

    def play(batch: Mapping[str, torch.Tensor], /, *, tree: Template, seed: int, on_step: Callable[[Step], None]) -> None:
        some = next(iter(batch.values()))
        stopping, noise = DefaultStopping(len(some), most, ends, device=some.device), Noise.from_seed(seed, len(some), some.device)
        for step in decode(target, drafter(tree), rule, batch, stopping=stopping, noise=noise, control=Fixed(tree.depth)):
            on_step(step)

    return play


# --- costs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Median seconds on one machine, at one batch size and context."""

    draft_seconds: float  # one level of a tree: the drafter's step and its draws
    verify_seconds: dict[int, float]  # by number of draft tokens: scoring them and their root, and forgetting them; 0 is plain decoding


def measure_costs(
    target: Target, drafter: Target, prompt: Any, sizes: Sequence[int] = (0, 1, 2, 4, 8, 16, 32, 64), repeats: int = 9
) -> Costs:
    """Measure the seconds of drafting with `drafter` and of verifying with `target` after `prompt`, in the form `sequoia` takes.

    Judging and host work between forwards are not included. The batch of the prompt is the one measured.

    Args:
        target: the target.
        drafter: the drafter's model.
        prompt: prompt of both.
        sizes: numbers of draft tokens to time, from 0.
        repeats: runs per size; the median is taken.

    Raises:
        ValueError: for sizes or repeats out of range.
    """
    verify = verify_seconds(target, prompt, sizes, repeats)
    session, pending = _opened(drafter, prompt)
    return Costs(_seconds(_growing(session, pending), repeats) / _LEVELS.depth, verify)


def verify_seconds(target: Target, prompt: Any, sizes: Sequence[int], repeats: int = 9) -> dict[int, float]:
    """Measure the seconds of scoring drafts with `target` after `prompt`, by number of draft tokens; see `measure_costs`."""
    if repeats < 1 or not sizes or min(sizes) < 0:
        raise ValueError(f"sizes are {tuple(sizes)} and repeats {repeats}: give sizes from 0 and at least 1 repeat")
    session, pending = _opened(target, prompt)
    return {size: _seconds(_scoring(session, _star(pending, size)), repeats) for size in sizes}


_LEVELS = Template.branching((4, 1, 1, 1))  # what drafting is timed on: a few nodes a level, the first one alone


def _opened(target: Target, prompt: Any) -> tuple[TargetSession, Draft]:
    """A session behind its prompt, and a pending token that goes on from there."""
    session, pending = target.begin(prompt)
    session.score(pending)
    session.commit(torch.zeros_like(pending.parents), 1)
    return session, Draft.root(pending.nodes[:, -1], pending.start + 1)


def _star(pending: Draft, size: int) -> Draft:
    """`size` draft tokens under the pending token."""
    if size == 0:
        return pending
    return pending.extend(pending.nodes.expand(-1, size), torch.zeros_like(pending.parents).expand(-1, size), width=size, levels=1)


def _scoring(session: TargetSession, draft: Draft) -> Callable[[], torch.Tensor]:
    """A verify step that leaves the session as it was."""

    def step() -> torch.Tensor:
        best = session.score(draft).p.mode()
        session.commit(torch.full_like(draft.parents, -1), 0)
        return best

    return step


def _growing(session: TargetSession, pending: Draft) -> Callable[[], torch.Tensor]:
    """The growth of a small tree that leaves the session as it was."""
    rows, shape = len(pending.start), StaticTree(_LEVELS)
    budget = Budget(torch.full_like(pending.start, _LEVELS.depth + 1), _LEVELS.depth)
    noise = Noise.from_seed(0, rows, pending.start.device)

    def step() -> torch.Tensor:
        grown, _ = shape.grow(session.score, pending, budget, noise)
        session.commit(torch.full_like(grown.parents[:, : session.scored], -1), 0)
        return grown.nodes

    return step


@torch.no_grad()
def _seconds(step: Callable[[], torch.Tensor], repeats: int) -> float:
    """The median of `repeats` runs, each waited for, after two that warm up."""
    seconds = []
    for _ in range(repeats + 2):
        begun = perf_counter()
        step().flatten()[0].item()
        seconds.append(perf_counter() - begun)
    return median(seconds[2:])
