"""Interleaved sampling of speculative knowledge distillation (SKD, Xu et al. 2024, arXiv 2410.11325), as an accept rule.

A student proposes every token, and a teacher replaces those outside its `k` most likely by draws of its own. The text is close to what the
student writes, and the teacher's distributions on it are worth learning. It is training data, not output: its distance from the teacher's
own distribution is not measured.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import UNMETERED, commit, emitted, parents_distribution
from mmspec.core.rules.paths import longest, with_roots


@dataclass(frozen=True)
class Interleaved:
    """Keep draft tokens that are among the target's `k` most likely, and draw the target's own in place of the first other one.

    Where the whole draft is kept nothing follows it, so that every token but those replaced is the drafter's. A row's last token is the
    target's, as it is not drafted.

    Args:
        k: rank a token may have.

    Raises:
        ValueError: if `k` is below 1, or a draft branches.
    """

    k: int = 25
    exactness, coupled, uses_q, trees = UNMETERED, False, True, False

    def __post_init__(self):
        if self.k < 1:
            raise ValueError(f"k is {self.k}: a token has rank 1 or more")

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        if not draft.linear:
            raise ValueError("Interleaved reads one token after the other, but this draft branches: draft a chain")
        keys, roots = noise.value(draft.position()), draft.roots
        if draft.size == roots:
            return commit(draft, torch.full_like(draft.start, roots - 1), scored.p.sample(keys)[:, -1])
        passes = with_roots(draft, self._likely(parents_distribution(draft, scored), draft.draft_tokens))
        leaf, failed = longest(draft, passes)
        kept_whole = ~failed & (leaf >= roots)
        rows = torch.arange(len(leaf), device=leaf.device)
        drawn = scored.p.at(leaf[:, None]).sample(keys[rows[:, None], leaf[:, None]])[:, 0]
        extra = torch.where(kept_whole, draft.nodes[rows, leaf], drawn)
        verdict = commit(draft, leaf - kept_whole.long(), extra)
        return replace(verdict, judged=verdict.accepted + failed)

    def _likely(self, p: Categorical, x: Tensor) -> Tensor:
        """Whether values are among the `k` most likely of `p`, and possible. Equally likely ones rank alike."""
        least = p.top(min(self.k, p.size))[0][..., -1]
        own = p.scores.gather(-1, x[..., None])[..., 0]
        return (own >= least) & (own > -torch.inf)

    def accept_prob(self, p: Categorical, q: Categorical, x: Tensor) -> Tensor:
        """Compute the probability of keeping draft tokens; see `SingleDraft.accept_prob`."""
        return self._likely(p, x).to(p.scores.dtype)

    def replacement(self, p: Categorical, q: Categorical, x: Tensor) -> Categorical:
        """Make the distributions to draw from where draft tokens are replaced; see `SingleDraft.replacement`."""
        return p

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return emitted(self, p, q)
