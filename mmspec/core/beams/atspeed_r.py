"""AtSpeed-R (Lin et al. 2025): a level's draft tokens are judged all at once against P, and K of those that pass are kept. Approximate.

Draft tokens are drawn from the drafter's distribution Q over pairs without replacement. Each passes with probability min(1, P / Q), on its
own. If K or more pass, K of them are kept at random; if fewer do, they are kept and the others drawn without replacement from
norm((P - Q)+).

The paper proves that one draft token drawn from Q, tested, and replaced on rejection is a draw from P, and no more. Where more than K draft
tokens pass, those kept favour pairs on which target and drafter agree; draft tokens drawn without replacement do not come from Q one by
one; and no meter of the distance is known. So the winners' distribution is neither that of K draws from P, with or without replacement, nor
within a stated distance of it. With the target as its own drafter every draft token passes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.beams.pairs import SampledBeams, draw_distinct, first_distinct, left_over, pair_distribution
from mmspec.core.beams.search import BeamLevel
from mmspec.core.noise import Noise
from mmspec.core.rules.base import UNMETERED


@dataclass(frozen=True)
class RelaxedBeams(SampledBeams):
    """K distinct paths a level, drawn from P without replacement where nothing was drafted.

    The published code ends a round where fewer than K pass. Here, as under every rule of beams, a round continues if the paths drawn
    instead are among the draft tokens; that depends on nothing below, so each level is chosen as described either way. Where the residual
    has fewer pairs than are missing, the published code fails; here the rest is drawn from P.
    """

    exactness = UNMETERED
    uses_q = True

    def pick(self, level: BeamLevel, noise: Noise) -> Tensor:
        log_p = pair_distribution(level.score, self.temperature)
        own = draw_distinct(noise.value(level.committed), log_p, level.state, self.k)
        if level.draft_tokens is None:
            return own
        p, q = log_p.exp(), level.log_q.exp()  # pyright: ignore[reportOptionalMemberAccess]
        passed = self.passed(p, q, level, noise)
        rest = left_over(p, q).scatter_add(1, passed.clamp_min(0), torch.where(passed >= 0, -torch.inf, 0.0).to(p.dtype)).clamp_min(0)
        replaced = draw_distinct(noise.residual(level.committed, level.start), rest.log(), level.state, self.k)
        return first_distinct(torch.cat([passed, replaced, own], 1), self.k)

    def passed(self, p: Tensor, q: Tensor, level: BeamLevel, noise: Noise) -> Tensor:
        """The draft tokens that pass, in random order, [B, N]; followed by -1."""
        draft_tokens = level.draft_tokens
        assert draft_tokens is not None
        place, count = draft_tokens.clamp_min(0), draft_tokens.shape[1]
        keys = noise.accept(level.committed, level.start).branch(count + 1)[:, 0]
        chance = torch.where(draft_tokens >= 0, p.gather(1, place) / q.gather(1, place), 0)
        there = keys[:, :count].below(chance) & (draft_tokens >= 0)
        turn = draw_distinct(keys[:, count:], there.double().log(), torch.arange(count, device=place.device).expand_as(place), count)
        return torch.where(turn >= 0, draft_tokens.gather(1, turn.clamp_min(0)), -1)
