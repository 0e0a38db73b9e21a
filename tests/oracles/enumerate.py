"""Exact distributions by enumeration: a noise source that replays choices, and a driver that explores every outcome of the code under test.

All randomness in rules and drafters goes through `Noise` and `Keys`. `TapeNoise` and `TapeKeys` stand in for them: every draw is
a choice among a few options of known probability, read from a tape. Rows are branches: one run replays many tapes at once, and
every option not taken on the way becomes a new tape, until none is left. A leaf's weight is the product of its choices'
probabilities, so the distribution of whatever the code returns is exact up to rounding.

Distinct keys give independent numbers. A key that comes up again, in a later round or at another node, gives the same number
again, and what follows from that depends on the distributions it is applied to. Two readings are offered. `once` takes every draw but a
key's first to be one that cannot matter: right for rules that draw each number for one purpose, and one that broke this would
show under one of two salts. Otherwise equal keys and distributions give equal choices, and equal keys with different distributions a choice
each: right for rules that draw the target's value after every node, where at any position only the committed path's history can matter.
That shared numbers do no harm to those is what the equality tests show; `Coupled`, whose drafter reads the target's own noise,
is left to them altogether.

Draft tokens that share Gumbel numbers between rounds are explored exactly where there are two values: argmax(log p + g) is then 1 if and
only if one uniform number, the same for every p, lies below p(1), and a branch remembers what is known of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

_NEVER = 1e-13
"""Options less likely than this are rounding, not outcomes."""


class Tape:
    """The choices of R rows: the `given` first ones are replayed, later ones take a possible option and note the others."""

    def __init__(self, choices: Tensor, given: Tensor, salt: int = 0, once: bool = True):
        self.choices, self.given, self.salt, self.once = choices, given, salt, once  # [R, T], [R]
        self.made: list[Tensor] = []
        self.others: list[tuple[Tensor, Tensor]] = []  # per draw: rows and the options they did not take
        self.keys = torch.empty(len(given), 0, dtype=torch.long)  # [R, draws], -1 where the draw was not live
        self.options: list[Tensor] = []
        self.weight = torch.ones(len(given), dtype=torch.float64)
        self.shared: list[tuple[Tensor, Tensor, Tensor]] = []  # keys (-1: none), chances of 1 and choices, each [R]

    @property
    def rows(self) -> int:
        return len(self.given)

    def draw(self, options: Tensor, live: Tensor) -> Tensor:
        """One of the options [R, O] of every row. A draw that is not `live` [R] takes a fixed one, which `salt` varies."""
        step = len(self.made)
        possible = options > _NEVER
        choice = possible.long().argmax(-1) if self.salt == 0 else options.shape[-1] - 1 - possible.flip(-1).long().argmax(-1)
        if step < self.choices.shape[1]:
            choice = torch.where(step < self.given, self.choices[:, step].long(), choice)
        chance = options.gather(-1, choice[:, None])[:, 0]
        self.weight = torch.where(live, self.weight * chance, self.weight)
        rest = possible & (live & (step >= self.given))[:, None]
        self.others.append(rest.scatter(1, choice[:, None], False).nonzero(as_tuple=True))
        self.made.append(choice)
        return choice

    def draw_shared(self, options: Tensor, key: Tensor, live: Tensor) -> Tensor:
        """One of two options [R, 2]: 1 where the uniform number of `key` [R], the same whenever it is asked, lies below its chance."""
        low, high = torch.zeros_like(options[:, 0]), torch.ones_like(options[:, 0])
        for keys, chance, choice in self.shared:
            same = keys == key
            high = torch.where(same & (choice == 1), torch.minimum(high, chance), high)
            low = torch.where(same & (choice == 0), torch.maximum(low, chance), low)
        one = ((options[:, 1] - low) / (high - low).clamp_min(_NEVER)).clamp(0, 1)
        choice = self.draw(torch.stack([1 - one, one], 1), live)
        self.shared.append((torch.where(live, key, -1), options[:, 1], choice))
        self.options.append(options)
        self.keys = torch.cat([self.keys, torch.full_like(key, -1)[:, None]], 1)  # no other draw has this key
        return choice

    def rest(self) -> list[tuple[Tensor, Tensor]]:
        """New tapes for every option seen and not taken."""
        made = torch.stack([*self.made, torch.zeros_like(self.given)], 1).to(torch.int8)
        found = []
        for step, (rows, option) in enumerate(self.others):
            if len(rows):
                tapes = made[rows, : step + 1]
                tapes[:, step] = option.to(torch.int8)
                found.append((tapes, torch.full((len(rows),), step + 1)))
        return found

    def draw_keyed(self, options: Tensor, key: Tensor, live: Tensor) -> Tensor:
        """`draw`, unless the row drew from this `key` [R] before (and, if not `once`, from the same options)."""
        if self.once:
            choice = self.draw(options, live & ~(self.keys == key[:, None]).any(1))
        else:
            choice = self._draw_again(options, key, live)
        self.keys = torch.cat([self.keys, torch.where(live, key, -1)[:, None]], 1)
        return choice

    def _draw_again(self, options: Tensor, key: Tensor, live: Tensor) -> Tensor:
        again = torch.full_like(key, -1)
        for step in (self.keys == key[:, None]).any(0).nonzero().flatten().tolist():
            old = self.options[step]
            if old.shape == options.shape:
                same = live & (self.keys[:, step] == key) & ((old - options).abs().amax(-1) < _NEVER)
                again = torch.where(same & (again < 0), self.made[step], again)  # the first is what was drawn, the others repeat it
        self.options.append(options)
        return torch.where(again >= 0, again, self.draw(options, live & (again < 0)))


@dataclass(frozen=True)
class TapeKeys:
    """`Keys` read from a tape."""

    tape: Tape
    words: Tensor  # [R, ...] int64
    live: Tensor  # [R, ...] bool: can this draw matter?
    shared: bool = False  # one Gumbel number a value for all draws from a key

    def below(self, probability: Tensor) -> Tensor:
        chance = probability.double().nan_to_num(0.0).clamp(0, 1).expand(self.words.shape)
        return self._each(torch.stack([1 - chance, chance], -1)).bool()

    def choose(self, scores: Tensor) -> Tensor:
        return self._each(_distribution(scores))

    def choose_distinct(self, scores: Tensor, count: int, ids: Tensor | None = None) -> Tensor:
        left = _distribution(scores).expand(*self.words.shape, -1)
        taken, free = [], torch.ones_like(left, dtype=torch.bool)
        for turn in range(count):
            mass = left.sum(-1, keepdim=True)
            options = torch.where(mass > _NEVER, left / mass, (free.cumsum(-1) == 1) & free)  # nothing left: the first unused one
            taken.append(self._each(options, turn))
            free = free.scatter(-1, taken[-1][..., None], False)
            left = torch.where(free, left, 0)
        return torch.stack(taken, -1)

    def draw(self, weights: Tensor) -> Tensor:
        return self._each(_distribution(weights.log())[..., None, :])

    def uniform(self) -> Tensor:
        raise NotImplementedError("a uniform number has no finite set of outcomes: draw with below or choose")

    def gumbel(self, size: int) -> Tensor:
        raise NotImplementedError("Gumbel numbers have no finite set of outcomes: draw with choose")

    def __getitem__(self, index) -> "TapeKeys":
        return replace(self, words=self.words[index], live=self.live[index])

    def where(self, mask: Tensor, other: "TapeKeys") -> "TapeKeys":
        return replace(self, words=torch.where(mask, self.words, other.words), live=torch.where(mask, self.live, other.live))

    def branch(self, count: int) -> "TapeKeys":
        words = self.words[..., None] + (torch.arange(1, count + 1) << 40)
        return replace(self, words=words, live=self.live[..., None].expand(words.shape))

    def _each(self, options: Tensor, turn: int = 0) -> Tensor:
        options = options.expand(*self.words.shape, -1).flatten(1, -2)
        keys, live = self.words.flatten(1) * 8 + turn, self.live.flatten(1)
        if self.shared and options.shape[-1] != 2:
            raise NotImplementedError("shared Gumbel numbers are explored for two values only")
        draw = self.tape.draw_shared if self.shared else self.tape.draw_keyed
        drawn = [draw(options[:, i], keys[:, i], live[:, i]) for i in range(keys.shape[1])]
        return torch.stack(drawn, 1).view(self.words.shape)


def _distribution(scores: Tensor) -> Tensor:
    """exp(scores), normalised; where nothing is possible the first value is taken, as by an argmax."""
    first = torch.nn.functional.one_hot(torch.zeros_like(scores[..., 0], dtype=torch.long), scores.shape[-1]).double()
    return torch.where(scores.amax(-1, keepdim=True) > -torch.inf, scores.double().softmax(-1), first)


@dataclass(frozen=True)
class TapeNoise:
    """`Noise` read from a tape, for outputs of `most` values.

    Draws for positions no output value stands for cannot matter, and neither can draft tokens of the last value, as a round always
    commits one value more than it accepts. They are not explored; a second run with another `salt` shows that they do not matter.
    """

    tape: Tape
    most: int
    coupled: bool = False

    def value(self, position: Tensor) -> TapeKeys:
        return self._keys(1, position, self.most)

    def draft_token(self, position: Tensor, start: Tensor, branch: Tensor | int = 0) -> TapeKeys:
        if self.coupled:
            raise NotImplementedError("coupled draft tokens share the target's Gumbel numbers, which an enumeration cannot replay")
        return self._keys(2, position, self.most - 1, start, branch)

    def shared(self, position: Tensor) -> TapeKeys:
        return replace(self._keys(5, position, self.most - 1), shared=True)

    def accept(self, position: Tensor, start: Tensor) -> TapeKeys:
        return self._keys(3, position, self.most - 1, start)

    def residual(self, position: Tensor, start: Tensor) -> TapeKeys:
        return self._keys(4, position, self.most - 1, start)

    def _keys(self, role: int, position: Tensor, end: int, start: Tensor | None = None, branch: Tensor | int = 0) -> TapeKeys:
        words = role + 8 * (position + 64 * (0 if start is None else start[:, None] + 1)) + 8 * 64 * 128 * branch
        return TapeKeys(self.tape, words.expand(position.shape), position < end)


@dataclass
class Outcomes:
    """Every leaf of an exploration: what the code returned, and how likely it is."""

    values: Tensor  # [leaves, ...]
    weights: Tensor  # [leaves]
    extra: dict[str, Tensor] = field(default_factory=dict)

    def distribution(self, codes: Tensor, size: int) -> Tensor:
        """[size] probability of each of `codes` [leaves]."""
        return torch.zeros(size, dtype=torch.float64).index_add_(0, codes, self.weights)


def explore(run: Callable[[Tape], Tensor], *, salt: int = 0, once: bool = True, leaves: int = 1 << 20, together: int = 1 << 14) -> Outcomes:
    """Run `run` on every tape, `together` at a time; it returns one outcome a row. The weights of all leaves are checked to sum to 1.

    Tapes that run together must draw at the same steps. Where the number of draws depends on what was drawn, run them one at a time.
    """
    found, weights = [], []
    stack = [(torch.zeros(1, 0, dtype=torch.int8), torch.zeros(1, dtype=torch.long))]
    while stack:
        tape = Tape(*_take(stack, together), salt, once)
        found.append(run(tape))
        weights.append(tape.weight)
        stack += tape.rest()
        if sum(map(len, weights)) > leaves:
            raise RuntimeError(f"more than {leaves} outcomes: take fewer values or draft tokens")
    outcomes = Outcomes(torch.cat(found), torch.cat(weights))
    total = outcomes.weights.sum().item()
    if not abs(total - 1) < 1e-9:
        raise RuntimeError(f"the outcomes' probabilities sum to {total}: some draw was missed or its distribution does not sum to 1")
    return outcomes


def _take(stack: list[tuple[Tensor, Tensor]], most: int) -> tuple[Tensor, Tensor]:
    """Up to `most` tapes off the stack, padded to one width."""
    parts, size = [], 0
    while stack and size < most:
        choices, given = stack.pop()
        budget = most - size
        if len(given) > budget:
            stack.append((choices[budget:], given[budget:]))
        parts.append((choices[:budget], given[:budget]))
        size += len(parts[-1][1])
    width = max(choices.shape[1] for choices, _ in parts)
    choices = torch.cat([torch.nn.functional.pad(c, (0, width - c.shape[1])) for c, _ in parts])
    return choices, torch.cat([given for _, given in parts])
