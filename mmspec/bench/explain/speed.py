"""Expected speed of speculative decoding relative to plain decoding, from acceptance by position and seconds."""

from collections.abc import Iterable, Sequence

from mmspec.bench.explain.costs import PairCosts
from mmspec.bench.schedules.cycles import tokens_a_round

LENGTHS = (*range(1, 9), 10, 12, 16)
"""Draft lengths that are compared."""


def expected_speed(rates: Sequence[float], costs: PairCosts, length: int, tokens: float, drafted: float = 1.0) -> float:
    """Compute how many times faster a request is than plain decoding, the prompt included.

    Args:
        rates: as in `tokens_a_round`.
        costs: seconds.
        length: draft tokens a round; 0 is plain decoding.
        tokens: new tokens a row.
        drafted: share of rounds with draft tokens; the others are plain.

    Returns:
        The speed relative to plain decoding.
    """
    if length == 0:
        return 1.0
    plain = costs.prefill + tokens * costs.target(1)
    rounds = tokens / (drafted * tokens_a_round(rates, length) + 1 - drafted)
    seconds = drafted * costs.round(length) + (1 - drafted) * costs.target(1)
    return plain / (costs.prefill + costs.draft_prefill + rounds * seconds)


def best_length(
    rates: Sequence[float], costs: PairCosts, tokens: float, lengths: Iterable[int] = LENGTHS, drafted: float = 1.0
) -> tuple[int, float]:
    """Find the draft length of highest expected speed.

    Args:
        rates, costs, tokens, drafted: as in `expected_speed`.
        lengths: lengths to compare.

    Returns:
        The length and its speed relative to plain decoding.
    """
    return max(((length, expected_speed(rates, costs, length, tokens, drafted)) for length in lengths), key=lambda each: each[1])


def break_even_rate(costs: PairCosts, length: int) -> float | None:
    """Compute the acceptance at which drafts of a length cost as much as they save. Prompts are left out.

    Args:
        costs: seconds.
        length: draft tokens a round, 1 or more.

    Returns:
        The chance, the same at every position; None if not even accepting everything is enough.
    """
    needed = costs.round(length) / costs.target(1)
    if needed > length + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_a_round((middle,), length) < needed else (low, middle)
    return high
