"""Drafters of a target under classifier-free guidance.

The net runs on both rows of every conditional and unconditional pair. The target's own processors combine the two into one distribution,
with the same guidance scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rows.changes import refuse_fixed_rows
from mmspec.drafters.guided import DraftSource, Guide, Sharing
from mmspec.models.guidance import PairedRows, PairedSession, twice, twice_verdict


@dataclass(frozen=True)
class GuidedPair:
    """Wraps `source` for targets with and without guidance."""

    source: DraftSource

    def guide(self, session: Any) -> Guide:
        """Return the guide of one generation on the target session `session`."""
        if not isinstance(session, PairedSession):
            return self.source.guide(session)
        return TwinGuide(self.source.guide(session.doubled), session.pairs)


class TwinGuide:
    """Presents `guide`, which works on the doubled batch of `pairs`, as a guide of single rows."""

    def __init__(self, guide: Guide, pairs: PairedRows):
        if isinstance(guide, Sharing):
            raise ValueError(
                f"{type(guide).__name__} shares its forward with the target, which is not possible under guidance: use another drafter"
            )
        self.guide, self.most, self.pairs = guide, guide.most, pairs

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        own = self.guide.root(twice(pending, self.pairs))
        if own is None:
            return None
        rows = len(pending.start)
        return replace(own, nodes=own.nodes[:rows], parents=own.parents[:rows], start=own.start[:rows], drift=pending.drift)

    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        scored = self.guide.score(twice(draft, self.pairs))
        return scored if scored.confidence is None else replace(scored, confidence=scored.confidence[: len(draft.start)])

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        self.guide.close()

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        self.guide.observe(twice(draft, self.pairs), scored, twice_verdict(verdict, self.pairs))

    @property
    def joinable(self) -> bool:
        """True once the guide's rows can change; see `core.rows.changes.ChangesRows`."""
        refuse_fixed_rows(self.guide, "the drafter")
        return self.guide.joinable  # type: ignore[attr-defined]

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.pairs, own = self.pairs.take_rows(rows)
        self.guide.take_rows(own)  # type: ignore[attr-defined]

    def join_rows(self, other: "TwinGuide") -> None:
        """Append the rows of another guide; see `core.rows.changes.ChangesRows`."""
        self.pairs, order = self.pairs.join_rows(other.pairs)
        self.guide.join_rows(other.guide)  # type: ignore[attr-defined]
        self.guide.take_rows(order)  # type: ignore[attr-defined]
