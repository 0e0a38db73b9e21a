"""Speculative beam sampling, exact in distribution (DSBD, Qin et al. 2025): draft tokens are judged in turn against what is left of P.

P is the distribution over all pairs of the target's beams. Draft tokens come independently from the distribution Q over the drafter's
pairs, in the order drawn. With P' = P at first, draft token z is taken with probability P'(z) / Q(z), upon which P' is P again; else P'
becomes norm((P' - Q)+). A draft token whose parent is none of the target's beams is always rejected, P' being 0 there, and changes P' like
any other rejection. When K are taken the rest is not judged. What is missing when draft tokens run out is drawn: the first from P', which
after a rejection is not P, the rest from P.

This gives K independent draws from P: a run of rejections and the draft token that ends it, or the draw from P' that does, is rejection
sampling from P as it was when the run began, however many draft tokens were left then. The released code draws from P after a last
rejection, which favours pairs that Q overrates.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.beams.pairs import SampledBeams, draw_pairs, first_distinct, left_over, pair_distribution
from mmspec.core.beams.search import BeamLevel
from mmspec.core.noise import Noise
from mmspec.core.records import PAD
from mmspec.core.rules.base import DISTRIBUTION_EXACT


@dataclass(frozen=True)
class IndependentBeams(SampledBeams):
    """K independent draws a level from softmax(score / temperature), of which equal ones are one beam.

    So there are at most K beams, all different, and the next level's pairs are theirs. The search is exact level by level whether or not a
    level's winners were drafted: whether a round continues below a level depends on that level's winners and draft tokens alone, rejected
    ones included, and the draft tokens below are independent of its tests and draws. No level reads noise that another verdict on it has
    used, since that is keyed by the round. Draft tokens without a recorded distribution are not judged: all is drawn from P.
    """

    exactness = DISTRIBUTION_EXACT
    uses_q = True

    def pick(self, level: BeamLevel, noise: Noise) -> Tensor:
        p = pair_distribution(level.score, self.temperature).exp()
        own = draw_pairs(noise.value(level.committed).branch(self.k)[:, 0], p, level.state)
        own = torch.where(p.sum(-1, keepdim=True) > 0, own, -1)
        if level.draft_tokens is None:
            return first_distinct(own, self.k)
        taken, left, refused = self.judge(p, level, noise)
        own[:, :1] = torch.where(refused[:, None], draw_pairs(noise.residual(level.committed, level.start), left, level.state), own[:, :1])
        missing = self.k - (taken >= 0).sum(1, keepdim=True)
        own = torch.where(torch.arange(self.k, device=own.device) < missing, own, -1)
        return first_distinct(torch.cat([taken, own], 1), self.k)

    def judge(self, p: Tensor, level: BeamLevel, noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
        """Judge a level's draft tokens.

        Returns:
            Those taken, [B, N] with -1 for the others; what is left of P [B, S]; and whether the last one was rejected [B].
        """
        assert level.draft_tokens is not None
        assert level.log_q is not None
        q, left, taken = level.log_q.exp(), p, torch.full_like(level.draft_tokens, -1)
        count, refused = torch.zeros_like(level.start), torch.zeros_like(level.start, dtype=torch.bool)
        tests = noise.accept(level.committed, level.start).branch(level.draft_tokens.shape[1])[:, 0]
        for turn, z in enumerate(level.draft_tokens.unbind(1)):
            place, live = z.clamp_min(0)[:, None], (z != PAD) & (count < self.k)
            chance = torch.where(z[:, None] >= 0, left.gather(1, place) / q.gather(1, place), 0)
            hit = live & tests[:, turn : turn + 1].below(chance)[:, 0]
            missed = live & ~hit
            taken[:, turn] = torch.where(hit, z, -1)
            left = torch.where(missed[:, None], self.refuse(left, q), torch.where(hit[:, None], p, left))
            count, refused = count + hit, torch.where(live, missed, refused)
        return taken, left, refused

    @staticmethod
    def refuse(left: Tensor, q: Tensor) -> Tensor:
        """The distribution left after a rejection, norm((left - q)+), all [B, S]."""
        return left_over(left, q)
