"""Everything that is measured of a pair: the record that causes are read from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmspec.bench.explain.acceptance import DraftAcceptance
from mmspec.bench.explain.costs import PairCosts
from mmspec.bench.explain.speed import LENGTHS, best_length, expected_speed

GOOD = 0.75
"""Acceptance of a drafter that suits its target; what is expected without a fault whose effect could not be measured."""


@dataclass(frozen=True)
class TokenizerMatch:
    """How two tokenizers number their tokens.

    Attributes:
        ours: tokens of the target's.
        theirs: tokens of the drafter's.
        shared: tokens that both have.
        equal: tokens that both have under the same id.
        translated: draft tokens are translated from one vocabulary to the other.
    """

    ours: int
    theirs: int
    shared: int
    equal: int
    translated: bool

    @staticmethod
    def of(target: Any, drafter: Any, translated: bool) -> "TokenizerMatch":
        """Compare the vocabularies of two tokenizers."""
        ours, theirs = target.get_vocab(), drafter.get_vocab()
        shared = [token for token in ours if token in theirs]
        equal = sum(ours[token] == theirs[token] for token in shared)
        return TokenizerMatch(len(ours), len(theirs), len(shared), equal, translated)

    @property
    def same(self) -> bool:
        """True where ids mean the same to both, a few added tokens apart."""
        return self.equal >= 0.98 * min(self.ours, self.theirs)


@dataclass(frozen=True)
class PairFacts:
    """What was measured of a target, its drafter and some prompts.

    Attributes:
        acceptance: under the request's own settings, in chains.
        costs: seconds at the request's batch size.
        tokens: new tokens a row, on average.
        batch_size: rows that run together.
        alone: seconds at batch size 1, where the request's is larger.
        length: draft tokens a round, if fixed; None where a controller chooses.
        most: largest number of draft tokens that the drafter makes; None for no bound.
        tree: drafts are trees; acceptance and expected speeds are those of chains all the same.
        temperature: of the request.
        rule: the accept rule.
        kind: "model", "states" (drafters that read the target's hidden states) or "other".
        reads: hidden states of the target that the drafter reads.
        probes: acceptance with one thing changed, by name; see `mmspec.bench.explain.probes`.
        tokenizers: the two tokenizers, where both are known and differ.
        markers: markers of chat templates in the prompts that are no tokens of the target.
        limit: positions that the drafter has; None for no limit.
        longest: tokens of the longest prompt and its output.
        quantised: how the target's weights are quantised; empty if nothing says so.
        trained_for: the target that the drafter's files name, where it is another one; empty otherwise.
    """

    acceptance: DraftAcceptance
    costs: PairCosts
    tokens: float
    batch_size: int = 1
    alone: PairCosts | None = None
    length: int | None = None
    most: int | None = None
    tree: bool = False
    temperature: float = 0.0
    rule: str = "Greedy"
    kind: str = "model"
    reads: tuple[int, ...] = ()
    probes: Mapping[str, DraftAcceptance] = field(default_factory=dict)
    tokenizers: TokenizerMatch | None = None
    markers: tuple[str, ...] = ()
    limit: int | None = None
    longest: int = 0
    quantised: str = ""
    trained_for: str = ""

    @property
    def drafted(self) -> float:
        """Share of rounds with draft tokens, of drafters that find none in some rounds; 1 for others."""
        return 1 - self.acceptance.undrafted / max(1, self.acceptance.rounds) if self.kind == "other" else 1.0

    def best(self, rates: Sequence[float] | None = None, costs: PairCosts | None = None, drafted: float | None = None) -> tuple[int, float]:
        """Find the best draft length, and the speed expected of it; 0 draft tokens where no length pays.

        Args:
            rates: acceptance by position; the measured one by default.
            costs: seconds; the measured ones by default.
            drafted: share of rounds with draft tokens; the measured one by default.

        Returns:
            The length and its speed relative to plain decoding.
        """
        found = self._best_length(rates, costs, drafted)
        return found if found[1] > 1 else (0, 1.0)

    def drafting(self) -> tuple[int, float]:
        """Find the best draft length of at least 1, and the speed expected of it."""
        return self._best_length(None, None, None)

    def used(self) -> tuple[int, float]:
        """Return the draft length in use, and the speed expected of it; the best one where a controller chooses."""
        if self.length is None:
            return self.best()
        length = self.length if self.most is None else min(self.length, self.most)
        return length, expected_speed(self.acceptance.rates(), self.costs, length, self.tokens, self.drafted)

    def gain(self, rates: Sequence[float] | None = None, costs: PairCosts | None = None, drafted: float | None = None) -> float:
        """Compare the best expected speeds with other rates, costs or drafts, and as measured.

        Args:
            rates, costs, drafted: as in `best`.

        Returns:
            How many times faster the request would be.
        """
        return self.best(rates, costs, drafted)[1] / self.best()[1]

    def probe(self, *names: str) -> tuple[str, DraftAcceptance] | None:
        """Return the best of the probes `names` in which clearly more draft tokens were accepted; None if there is none."""
        found = [(name, self.probes[name]) for name in names if name in self.probes]
        better = [each for each in found if each[1].clearly_better(self.acceptance)]
        return max(better, key=lambda each: each[1].rate, default=None)

    def _best_length(self, rates: Sequence[float] | None, costs: PairCosts | None, drafted: float | None) -> tuple[int, float]:
        return best_length(
            self.acceptance.rates() if rates is None else rates,
            self.costs if costs is None else costs,
            self.tokens,
            self._lengths(),
            self.drafted if drafted is None else drafted,
        )

    def _lengths(self) -> Sequence[int]:
        return [length for length in LENGTHS if self.most is None or length <= self.most] or [1]
