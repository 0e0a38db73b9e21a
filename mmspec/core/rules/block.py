"""Block verification (Sun et al. 2024): judges the chain as a whole and is never worse than the token rule."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import DISTRIBUTION_EXACT, commit, over_judged, parents_distribution, with_meters
from mmspec.core.rules.token import Token, _chain_extra, judge_chain, ratio


@dataclass(frozen=True)
class Block:
    """Block verification (Sun et al. 2024): judges the chain as a whole; accepts at least as many draft tokens as the token rule in the
    mean.

    It needs the mass of (weight p - q)+, which `Categorical` sums up and `Gaussian` has in closed form where scales are equal (Soen et al.
    2026). Raises ValueError for drafts that branch.
    """

    exactness = DISTRIBUTION_EXACT
    coupled = False
    uses_q = True
    trees = False

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        if draft.q is None or draft.size == draft.roots:  # a point mass leaves nothing to judge jointly
            return judge_chain(Token(), draft, scored, noise)
        if not draft.linear:
            raise ValueError("Block judges chains, but this draft branches: use a tree rule such as match, coupled or without-replacement")
        p, q, x, valid = parents_distribution(draft, scored), draft.q, draft.draft_tokens, draft.valid[:, draft.roots :]
        reach = self.reach(p, q, x)  # [B, G + 1]: r_0 .. r_g
        position = draft.position()[:, draft.roots - 1 : -1]
        keep = self.keep_prob(p, q, x, reach, valid)  # [B, G]: h_1 .. h_g
        hit = noise.accept(position, draft.start).below(keep) & valid
        steps = torch.arange(1, hit.shape[1] + 1, device=hit.device)
        accepted = torch.where(hit, steps, 0).amax(-1)
        weight = reach.gather(1, accepted[:, None])
        verdict = commit(draft, draft.roots - 1 + accepted, _chain_extra(_Weighted(weight), draft, scored, noise, accepted))
        judged = accepted + (valid.sum(-1) > accepted)
        return with_meters(verdict, judged, None, over_judged(judged, p.tv(q, x)))

    @staticmethod
    def reach(p: Any, q: Any, x: Tensor) -> Tensor:
        """Compute r_i = min(1, r_{i-1} p_i(x_i) / q_i(x_i)) with r_0 = 1.

        Args:
            p: the target's distributions [B, G].
            q: the draft's distributions [B, G].
            x: draft tokens [B, G, *value].

        Returns:
            [B, G + 1].
        """
        ratios = ratio(p, q, x)
        ratios = ratios.clamp(max=torch.finfo(ratios.dtype).max)  # 0 times infinity is no number
        reach = [torch.ones_like(ratios[:, 0])]
        for step in range(x.shape[1]):
            reach.append((reach[-1] * ratios[:, step]).clamp(max=1))
        return torch.stack(reach, 1)

    @staticmethod
    def keep_prob(p: Any, q: Any, x: Tensor, reach: Tensor, valid: Tensor) -> Tensor:
        """Compute h_i, the probability of keeping i draft tokens or more given that no larger number was kept.

        The last draft token of a row has h = r, since no more of the row's block follows it.

        Args:
            p: the target's distributions [B, G].
            q: the draft's distributions [B, G].
            x: draft tokens [B, G, *value].
            reach: [B, G + 1].
            valid: bool [B, G], false for PAD.

        Returns:
            [B, G].
        """
        mass = p.mass(q, x, reach[:, :-1])  # m_0 .. m_{g-1}
        spare = mass[:, 1:] + 1 - reach[:, 1:-1]
        inner = torch.where(spare > 0, mass[:, 1:] / spare, 1)
        more = torch.cat([valid[:, 1:], torch.zeros_like(valid[:, :1])], 1)  # a draft token follows this one
        padded = torch.cat([inner, inner.new_zeros(len(inner), 1)], 1)
        return torch.where(more, padded, reach[:, 1:])

    def output_distribution(self, p: Categorical, q: Categorical) -> Categorical:
        return p


@dataclass(frozen=True)
class _Weighted:
    """The replacement of block verification, norm((weight * p - q)+)."""

    weight: Tensor  # [B, 1]

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        raise TypeError("block verification judges whole chains, not single draft tokens")

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        return p.residual(q, x, self.weight)
