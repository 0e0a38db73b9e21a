"""What the loop needs of a rule, whether it commits values one by one or whole levels of beams."""

from typing import Protocol

from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict


class AcceptRule(Protocol):
    """Says what survives of a draft. Pure: the same draft, distributions and noise give the same verdict."""

    @property
    def exactness(self) -> str: ...

    @property
    def coupled(self) -> bool: ...

    @property
    def uses_q(self) -> bool: ...

    @property
    def trees(self) -> bool: ...  # whether drafts may branch

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict: ...
