"""Drafters of a target under classifier-free guidance.

The net runs on both rows of every conditional and unconditional pair. The target's own processors combine the two into one distribution,
with the same guidance scale.
"""

from dataclasses import dataclass, replace
from typing import Any

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.drafters.guided import DraftSource, Guide, Sharing
from mmspec.models.guidance import PairedSession, twice, twice_verdict


@dataclass(frozen=True)
class GuidedPair:
    """Wraps `source` for targets with and without guidance."""

    source: DraftSource

    def guide(self, session: Any) -> Guide:
        """Return the guide of one generation on the target session `session`."""
        return TwinGuide(self.source.guide(session.doubled)) if isinstance(session, PairedSession) else self.source.guide(session)


class TwinGuide:
    """Presents `guide`, which works on pairs of rows, as a guide of single rows."""

    def __init__(self, guide: Guide):
        if isinstance(guide, Sharing):
            raise ValueError(
                f"{type(guide).__name__} shares its forward with the target, which is not possible under guidance: use another drafter"
            )
        self.guide, self.most = guide, guide.most

    def root(self, pending: Draft) -> Draft | None:
        """Return the roots that the draft grows from; see `Guide.root`."""
        own = self.guide.root(twice(pending))
        if own is None:
            return None
        rows = len(pending.start)
        return replace(own, nodes=own.nodes[:rows], parents=own.parents[:rows], start=own.start[:rows], drift=pending.drift)

    def score(self, draft: Draft) -> Scored:
        """Score the new columns of the draft; see `Guide.score`."""
        scored = self.guide.score(twice(draft))
        return scored if scored.confidence is None else replace(scored, confidence=scored.confidence[: len(draft.start)])

    def close(self) -> None:
        """End the draft of this round; see `Guide.close`."""
        self.guide.close()

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Take in the verdict of the round; see `Guide.observe`."""
        self.guide.observe(twice(draft), scored, twice_verdict(verdict))
