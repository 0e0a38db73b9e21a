"""No drafter: plain decoding through the same loop; the baseline of every comparison."""

from dataclasses import dataclass
from typing import Any, ClassVar

from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.core.rows.changes import RowState


@dataclass(frozen=True)
class NoDraft(RowState):
    """Plain decoding: proposes no draft tokens, so every round commits one value.

    Attributes:
        drafts: False: the target need not score several tokens together.
    """

    drafts: ClassVar[bool] = False

    def begin(self, prompt: Any, session: Any) -> "NoDraft":
        """Open the drafting session of one generation."""
        return self

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        return pending

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        pass
