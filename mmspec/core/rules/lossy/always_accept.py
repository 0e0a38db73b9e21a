"""The rule without a check (multi-head grouping: Nguyen et al. 2024, arXiv 2410.13839; Chen et al. 2024, VALL-E 2).

The target runs once a round and reads the whole draft, but only gives the value after it: with n - 1 draft tokens a round it runs once for
n values. The distance of the output from the target's distribution is not measured, since that would need the check.
"""

from dataclasses import dataclass

import torch

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import UNMETERED, commit
from mmspec.core.rules.paths import longest


@dataclass(frozen=True)
class AlwaysAccept:
    """Keep every draft token and commit one value of the target's own after them. Raises ValueError for drafts that branch.

    Args:
        best: commit the target's most likely value, not plain sampling's draw at that position.
    """

    best: bool = False
    exactness, coupled, uses_q, trees = UNMETERED, False, True, False

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        if not draft.linear:
            raise ValueError(
                "AlwaysAccept keeps every draft token, but this draft branches: draft a chain, or check it with match or coupled"
            )
        leaf, _ = longest(draft, torch.ones_like(draft.valid))
        p, keys = scored.p.at(leaf[:, None]), noise.value(draft.position().gather(1, leaf[:, None]))
        return commit(draft, leaf, (p.mode() if self.best else p.sample(keys))[:, 0])

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return q
