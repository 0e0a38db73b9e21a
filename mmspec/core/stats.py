"""Statistics of a generation: counts, and seconds by phase."""

from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from mmspec.core.records import Step

PHASES = ("encode", "prefill", "draft_prefill", "draft", "score", "accept", "commit", "other", "total")
"""Where a generation's seconds go; the others add up to "total".

encode: the target's encoders (vision and audio encoders, the encoder of an encoder-decoder). prefill: the first forward, over the prompt
and the first draft. draft_prefill: the drafter's work up to its first draft tokens, which includes its encoders and its prompt; later work
is "draft".
"""


@dataclass
class Stats:
    """Counts over all rows, and seconds by phase.

    A call is one row's share of one target forward, so `tokens_per_call` is 1 for plain decoding.

    Attributes:
        tokens: committed values.
        target_calls: forwards of the target.
        row_calls: forwards times the rows that took part in each.
        drafted: draft tokens scored.
        accepted: draft tokens accepted.
        judged: draft tokens that the rule accepted or rejected; those behind a rejected one are not judged.
        rejected: draft tokens rejected: `judged` - `accepted`.
        expected_rejections: expected number of rejections, the sum of TV(p, q) over judged draft tokens; None for rules that do not
            report it, such as match.
        exactness: exactness of the rule: "token-exact", "distribution-exact" or a lossy grade.
        drift: total variation spent by a lossy rule, summed over rows; None for exact rules, or if it was not measured.
        histogram: [n] = calls that accepted n draft tokens.
        reached: [d] = calls that judged a draft token at depth d + 1.
        seconds: wall-clock seconds by phase, see `PHASES`.
    """

    tokens: int = 0
    target_calls: int = 0
    row_calls: int = 0
    drafted: int = 0
    accepted: int = 0
    judged: int = 0
    rejected: int = 0
    expected_rejections: float | None = None
    exactness: str = ""
    drift: float | None = None
    histogram: list[int] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @property
    def tokens_per_call(self) -> float:
        """Committed values per call, the bonus or correction included."""
        return self.tokens / max(1, self.row_calls)

    @property
    def accepted_per_call(self) -> float:
        """Accepted draft tokens per call."""
        return self.accepted / max(1, self.row_calls)

    @property
    def acceptance_by_position(self) -> list[float]:
        """[d] = share of draft tokens at depth d + 1 that were accepted, among those judged."""
        passed = [sum(self.histogram[d + 1 :]) for d in range(len(self.reached))]
        return [p / r for p, r in zip(passed, self.reached, strict=True) if r]

    def add(self, step: Step) -> None:
        """Count one round.

        Args:
            step: the round.
        """
        committed, height = step.committed, step.draft.height
        self.target_calls += 1
        for row, values in enumerate(committed.values):
            accepted, drafted = committed.accepted[row], committed.drafted[row]
            if not values and not drafted:
                continue
            self.tokens += len(values)
            self.row_calls += 1
            self.drafted += drafted
            self.accepted += accepted
            self.judged += committed.judged[row]
            self.rejected += committed.judged[row] - accepted
            _bump(self.histogram, accepted)
            for depth in range(min(accepted + 1, height, drafted)):
                _bump(self.reached, depth)
        if step.verdict.expected is not None:
            self.expected_rejections = (self.expected_rejections or 0.0) + sum(committed.expected)
        if step.verdict.drift is not None:
            self.drift = (self.drift or 0.0) + sum(committed.drift)
        for phase, spent in step.seconds.items():
            self.seconds[phase] += spent

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data.

        Returns:
            All fields, `tokens_per_call`, `accepted_per_call` and `acceptance_by_position`, ready for JSON.
        """
        derived = {
            "tokens_per_call": self.tokens_per_call,
            "accepted_per_call": self.accepted_per_call,
            "acceptance_by_position": self.acceptance_by_position,
        }
        return asdict(self) | derived


def _bump(counts: list[int], index: int) -> None:
    counts.extend([0] * (index + 1 - len(counts)))
    counts[index] += 1


class RoundClock:
    """Seconds by phase, see `core.stats.PHASES`. On a GPU, work is counted in the phase in which the host waits for it.

    Args:
        encoded: seconds that the target's encoder has already taken.
    """

    def __init__(self, encoded: float):
        self.last = perf_counter()
        self.start = self.last - encoded
        self.spent = {"encode": encoded}
        self.firsts = {"score": "prefill", "draft": "draft_prefill"}

    def lap(self, phase: str) -> None:
        """Count the seconds since the last call as those of a phase.

        Args:
            phase: name of the phase.
        """
        now = perf_counter()
        phase = self.firsts.get(phase, phase)
        self.spent[phase] = self.spent.get(phase, 0.0) + now - self.last
        self.last = now

    def draft_tokens(self, made: bool) -> bool:
        """Note whether a round has draft tokens; a drafter's work after its first ones is not counted as prefill.

        Args:
            made: the round has draft tokens.

        Returns:
            True for the first ones.
        """
        return made and self.firsts.pop("draft", None) is not None

    def round(self) -> dict[str, float]:
        """End a round.

        Returns:
            Its seconds by phase.
        """
        now = perf_counter()
        total = now - self.start
        spent = self.spent | {"other": max(0.0, total - sum(self.spent.values())), "total": total}
        self.start = self.last = now
        self.spent = {}
        self.firsts.pop("score", None)
        return spent
