"""The coupled rule: `Match` with a drafter that draws with the target's own Gumbel noise."""

from dataclasses import dataclass

from mmspec.core.rules.match import Match


@dataclass(frozen=True)
class Coupled(Match):
    """`Match` with draft tokens drawn by the target's own Gumbel noise: accepted at rate >= (1 - TV) / (1 + TV).

    The bound is that of shared Gumbel noise (Daliri, Musco and Suresh 2025). The output does not depend on the drafter, the draft length,
    the
    tree or the batch: it is what plain sampling with that seed gives.
    """

    coupled = True
