"""Speculative beam sampling that is exact in distribution (DSBD, Qin et al. 2025): draft tokens are judged one after the other against what
is left of P.

P is the distribution over all pairs of the target's beams. Draft tokens come independently from the distribution Q over the drafter's
pairs, in the order they were drawn. With P' = P at first, draft token z is taken with probability P'(z) / Q(z), upon which P' is P again;
else P' becomes norm((P' - Q)+). A draft token that hangs on no beam of the target's is refused for certain, P' being 0 there, and changes
P' like any other refusal. When K are taken the rest is not looked at. What is missing when draft tokens run out is drawn: the first from
P', which after a refusal is not P, the rest from P.

Why that is K independent draws from P: a run of refusals and the draft token that ends it, or the draw from P' that does, is rejection
sampling from P as it stood when the run began, however many draft tokens were left then. The released code draws from P after a last
refusal, and gives too much to what Q overrates.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.beams.pairs import SampledBeams, draw, first_distinct, left_over, pair_distribution
from mmspec.core.beams.search import BeamLevel
from mmspec.core.noise import Noise
from mmspec.core.records import PAD
from mmspec.core.rules.base import DISTRIBUTION_EXACT


@dataclass(frozen=True)
class IndependentBeams(SampledBeams):
    """The distribution of a level: K independent draws from softmax(score / temperature), of which equal ones are one beam.

    So there are K beams or fewer, all different, and the next level's pairs are theirs. Search level by level is exact whether or not
    a level's winners were drafted. Whether a round goes on below a level hangs on that level's winners and draft tokens alone, those that
    were drawn and not taken included: the draft tokens below are independent of both tests and draws, and whatever Q they came from, the
    level they stand for has its distribution. Nor does a level see noise that another verdict on it has used: those are keyed by the round.

    Draft tokens of which no distribution was recorded are not judged: all is drawn from P.
    """

    exactness = DISTRIBUTION_EXACT
    uses_q = True

    def pick(self, level: BeamLevel, noise: Noise) -> Tensor:
        p = pair_distribution(level.score, self.temperature).exp()
        own = draw(noise.value(level.committed).branch(self.k)[:, 0], p, level.state)
        own = torch.where(p.sum(-1, keepdim=True) > 0, own, -1)
        if level.draft_tokens is None:
            return first_distinct(own, self.k)
        taken, left, refused = self.judge(p, level, noise)
        own[:, :1] = torch.where(refused[:, None], draw(noise.residual(level.committed, level.start), left, level.state), own[:, :1])
        missing = self.k - (taken >= 0).sum(1, keepdim=True)
        own = torch.where(torch.arange(self.k, device=own.device) < missing, own, -1)
        return first_distinct(torch.cat([taken, own], 1), self.k)

    def judge(self, p: Tensor, level: BeamLevel, noise: Noise) -> tuple[Tensor, Tensor, Tensor]:
        """Which draft tokens are taken, [B, N] with -1 for those that are not; what is left of P [B, S]; and was the last one refused?
        [B]"""
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
        return left_over(left, q)
