"""Acceptance by position in the draft, beside the best that the target's and the drafter's distributions allow."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.records import Committed, Draft, Scored

SURE = 0.5
"""Probability of its most likely token from which on the target is called sure."""
_PRIOR = 4.0  # draft tokens that the rate at the position before stands for


@dataclass(frozen=True)
class PositionAcceptance:
    """Draft tokens at one position of the draft, those behind a rejected one left out.

    Attributes:
        judged: draft tokens that were accepted or rejected.
        accepted: draft tokens accepted.
        best: largest share that any exact rule accepts: the mean of 1 - TV when sampling, at temperature 0 the share with equal most
            likely tokens; None for drafters without distributions.
        agreement: share of positions at which target and drafter have the same most likely token; None as `best`.
    """

    judged: int
    accepted: int
    best: float | None
    agreement: float | None

    @property
    def rate(self) -> float:
        """Share accepted."""
        return self.accepted / max(1, self.judged)


@dataclass(frozen=True)
class DraftAcceptance:
    """What the judged draft tokens of some generations show. Shares are of judged draft tokens.

    Attributes:
        positions: by position in the draft, the first one first.
        tokens: values committed.
        rounds: rounds, counted once for each row that takes part.
        undrafted: of those, rounds without a draft token.
        entropy: mean entropy of the target's distribution, in nats; untempered at temperature 0.
        sure: share of positions at which the target's most likely token has at least the probability `SURE`.
        sure_rate: acceptance at those positions.
        chance: agreement of most likely tokens if target and drafter were independent of each other; None without distributions.
        missing: share of positions whose most likely token has no probability in the drafter's distribution; None without distributions.
    """

    positions: tuple[PositionAcceptance, ...]
    tokens: int
    rounds: int
    undrafted: int
    entropy: float
    sure: float
    sure_rate: float
    chance: float | None = None
    missing: float | None = None

    @property
    def judged(self) -> int:
        """Draft tokens judged."""
        return sum(each.judged for each in self.positions)

    @property
    def rate(self) -> float:
        """Share of judged draft tokens that were accepted."""
        return sum(each.accepted for each in self.positions) / max(1, self.judged)

    @property
    def best(self) -> float | None:
        """`PositionAcceptance.best` over all positions."""
        return self._mean("best")

    @property
    def agreement(self) -> float | None:
        """`PositionAcceptance.agreement` over all positions."""
        return self._mean("agreement")

    def _mean(self, name: str) -> float | None:
        found = [(getattr(each, name), each.judged) for each in self.positions if getattr(each, name) is not None]
        return sum(value * count for value, count in found) / max(1, sum(count for _, count in found)) if found else None

    def rates(self, best: bool = False) -> tuple[float, ...]:
        """Estimate the chance that a draft token is accepted when those before it were, by position.

        Args:
            best: of the best possible instead, where it is known.

        Returns:
            Rates; positions with few draft tokens are drawn towards the position before.
        """
        found, last = [], (self.best if best and self.best is not None else self.rate)
        for each in self.positions:
            hits = each.best * each.judged if best and each.best is not None else each.accepted
            last = (hits + _PRIOR * last) / (each.judged + _PRIOR)
            found.append(last)
        return tuple(found)

    def clearly_better(self, other: "DraftAcceptance", least: float = 0.1) -> bool:
        """Tell whether more is accepted here than in `other`: by `least` and by three standard errors.

        Args:
            other: acceptance of other generations.
            least: smallest difference of the rates.

        Returns:
            True if both hold.
        """
        apart = self.rate - other.rate
        noise = sum(each.rate * (1 - each.rate) / max(1, each.judged) for each in (self, other)) ** 0.5
        return apart >= least and apart > 3 * noise

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: all fields, and the rate, the best possible and the agreement over all positions."""
        return asdict(self) | {"judged": self.judged, "rate": self.rate, "best": self.best, "agreement": self.agreement}


class RoundTally:
    """Adds up rounds, and what the distributions at every judged draft token show. One transfer to the host a round.

    Args:
        greedy: the rule takes most likely tokens: temperature 0.
    """

    def __init__(self, greedy: bool):
        self.greedy = greedy
        self.tokens = self.rounds = self.undrafted = 0
        self.hits: Counter[int] = Counter()
        self.tries: Counter[int] = Counter()
        self.found: dict[str, list[Tensor]] = {}

    def add(self, draft: Draft, scored: Scored, committed: Committed, q: Categorical | None) -> None:
        """Add one round.

        Args:
            draft: what was scored.
            scored: the target's distributions.
            committed: the outcome.
            q: the drafter's distributions [B, G], None if it has none.
        """
        for row, values in enumerate(committed.values):
            if values:
                self.tokens += len(values)
                self.rounds += 1
                self.undrafted += committed.drafted[row] == 0
            self.tries.update(range(committed.judged[row]))
            self.hits.update(range(committed.accepted[row]))
        if draft.linear and any(committed.judged):
            self._distributions(draft, scored, committed, q)

    def _distributions(self, draft: Draft, scored: Scored, committed: Committed, q: Categorical | None) -> None:
        judged, accepted = (torch.tensor(counts) for counts in (committed.judged, committed.accepted))
        rows, depth = (torch.arange(draft.size - draft.roots) < judged[:, None]).nonzero().T
        there = rows.to(draft.nodes.device), depth.to(draft.nodes.device)
        parents = draft.parents[:, draft.roots :].clamp_min(0)[there]
        p = Categorical(scored.p.scores[there[0], parents].float())
        probs = p.probs()
        found = {"depth": depth, "accepted": depth < accepted[rows], "top": probs.amax(-1), "mode": p.mode()}
        found["entropy"] = torch.special.entr(probs).sum(-1)
        if q is not None:
            own = Categorical(q.scores[there].float())
            found |= {"overlap": torch.minimum(probs, own.probs()).sum(-1), "own": own.mode()}
            found["missing"] = own.scores.gather(-1, found["mode"][:, None])[:, 0] == -torch.inf
        for name, values in found.items():
            self.found.setdefault(name, []).append(values.cpu())

    def acceptance(self) -> DraftAcceptance:
        """Return what was added so far."""
        found = {name: torch.cat(parts) for name, parts in self.found.items()}
        by_depth = [self._position(depth, found) for depth in sorted(self.tries)]
        if not found:
            return DraftAcceptance(tuple(by_depth), self.tokens, self.rounds, self.undrafted, 0.0, 0.0, 0.0)
        sure = found["top"] >= SURE
        numbers = {
            "entropy": found["entropy"].mean().item(),
            "sure": sure.float().mean().item(),
            "sure_rate": found["accepted"][sure].float().mean().item() if sure.any() else 0.0,
        }
        if len(found.get("own", ())) == len(sure):
            numbers |= {"chance": _chance(found["mode"], found["own"]), "missing": found["missing"].float().mean().item()}
        return DraftAcceptance(tuple(by_depth), self.tokens, self.rounds, self.undrafted, **numbers)

    def _position(self, depth: int, found: dict[str, Tensor]) -> PositionAcceptance:
        best = agreement = None
        if len(found.get("own", ())) and len(found["own"]) == len(found["depth"]):
            here = found["depth"] == depth
            agreement = (found["mode"] == found["own"])[here].float().mean().item()
            best = agreement if self.greedy else found["overlap"][here].mean().item()
        return PositionAcceptance(self.tries[depth], self.hits[depth], best, agreement)


def _chance(one: Tensor, other: Tensor) -> float:
    """Agreement of values drawn independently with the frequencies of `one` and `other`, both [M]."""
    ours, theirs = (Counter(values.tolist()) for values in (one, other))
    return sum(count * theirs[value] for value, count in ours.items()) / len(one) ** 2
