"""Tiny distributions over tries for the rules that sample beams: one level judged alone, and whole searches without a model."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.beams.search import BeamLevel, BeamRule, DrawnChildren, Forest, _own, of_children
from mmspec.core.beams.stopping import BeamStopping
from mmspec.core.beams.trie import Trie
from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.records import Draft, Scored
from mmspec.drafters.model.beams import BeamDrafter
from mmspec.drafters.none import NoDraft

# --- one level --------------------------------------------------------------------------------------------------------

TRIE = Trie.of(torch.tensor([[a, b] for a in range(3) for b in range(2)]))
"""Nodes 1, 2, 3 on the first level, the six pairs below them on the second."""
LEAF = TRIE.starts[-1]
Sets = dict[frozenset[int], float]


@dataclass(frozen=True)
class Toy:
    """Distributions over pairs. The drafter has all six; the target keeps the nodes `kept`, in that order, and has their children."""

    p: Tensor  # [6] weights, of which those below `kept` count
    q: Tensor  # [6]
    kept: tuple[int, ...] = (3, 1)

    @staticmethod
    def random(seed: int, kept: tuple[int, ...] = (3, 1), sharp: float = 0.8) -> "Toy":
        generator = torch.Generator().manual_seed(seed)
        p, q = (torch._standard_gamma(torch.full((6,), sharp, dtype=torch.float64), generator) + 0.05 for _ in range(2))
        return Toy(p, q, kept)

    @property
    def distribution(self) -> dict[int, float]:
        """P over the leaves that can come."""
        leaves = [2 * (node - 1) + child for node in self.kept for child in range(2)]
        return {leaf: float(self.p[leaf] / self.p[leaves].sum()) for leaf in leaves}

    @property
    def drafted(self) -> dict[int, float]:
        return dict(enumerate((self.q / self.q.sum()).tolist()))

    def winners(self, rule: BeamRule, spread, noise, rows: int) -> Tensor:
        """[rows, k] the leaves that win, -1 for none. `spread` None drafts nothing."""
        start = torch.zeros(rows, dtype=torch.long)
        nodes = torch.tensor([1, 2, 3]).expand(rows, 3)
        mine = TRIE.children(torch.tensor(self.kept).expand(rows, -1), 1)
        score = self.p.log()[(mine.state - LEAF).flatten(1)] - 3  # a path's score: any constant may be in it
        level = BeamLevel(mine, score, start[:, None], start)
        if spread is not None:
            all_pairs = TRIE.children(nodes, 1)
            draft = Draft.root(start, start)
            drawn = spread.draw(self.q.log().expand(rows, 6) + 1, all_pairs.state.flatten(1), draft, 0, noise)
            place = torch.tensor(self.kept).expand(rows, -1) - 1
            log_q, draft_tokens = _own(DrawnChildren(drawn.log_q.view(rows, 3, 2), drawn.index), place, 3)
            level = replace(level, log_q=log_q, draft_tokens=draft_tokens)
        index = rule.pick(level, noise)
        found = level.state.gather(1, index.clamp_min(0)) - LEAF
        return torch.where(index >= 0, found, -1)

    def draft_tokens(self, spread, noise, rows: int) -> Tensor:
        """[rows, N] the leaves drafted."""
        start = torch.zeros(rows, dtype=torch.long)
        state = TRIE.children(torch.tensor([1, 2, 3]).expand(rows, 3), 1).state.flatten(1)
        return spread.draw(self.q.log().expand(rows, 6), state, Draft.root(start, start), 0, noise).index


def with_replacement(distribution: Mapping[int, float], k: int) -> Sets:
    """The distribution of the set of k independent draws."""
    found: Sets = {}
    for values in itertools.product(distribution, repeat=k):
        chance = 1.0
        for value in values:
            chance *= distribution[value]
        found[frozenset(values)] = found.get(frozenset(values), 0.0) + chance
    return found


def in_turn(distribution: Mapping[int, float], k: int) -> dict[tuple[int, ...], float]:
    """The distribution of k draws one after the other without replacement, or of all there are."""
    total = sum(distribution.values())
    if k == 0 or not distribution or total <= 0:
        return {(): 1.0}
    found = {}
    for value, weight in distribution.items():
        if weight > 0:
            rest = {other: mass for other, mass in distribution.items() if other != value}
            for tail, chance in in_turn(rest, k - 1).items():
                found[(value, *tail)] = weight / total * chance
    return found


def as_sets(distribution: Mapping[tuple[int, ...], float]) -> Sets:
    found: Sets = {}
    for values, chance in distribution.items():
        found[frozenset(values)] = found.get(frozenset(values), 0.0) + chance
    return found


def code(leaves: Tensor) -> Tensor:
    """[B] a number for every set of leaves [B, k]; -1 is none."""
    there = leaves >= 0
    return torch.where(there, 1 << leaves.clamp_min(0), 0).sum(1)


def codes_distribution(sets: Sets, leaves: int) -> Tensor:
    """[2 ** leaves] a distribution of sets, by their numbers."""
    distribution = torch.zeros(1 << leaves, dtype=torch.float64)
    for values, chance in sets.items():
        distribution[sum(1 << value for value in values)] += chance
    return distribution


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum() / 2)


# --- whole searches ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shop:
    """A trie, and for every node of it a distribution over the tokens that may follow: the target's and a drafter's."""

    trie: Trie
    p: Tensor  # [nodes, V]
    q: Tensor

    @staticmethod
    def random(seed: int = 0, levels: int = 3, tokens: int = 3, leaves: int = 11, near: float = 0.5) -> "Shop":
        generator = torch.Generator().manual_seed(seed)
        paths = torch.cartesian_prod(*[torch.arange(tokens)] * levels)
        kept = torch.randperm(len(paths), generator=generator)[:leaves].sort().values
        trie = Trie.of(paths[kept])
        shape = torch.ones(len(trie.token), tokens, dtype=torch.float64)
        p, other = (torch._standard_gamma(shape, generator) + 0.05 for _ in range(2))
        p, other = (distribution / distribution.sum(-1, keepdim=True) for distribution in (p, other))
        return Shop(trie, p, near * p + (1 - near) * other)

    def begin(self, prompt: int) -> tuple["Session", Draft]:
        """The prompt is the number of rows."""
        zeros = torch.zeros(prompt, dtype=torch.long)
        root = Draft.root(zeros, zeros)
        state = torch.zeros_like(root.nodes)
        return Session(self.p), replace(root, linear=False, trunk=self.trie.levels, score=state.double(), aux=Forest(state, 1, 0))

    def beam_guide(self, prompt, session, trie) -> "Guide":
        return Guide(self.q)

    def score(self, leaf: int) -> dict[int, float]:
        """The target's probability of every node on the way to a leaf, the leaf included."""
        found, mass = {}, 1.0
        node = 0
        for level in range(1, self.trie.levels + 1):
            begin, end = int(self.trie.child[node]), int(self.trie.child[node + 1])
            tail = self.trie.starts[-1] + leaf
            below = [child for child in range(begin, end) if self._holds(child, tail, level)]
            mass *= float(self.p[node, self.trie.token[below[0]]])
            node = below[0]
            found[node] = mass
        return found

    def _holds(self, node: int, leaf: int, level: int) -> bool:
        if level == self.trie.levels:
            return node == leaf
        return bool(self.trie.span[node, 0] <= leaf - self.trie.starts[-1] < self.trie.span[node, 1])

    def distribution(self, k: int, temperature: float = 1.0, draws=with_replacement) -> Sets:
        """The distribution of a search's last beams, when `draws(pairs' distribution, k)` is that of every level's."""
        mass: dict[int, float] = {0: 1.0}
        for leaf in range(self.trie.size):
            mass |= self.score(leaf)
        sets: Sets = {frozenset([0]): 1.0}
        for _ in range(self.trie.levels):
            following: Sets = {}
            for beams, chance in sets.items():
                pairs = [n for beam in beams for n in range(int(self.trie.child[beam]), int(self.trie.child[beam + 1]))]
                distribution = {pair: mass[pair] ** (1 / temperature) for pair in pairs}
                total = sum(distribution.values())
                for winners, share in draws({pair: weight / total for pair, weight in distribution.items()}, k).items():
                    following[winners] = following.get(winners, 0.0) + chance * share
            sets = following
        return {frozenset(node - self.trie.starts[-1] for node in beams): chance for beams, chance in sets.items()}

    def search(self, rule: BeamRule, spread, noise, rows: int, length: int = 2) -> tuple[Tensor, int]:
        """The leaves found [rows, k], and how many calls of a row that took."""
        stopping = BeamStopping(rows, self.trie.levels, rule.k)
        stopping.score = stopping.score.double()
        drafter = NoDraft() if spread is None else BeamDrafter(self, self.trie, spread)
        calls = 0
        for step in decode(self, drafter, rule, rows, stopping=stopping, noise=noise, control=Fixed(0 if spread is None else length)):  # pyright: ignore[reportArgumentType]
            calls += sum(map(bool, step.committed.values))
        return torch.where(stopping.state >= 0, stopping.state - self.trie.starts[-1], -1), calls


@dataclass
class Session:
    table: Tensor
    scored: int = 0

    def score(self, draft: Draft) -> Scored:
        return Scored(_distributions(self.table, draft))

    def commit(self, keep: Tensor, most: int) -> None:
        pass


@dataclass
class Guide:
    table: Tensor

    def weigh(self, draft: Draft, children) -> Tensor:
        count = children.state.shape[1]
        columns = torch.arange(draft.size - count, draft.size).expand(len(draft.start), -1)
        return of_children(_distributions(self.table, draft), columns, children)

    def observe(self, draft, scored, verdict) -> None:
        pass


def _distributions(table: Tensor, draft: Draft) -> Categorical:
    return Categorical(table[draft.aux.state.clamp_min(0)].log())
