"""Counts of the searches of a recommendation job."""

from dataclasses import dataclass, field

from mmspec.recsys.generation import Recommendations

COUNTED = {"target_calls": "target_calls", "row_calls": "row_calls", "levels": "tokens", "drafted": "drafted", "accepted": "accepted"}


@dataclass
class RecommendationTotals:
    """Counts over several searches. A call is one user's share of one target forward."""

    users: int = 0
    items: int = 0
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    seconds: float = 0.0
    drift: float = 0.0
    exactness: str = ""

    def add(self, out: Recommendations) -> None:
        """Add the counts of one search."""
        self.users += len(out.items)
        self.items += sum(map(len, out.items))
        for name, source in COUNTED.items():
            self.counts[name] += getattr(out.stats, source)
        self.seconds += out.stats.seconds["total"]
        self.drift += out.stats.drift or 0.0
        self.exactness = out.stats.exactness

    @property
    def calls(self) -> float:
        """Target calls a user."""
        return self.counts["row_calls"] / max(1, self.users)

    def measures(self) -> dict[str, float]:
        """Return the counts so far."""
        return {"users": self.users, "recommendations": self.items, **self.counts, "seconds": self.seconds, "drift": self.drift}
