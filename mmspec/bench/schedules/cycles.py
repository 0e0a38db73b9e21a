"""Expected tokens and seconds of a schedule: of one round, or of a run of rounds that ends with the first rejection."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

_LEAST = 1e-13  # chance from which on further rounds of a run are left out
_MOST = 20_000  # rounds of a run that are summed


@dataclass(frozen=True)
class ExpectedCycle:
    """What a schedule commits in the long run, as a ratio of expectations.

    Attributes:
        tokens: expected tokens of a cycle, over all rows.
        seconds: expected seconds of a cycle.
        calls: expected forwards of the target in a cycle.
        rows: rows that share them.
    """

    tokens: float
    seconds: float
    calls: float = 1.0
    rows: int = 1

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of all rows together."""
        return self.tokens / self.seconds

    @property
    def tokens_per_call(self) -> float:
        """Tokens that a row commits a forward of the target."""
        return self.tokens / self.calls / self.rows


@dataclass(frozen=True)
class ExpectedRound:
    """One round of a run that goes on until a draft token is rejected.

    Attributes:
        first: position in the draft of the first token that the round verifies, from 0.
        verified: draft tokens that it verifies.
        seconds: seconds from the end of the round before to the end of this one.
        lost: seconds after the round if it rejects a token.
        last: the run ends with this round in any case.
    """

    first: int
    verified: int
    seconds: float
    lost: float = 0.0
    last: bool = False


def rate_at(rates: Sequence[float], position: int) -> float:
    """Return the chance that a draft token is accepted when those before it were.

    Args:
        rates: chances by position; the last holds for all later positions.
        position: position in the draft, from 0.

    Returns:
        The chance; 0 without rates.
    """
    return rates[min(position, len(rates) - 1)] if rates else 0.0


def tokens_a_round(rates: Sequence[float], length: int, first: int = 0) -> float:
    """Compute the values that a row commits in a round.

    Args:
        rates: chance that a draft token is accepted when those before it were, by position; the last holds for all later positions.
        length: draft tokens in the round.
        first: position of the first of them.

    Returns:
        Values, 1 or more: those accepted and the one after them.
    """
    total = reach = 1.0
    for position in range(first, first + length):
        reach *= rate_at(rates, position)
        total += reach
    return total


def long_run(rounds: Iterable[ExpectedRound], rates: Sequence[float]) -> ExpectedCycle:
    """Sum a run over its rounds, each weighted by the chance that it is reached. Runs are independent, so their ratio is the long-run rate.

    A round that verifies n draft tokens commits the accepted ones, and the target's own token in place of a rejected one. If all are
    accepted, the run goes on. Where runs practically never end, the rounds after the first 10,000 stand for all.

    Args:
        rounds: the rounds of a run in which nothing is rejected.
        rates: acceptance by position, as in `rate_at`.

    Returns:
        The cycle of one row.
    """
    tokens = seconds = calls = 0.0
    reach, half = 1.0, (0.0, 0.0, 0.0)
    known: dict[tuple[int, int], tuple[float, float]] = {}  # committed tokens, and the chance that nothing is rejected
    for number, each in enumerate(islice(rounds, _MOST)):
        if number == _MOST // 2:
            half = tokens, seconds, calls
        place = min(each.first, len(rates)), each.verified  # behind the last rate every position is alike
        if place not in known:
            chances = [rate_at(rates, each.first + number) for number in range(each.verified)]
            known[place] = tokens_a_round(rates, each.verified - 1, each.first), prod(chances)
        committed, kept = known[place][0], 0.0 if each.last else known[place][1]
        tokens += reach * committed
        seconds += reach * (each.seconds + (1 - kept) * each.lost)
        calls += reach
        reach *= kept
        if reach < _LEAST:
            return ExpectedCycle(tokens, seconds, calls)
    return ExpectedCycle(tokens - half[0], seconds - half[1], calls - half[2])
