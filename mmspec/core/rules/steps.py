"""Rules that judge a drafted token's denoising path state by state.

Where target and draft share a schedule every step is a pair of Gaussians of one scale, whose residual is known in closed form. A round's
draft tokens, G tokens of T steps each, are one chain of G T steps, of which a rule keeps a prefix. The token in which the prefix ends keeps
its states up to there, has the next one drawn from the residual of the target's step, and is finished by the target's chain. x_T is drawn
alike under both, and not judged.

A token is accepted only if all its T steps are. Step by step that has probability prod_t 2 Phi(-delta_t / 2) at best, which falls as T
grows even where the divergence of the paths is constant; `Token` over whole paths accepts about 2 Phi(-sqrt(sum_t delta_t^2) / 2)
(`core.distributions.denoising_path`). These rules serve as a comparison, for heads of a few steps, and because a rejected token is
continued from where it was rejected.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.rules.base import DISTRIBUTION_EXACT, commit, over_judged, parents_distribution, with_meters
from mmspec.core.rules.block import Block
from mmspec.core.rules.token import ratio


class Steps(ABC):
    """Base of rules over denoising steps.

    They judge distributions of paths (`DenoisingPath`): `distribution.steps(path)` gives the distribution of every next state and
    `distribution.redrawn` finishes a path. Calling one raises ValueError for trees and for values without steps.
    """

    exactness = DISTRIBUTION_EXACT
    coupled, uses_q, trees = False, True, False

    @abstractmethod
    def chances(self, p: Any, q: Any, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute the acceptance probability of every step.

        Args:
            p: the target's distributions [B, S] of the states given those before.
            q: the draft's distributions [B, S].
            x: states [B, S, d].
            valid: bool [B, S], false for PAD.

        Returns:
            Probabilities [B, S], and the weight of p after as many steps [B, S + 1] or None.
        """

    @abstractmethod
    def kept(self, passes: Tensor) -> Tensor:
        """Count the steps that are kept.

        Args:
            passes: outcomes of the tests, bool [B, S].

        Returns:
            [B].
        """

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        name = type(self).__name__
        if not draft.linear:
            raise ValueError(f"{name} judges chains of tokens, but this draft branches: leave tree out")
        last_root = torch.full_like(draft.start, draft.roots - 1)
        if draft.size == draft.roots:
            own = scored.p.at(last_root[:, None]).sample(noise.value(draft.start[:, None]))
            return commit(draft, last_root, own[:, 0])
        distribution, x, valid = parents_distribution(draft, scored), draft.draft_tokens, draft.valid[:, draft.roots :]
        if not (hasattr(distribution, "steps") and hasattr(draft.q, "steps")):
            raise ValueError(f"{name} judges the denoising steps of drawn tokens, but there are none here: take token")
        length = x.shape[2] - 1
        chain = p, q, states = _flat(distribution.steps(x)), _flat(draft.q.steps(x)), x[:, :, 1:].flatten(1, 2)
        keys = noise.accept(draft.position()[:, draft.roots - 1 : -1], draft.start).branch(length)  # [B, G, T]
        real = valid.repeat_interleave(length, 1)
        chance, weights = self.chances(p, q, states, real)
        kept = self.kept(keys.below(chance.unflatten(1, (-1, length))).flatten(1) & real)
        weight = None if weights is None else weights.gather(1, kept[:, None])
        accepted = kept // length
        verdict = commit(draft, last_root + accepted, self._last(draft, scored, noise, chain, kept, weight))
        judged = accepted + (valid.sum(-1) > accepted)
        return with_meters(verdict, judged, None, over_judged(judged, distribution.tv(draft.q, x)))

    def _last(self, draft: Draft, scored: Scored, noise: Noise, chain: Any, kept: Tensor, weight: Tensor | None) -> Tensor:
        """The token committed after `kept` [B] steps: the rejected one repaired and finished, or a draw from the target where none was
        rejected.
        """
        (p, q, states), length = chain, draft.draft_tokens.shape[2] - 1
        accepted, rows = kept // length, torch.arange(len(kept), device=kept.device)
        broken, step = draft.valid[:, draft.roots :].sum(-1) > accepted, kept % length
        position, at = (draft.start + accepted)[:, None], kept.clamp(max=states.shape[1] - 1)[:, None]
        residual = noise.residual(position, draft.start)
        streams = residual.branch(2)  # one for the state behind the break, one for those that finish the token
        own = p.at(at)
        left = own.residual(q.at(at), states[rows[:, None], at], weight).where(broken[:, None], own)
        mended = left.sample(streams[..., 0])  # [B, 1, d]
        path = draft.draft_tokens[rows, accepted.clamp(max=draft.draft_tokens.shape[1] - 1)]  # [B, T + 1, d]
        index = torch.arange(length + 1, device=kept.device)
        path = torch.where((index == step[:, None] + 1)[..., None], mended.to(path.dtype), path)
        first = torch.where(broken, step + 2, 0)
        keys = streams[..., 1].where(broken[:, None], noise.value(position))
        return scored.p.at((draft.roots - 1 + accepted)[:, None]).redrawn(path[:, None], first[:, None], keys)[:, 0]


@dataclass(frozen=True)
class Stepwise(Steps):
    """Reflection coupling step by step (De Bortoli et al. 2025) over the steps of a round's tokens.

    A step's state is kept with probability min(1, p/q); the first that is not is reflected, which draws from the residual of the target's
    step.
    """

    def chances(self, p: Any, q: Any, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor | None]:
        return ratio(p, q, x).clamp(max=1), None

    def kept(self, passes: Tensor) -> Tensor:
        return passes.long().cumprod(-1).sum(-1)


@dataclass(frozen=True)
class BlockSteps(Steps):
    """Block verification of Gaussian steps (Soen et al. 2026) over all steps of a round: accepts at least as many as `Stepwise` in the
    mean.

    After the last step kept, the next state is drawn from norm((w p - q)+) with the chain's weight w, independently of the rejected state:
    a reflection is right for w = 1 only. Target and draft must have one schedule: ValueError where their noise differs.
    """

    def chances(self, p: Any, q: Any, x: Tensor, valid: Tensor) -> tuple[Tensor, Tensor | None]:
        reach = Block.reach(p, q, x)
        return Block.keep_prob(p, q, x, reach, valid), reach

    def kept(self, passes: Tensor) -> Tensor:
        return torch.where(passes, torch.arange(1, passes.shape[1] + 1, device=passes.device), 0).amax(-1)


def _flat(distribution: Any) -> Any:
    """Gaussians over [B, G, T] as one chain [B, G T]."""
    return type(distribution)(distribution.mean.flatten(1, 2), distribution.scale.flatten(1, 2))
