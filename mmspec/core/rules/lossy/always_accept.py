"""No check at all (multi-head grouping: Nguyen et al. 2024, arXiv 2410.13839; Chen et al. 2024, VALL-E 2): every draft token is committed.

The target runs once a round and reads the whole draft, but is asked for the value behind it only. With n - 1 draft tokens a round it
runs once for n values. How far the output is from the target's distribution nobody measures: that would take the check.
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
    """Keep every draft token, whatever the target thinks of it, and commit one value of the target's own behind them.

    That value is plain sampling's draw at its position, or with `best` the target's likeliest: a deterministic output, for distributions at
    a temperature above 0 that a drafter weighs against one another. ValueError for drafts that branch: there is one path to keep.
    """

    best: bool = False
    exactness, coupled, uses_q, trees = UNMETERED, False, True, False

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        if not draft.linear:
            raise ValueError("Unchecked keeps every draft token, but this draft branches: draft a chain, or check it with match or coupled")
        leaf, _ = longest(draft, torch.ones_like(draft.valid))
        p, keys = scored.p.at(leaf[:, None]), noise.value(draft.position().gather(1, leaf[:, None]))
        return commit(draft, leaf, (p.mode() if self.best else p.sample(keys))[:, 0])

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return q
