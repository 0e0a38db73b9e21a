"""What a generation cost and brought: counts first, seconds beside them."""

from dataclasses import asdict, dataclass, field
from typing import Any

from mmspec.core.records import Step

PHASES = ("encode", "prefill", "draft_prefill", "draft", "score", "accept", "commit", "other", "total")
"""Where a generation's seconds go; the others add up to "total".

encode: opening the request, which runs the target's encoders (vision and audio towers, an encoder-decoder's encoder).
prefill: the first scoring, which runs the prompt and the first draft in one forward. draft_prefill: all that the drafter does up to and
including its first draft tokens, so its own encoding and its prompt; from then on that is draft.
"""


@dataclass
class Stats:
    """Counts over all rows. A call is one row's share of one target forward, so `tokens_per_call` is 1 for plain decoding."""

    tokens: int = 0
    target_calls: int = 0  # target forwards
    row_calls: int = 0  # rows that took part in them
    drafted: int = 0
    accepted: int = 0
    judged: int = 0
    rejected: int = 0
    expected_rejections: float | None = (
        None  # what judging draft token by draft token rejects in the mean (TV(p, q) each); None for match and its kin
    )
    exactness: str = ""
    drift: float | None = None  # total variation spent by a lossy rule, summed over rows; None for exact rules, or if it was not measured
    histogram: list[int] = field(default_factory=list)  # [n] = calls that accepted n draft tokens
    reached: list[int] = field(default_factory=list)  # [d] = calls that judged a draft token at depth d + 1
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @property
    def tokens_per_call(self) -> float:
        """Committed values per call, the bonus or correction included."""
        return self.tokens / max(1, self.row_calls)

    @property
    def accepted_per_call(self) -> float:
        return self.accepted / max(1, self.row_calls)

    @property
    def acceptance_by_position(self) -> list[float]:
        """[d] = share of draft tokens at depth d + 1 accepted, among calls that got that far."""
        passed = [sum(self.histogram[d + 1 :]) for d in range(len(self.reached))]
        return [p / r for p, r in zip(passed, self.reached, strict=True) if r]

    def add(self, step: Step) -> None:
        """Count one round."""
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
        """Everything, derived figures included, ready for JSON."""
        derived = {
            "tokens_per_call": self.tokens_per_call,
            "accepted_per_call": self.accepted_per_call,
            "acceptance_by_position": self.acceptance_by_position,
        }
        return asdict(self) | derived


def _bump(counts: list[int], index: int) -> None:
    counts.extend([0] * (index + 1 - len(counts)))
    counts[index] += 1
