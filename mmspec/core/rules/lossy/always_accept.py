"""Rules that keep draft tokens unchecked: all of them (multi-head grouping: Nguyen et al. 2024, arXiv 2410.13839; Chen et al. 2024,
VALL-E 2), or those of which the drafter is sure (Raj et al. 2024, arXiv 2409.08148).

The target runs once a round and reads the whole draft, but only gives the value after it: with n - 1 draft tokens a round it runs once for
n values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import UNMETERED, commit
from mmspec.core.rules.lossy.base import GreedyLike, check_budget
from mmspec.core.rules.paths import longest


@dataclass(frozen=True)
class AlwaysAccept:
    """Keep every draft token and commit one value of the target's own after them. Raises ValueError for drafts that branch.

    The distance of the output from the target's distribution is not measured, since that would need the check.

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


@dataclass(frozen=True)
class Threshold(GreedyLike):
    """Keep draft tokens while the drafter's largest probability is at least `tau`; then commit the argmax of p.

    Drafts end before the first token below `tau`. With `verify` they do not, and tokens below `tau` are kept where greedy decoding chooses
    them. The drafter's probabilities are compared as they are before temperature at temperature 0. 1 keeps what is certain only; 0 keeps
    every draft token.

    Drift: kept draft tokens that greedy decoding would not have chosen, read from the target's distributions of the same forward.

    Args:
        tau: probability between 0 and 1.
        verify: judge draft tokens below `tau` as greedy decoding does.
        budget: drift that a row may spend; None for no limit.

    Raises:
        ValueError: for arguments out of range.
    """

    tau: float = 0.9
    verify: bool = False
    budget: float | None = None
    uses_q, trees, takes_modes = True, False, True

    def __post_init__(self):
        if isinstance(self.tau, bool) or not isinstance(self.tau, (int, float)) or not 0 <= self.tau <= 1:
            raise ValueError(f"tau is {self.tau!r}: give a probability between 0 and 1")
        check_budget(self.budget)

    @property
    def ends_below(self) -> float | None:
        """The drafter's largest probability below which a draft ends; None for never."""
        return None if self.verify else self.tau

    def passes(self, p: Categorical, x: Tensor) -> Tensor:
        """Test nothing of the target's; see `GreedyLike.passes`."""
        return torch.zeros_like(x, dtype=torch.bool)

    def passing(self, draft: Draft, scored: Scored) -> Tensor:
        """Test the draft tokens [B, G]; see `GreedyLike.passing`. ValueError for drafts without the drafter's distributions."""
        if draft.q is None:
            raise ValueError(
                "Threshold reads the drafter's probabilities, and this drafter has none: draft with a model or a trained drafter"
            )
        return draft.q.prob(draft.draft_tokens) >= self.tau

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        """Compute the output distribution: the drafter's most likely value where it is sure, else the argmax of p.

        Args:
            p: the target's distribution [V].
            q: the draft's distribution [V].

        Returns:
            Distribution [V].
        """
        best = torch.where(q.probs().max() >= self.tau, q.mode(), p.mode())
        return Categorical.of((torch.arange(p.size, device=p.scores.device) == best).to(p.scores.dtype))
