"""The benchmark: every contender on every batch in turn, in one process, summarised as paired ratios."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import quantiles
from typing import Any

from mmspec.bench.compare.peers import ASSISTED, DRAFTED, ENGINE, PLAIN, Contender, Outcome, contenders
from mmspec.loading.text import Pair

ORDER = (PLAIN, ASSISTED, ENGINE, DRAFTED)


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles, and the number of values."""

    median: float
    low: float
    high: float
    count: int = field(default=0, compare=False)

    @staticmethod
    def of(values: Sequence[float]) -> "Spread | None":
        """Return median and quartiles of `values`; None for no values."""
        if not values:
            return None
        if len(values) == 1:
            return Spread(values[0], values[0], values[0], 1)
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return Spread(middle, low, high, len(values))


@dataclass(frozen=True)
class Trial:
    """One contender on one batch in one repeat."""

    contender: str
    batch: int
    repeat: int
    outcome: Outcome

    @property
    def speed(self) -> float:
        """Tokens per second. When sampling, contenders may generate texts of different length."""
        return self.outcome.count / self.outcome.seconds


def run_trials(
    pair: Pair, prompts: Sequence[str], *, draft_tokens: int, batch_size: int, repeats: int, done: Callable[[], Any]
) -> list[Trial]:
    """Run all trials. Contenders take turns batch by batch, and another one is first every time."""
    batches = [pair.inputs(list(prompts[i : i + batch_size])) for i in range(0, len(prompts), batch_size)]
    seed, found = pair.config.run.seed, contenders(pair, draft_tokens)
    _warm_up(found, batches[0], seed)
    trials, turn = [], 0
    for repeat in range(repeats):
        for batch, inputs in enumerate(batches):
            names = list(found)
            turn += 1
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                trials.append(Trial(name, batch, repeat, found[name](inputs, seed + batch * batch_size)))
                done()
    return trials


def trial_count(pair: Pair, prompts: Sequence[str], draft_tokens: int, batch_size: int, repeats: int) -> int:
    """Return the number of trials of `run_trials`: contenders times batches times repeats."""
    return len(contenders(pair, draft_tokens)) * -(-len(prompts) // batch_size) * repeats


def _warm_up(found: dict[str, Contender], inputs: dict[str, Any], seed: int) -> None:
    """Run every contender once, so that allocations and lazy set-up are not timed."""
    for contender in found.values():
        contender(inputs, seed)


def summarise(trials: Sequence[Trial], greedy: bool) -> list[dict[str, Any]]:
    """Return a row per contender: counts, speed, ratios to plain and assisted generation paired by batch and repeat, and text equality."""
    rows = []
    for name in ORDER:
        own = [trial for trial in trials if trial.contender == name]
        if not own:
            continue
        refused = next((trial.outcome.refused for trial in own if trial.outcome.refused), None)
        if refused is not None:
            rows.append({"contender": name, "refused": refused})
            continue
        tokens, calls = sum(t.outcome.count for t in own), sum(t.outcome.row_calls for t in own)
        rows.append(
            {
                "contender": name,
                "refused": None,
                "tokens": tokens,
                "target_calls": sum(t.outcome.calls for t in own),
                "tokens_per_call": tokens / max(1, calls),
                "tokens_per_second": _plain(Spread.of([t.speed for t in own])),
                "ratio_to_plain": _plain(Spread.of(paired(trials, name, PLAIN))),
                "ratio_to_assisted": _plain(Spread.of(paired(trials, name, ASSISTED))),
                "same_text": same_text(trials, name) if greedy else None,
                "seconds": _phases(own),
            }
        )
    return rows


def paired(trials: Sequence[Trial], name: str, other: str) -> list[float]:
    """Return the speed of `name` relative to `other`, for each batch and repeat that both ran."""
    base = {(t.batch, t.repeat): t for t in trials if t.contender == other and t.outcome.refused is None}
    own = [t for t in trials if t.contender == name]
    return [t.speed / base[t.batch, t.repeat].speed for t in own if (t.batch, t.repeat) in base]


def same_text(trials: Sequence[Trial], name: str) -> dict[str, int]:
    """Return the number of rows whose tokens equal those of plain `generate`."""
    base = {t.batch: t.outcome.tokens for t in trials if t.contender == PLAIN}
    rows = [(ids, other) for t in trials if t.contender == name for ids, other in zip(t.outcome.tokens, base[t.batch], strict=True)]
    return {"same": sum(ids == other for ids, other in rows), "of": len(rows)}


def _phases(own: Sequence[Trial]) -> dict[str, float] | None:
    """Return mmspec's seconds by phase, summed over trials."""
    found = [t.outcome.phases for t in own if t.outcome.phases is not None]
    return {phase: sum(split[phase] for split in found) for phase in found[0]} if found else None


def _plain(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def times_faster(runs: Sequence[Any], base: Sequence[Any]) -> list[float]:
    """Compare speeds in tokens a second, example by example.

    Args:
        runs: each with `tokens` and `seconds`.
        base: runs of the baseline, in the same order.

    Returns:
        How many times faster each run was than its baseline.
    """
    return [(len(r.tokens) / r.seconds) / (len(b.tokens) / b.seconds) for r, b in zip(runs, base, strict=True)]


def versus(name: str, ratios: Sequence[float]) -> dict[str, Any]:
    """Entries of a row for paired speed ratios against a baseline.

    Args:
        name: the baseline, "plain" or "generate".
        ratios: one for each input both ran on; may be empty.

    Returns:
        `times_plain` (or `times_generate`), the median, and `ratio_to_plain` (or `ratio_to_generate`), the fields of a
        `Spread`. Both are None without ratios.
    """
    spread = Spread.of(ratios)
    return {f"times_{name}": None if spread is None else spread.median, f"ratio_to_{name}": _plain(spread)}
