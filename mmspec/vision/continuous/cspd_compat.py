"""The procedure of CSpD's published code for masked models (Wang et al. 2024, arXiv 2411.11925). It is not speculative sampling.

A smaller masked model generates `gamma` sets, one an iteration, each given those before. The target then predicts all their cells in one
iteration, given only what was committed before the first of the sets, with the same noise. Every draft token is judged by itself:

- a draft token is its chain's last mean m_q, without the noise of the last step; the target has m_p, from the same x_T and noise of every
  step;
- it is kept with probability min(1, F exp(-|m_q - m_p|^2 / (2 tau^2 s_p^2)) (s_q / s_p)^d), tau = `inner_temperature`, s the noise of the
  last step and F = prod_{t >= 2} (s_p,t / s_q,t)^d, the inverse of the factor in the paper (both are 1 if target and draft have the same
  noise);
- otherwise it is replaced by a draw from norm((F N(m_p, s_p^2) - N(m_q, s_q^2))+), not tempered, by at most 100 tries
  (`core.rules.lossy.cspd`);
- nothing is rolled back: draft tokens that depend on a replaced one stay, and all of the sets count as committed.

A tau of 42 keeps a draft token within some dozens of deviations of the target's own token. The distribution of the pictures is neither that
of the target's iterations nor that of iterations / gamma of them; the difference is not measured.

Two faults of the code are not reproduced: densities are compared as logarithms in float64, not in half precision, where they overflow to
NaN; and after 100 tries a cell gets the target's first draw, not zero.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.noise import Keys, Noise
from mmspec.core.rules.lossy.cspd import Tail
from mmspec.vision.continuous.masked_sets import Canvas, SetWriter

INNER_TEMPERATURE = 42.0


@dataclass(frozen=True)
class JudgedRound:
    """Result of one round."""

    cells: Tensor  # [B, M]
    tokens: Tensor  # [B, M, d]
    kept: Tensor  # [B, M] bool


@dataclass(frozen=True)
class CSpDCompat:
    """The procedure.

    A round ends at iterations, counted from 0, that are multiples of `gamma`, and at the last one, as in the code.

    Args:
        gamma: sets a round.
        inner_temperature: divides distances between draft and target means.
        prefill: share of iterations, rounded up, that the target runs without a draft.

    Raises:
        ValueError: for values out of range.
    """

    gamma: int = 4
    inner_temperature: float = INNER_TEMPERATURE
    prefill: float = 0.05

    def __post_init__(self):
        if self.gamma < 1:
            raise ValueError(f"gamma is {self.gamma}, but the draft writes at least 1 set before the target judges: give 1 or more")
        if not self.inner_temperature > 0:
            raise ValueError(
                f"inner_temperature is {self.inner_temperature}, but it divides distances: give a positive number (1 for none)"
            )
        if not 0 <= self.prefill < 1:
            raise ValueError(f"prefill is {self.prefill}, but it is the share of iterations without a draft: give 0 or more, below 1")

    def rounds(self, iterations: int) -> list[range]:
        """Return the iterations of each drafted round; those before the first are run by the target."""
        begin, rounds = self.first(iterations), []
        for k in range(begin, iterations):
            if k % self.gamma == 0 or k == iterations - 1:
                rounds.append(range(begin, k + 1))
                begin = k + 1
        return rounds

    def first(self, iterations: int) -> int:
        """Return the number of iterations that the target runs without a draft."""
        return math.ceil(round(self.prefill * iterations, 9))  # 0.07 * 100 is a little more than 7

    def draft(self, drafter: SetWriter, canvas: Canvas, first: int, iterations: range, noise: Noise) -> tuple[Tensor, Tensor]:
        """Return the cells [B, M] of `iterations`, the first of which is number `first` of the order, and draft tokens [B, M, d] for them.

        `canvas` is not changed.
        """
        sketch, all_cells, draft_tokens = canvas.copy(), [], []
        for k in iterations:
            cells = sketch.cells(first, drafter.plan.sizes[k])
            _, means = drafter.chains(drafter.head_input(sketch, cells, k), noise.value(cells), k)
            sketch.put(cells, means)
            all_cells.append(cells)
            draft_tokens.append(means)
            first += cells.shape[1]
        return torch.cat(all_cells, 1), torch.cat(draft_tokens, 1)

    def judge(
        self, target: SetWriter, drafter: SetWriter, canvas: Canvas, cells: Tensor, draft_tokens: Tensor, last: int, noise: Noise
    ) -> JudgedRound:
        """Judge draft tokens by one set prediction of the target for all `cells`, with the guidance scale and steps of iteration `last`."""
        _, means = target.chains(target.head_input(canvas, cells, last), noise.value(cells), last)
        own, theirs = target.plan.noise_schedules[last].std, drafter.plan.noise_schedules[last].std
        p, q = _around(means, own[-1]), _around(draft_tokens, theirs[-1])
        size = draft_tokens.shape[-1]
        log_factor = size * float((own[:-1].log() - theirs[:-1].log()).sum())
        distance = ((draft_tokens - means).double() / (self.inner_temperature * own[-1])).square().sum(-1)
        chance = (log_factor + size * float((theirs[-1] / own[-1]).log()) - distance / 2).exp().clamp(max=1)
        start = torch.full_like(cells[:, 0], last)
        kept = noise.accept(cells, start).below(chance)
        return JudgedRound(cells, _replaced(draft_tokens, p, q, log_factor, ~kept, noise.residual(cells, start)), kept)


def _replaced(draft_tokens: Tensor, p: Gaussian, q: Gaussian, log_factor: float, refused: Tensor, keys: Keys) -> Tensor:
    """Return `draft_tokens` [B, M, d], with those that are `refused` [B, M] drawn anew."""
    rows, columns = refused.nonzero(as_tuple=True)
    at = rows[:, None], columns[:, None]
    fresh = Tail(p.picked(*at), q.picked(*at), log_factor).sample(keys[at])
    return draft_tokens.index_put((rows, columns), fresh[:, 0].to(draft_tokens.dtype))


def _around(mean: Tensor, std: Tensor) -> Gaussian:
    return Gaussian(mean, torch.full_like(mean[..., :1], std.item()))


def require_masked_drafter(target: Any, drafter: Any) -> Any:
    """Return `drafter`. ValueError unless it generates pictures of the target's form."""
    if drafter is None:
        raise ValueError("cspd-compat drafts with a smaller masked model: pass drafter=..., or choose plain with fewer iterations")
    for name in ("grid", "channels", "classes"):
        own, theirs = getattr(target.config, name, None), getattr(getattr(drafter, "config", None), name, None)
        if own != theirs:
            raise ValueError(f"the drafter has {name} {theirs} and the target {own}: give a masked model trained on the same tokens")
    return drafter
