"""Figures of the suite of real models, from the outcomes of its turns."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mmspec.bench.compare.run import Spread
from mmspec.bench.suites.contenders import LOOKUP, PLAIN

ALL = "all"
"""The kind under which the rows of all kinds together stand."""
Turns = Sequence[Mapping[str, Any]]


def turn_rows(turns: Turns) -> list[dict[str, Any]]:
    """Return a row for every setting, batch size, kind (and all kinds together) and contender.

    Args:
        turns: lines of a `Journal`, each with "turn" and "outcomes".

    Returns:
        Rows with temperature, top_p, batch_size, kind and contender; tokens, target_calls, tokens_per_call, seconds, cpu_seconds; speed
        relative to transformers' `generate` and to its prompt lookup as median and quartiles over turns, in seconds and in CPU seconds;
        for greedy runs the number of rows with the tokens of `generate`; or the reason of a refusal.
    """
    rows = []
    for setting in dict.fromkeys(_setting(turn) for turn in turns):
        own = [turn for turn in turns if _setting(turn) == setting]
        kinds = list(dict.fromkeys(turn["turn"]["kind"] for turn in own))
        for kind in [*kinds, *([ALL] if len(kinds) > 1 else [])]:
            some = [turn for turn in own if kind in (ALL, turn["turn"]["kind"])]
            head = dict(zip(("temperature", "top_p", "batch_size"), setting, strict=True)) | {"kind": kind}
            rows += [head | _row(some, name) for name in some[0]["outcomes"]]
    return rows


def _setting(turn: Mapping[str, Any]) -> tuple[float, float | None, int]:
    return turn["turn"]["temperature"], turn["turn"]["top_p"], turn["turn"]["batch_size"]


def _row(turns: Turns, name: str) -> dict[str, Any]:
    outcomes = [turn["outcomes"][name] for turn in turns]
    refused = next((each["refused"] for each in outcomes if each["refused"]), None)
    if refused is not None:
        return {"contender": name, "refused": refused}
    tokens, calls = sum(map(_count, outcomes)), sum(each["row_calls"] for each in outcomes)
    greedy = turns[0]["turn"]["temperature"] == 0
    return {
        "contender": name,
        "refused": None,
        "tokens": tokens,
        "target_calls": sum(each["calls"] for each in outcomes),
        "tokens_per_call": tokens / max(1, calls),
        "seconds": sum(each["seconds"] for each in outcomes),
        "cpu_seconds": sum(each["cpu"] for each in outcomes),
        "to_plain": paired_ratio(turns, name, PLAIN, "seconds"),
        "to_lookup": paired_ratio(turns, name, LOOKUP, "seconds"),
        "cpu_to_plain": paired_ratio(turns, name, PLAIN, "cpu"),
        "cpu_to_lookup": paired_ratio(turns, name, LOOKUP, "cpu"),
        "same_text": _same(turns, name) if greedy else None,
    }


def _count(outcome: Mapping[str, Any]) -> int:
    return sum(map(len, outcome["tokens"]))


def paired_ratio(turns: Turns, name: str, base: str, unit: str) -> dict[str, float] | None:
    """Compare the tokens a second of two contenders, turn by turn.

    Sampled texts differ in length. Turns in which one wrote less than half of what the other wrote are left out: a text that ends at once
    takes the time of its prompt.

    Args:
        turns: lines of a `Journal`.
        name: a contender that ran.
        base: the contender that it is compared with.
        unit: "seconds" or "cpu".

    Returns:
        How many times as fast as `base`: median, quartiles and their number; None where `base` is missing or was refused.
    """
    pairs = [(turn["outcomes"][name], turn["outcomes"][base]) for turn in turns if base in turn["outcomes"]]
    ratios = [_speed(own, unit) / _speed(other, unit) for own, other in pairs if not other["refused"] and _comparable(own, other)]
    spread = Spread.of(ratios)
    return None if spread is None else asdict(spread)


def _comparable(own: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    less, more = sorted((_count(own), _count(other)))
    return 2 * less >= more


def _speed(outcome: Mapping[str, Any], unit: str) -> float:
    return max(1, _count(outcome)) / max(1e-9, outcome[unit])


def _same(turns: Turns, name: str) -> dict[str, int]:
    rows = [pair for turn in turns for pair in zip(turn["outcomes"][name]["tokens"], turn["outcomes"][PLAIN]["tokens"], strict=True)]
    return {"same": sum(own == plain for own, plain in rows), "of": len(rows)}
