"""Principled coarse-grained acceptance (PCG, 2025, arXiv 2511.13732): exact for groups of tokens that sound alike.

As published: draw one of the draft token's groups k, accept the draft token with P(k) / Q(k), what target and drafter give to the group.
After a rejection draw t from p, draw one of its groups k', keep t with (1 - Q(k') / P(k'))+, or try again. The group then has the target's
own distribution over groups. Which token stands for it is the drafter's choice, so the token's distribution is another one; how far off is
metered.

Neither draw of a group has to be made. Over the groups of x the chance to pass is the mean of min(1, P / Q), and the loop ends in

    r(t) ~ p(t) * mean over k in S(t) of (1 - Q(k) / P(k))+,

so both are the same distributions in closed form, with less noise and no loop.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.rules.base import DISTRIBUTION_EXACT, GROUP_EXACT
from mmspec.core.rules.groups import Groups
from mmspec.core.rules.lossy.base import Ratio, check_budget
from mmspec.core.rules.siblings import Walk, relaxed
from mmspec.core.rules.token import Token


@dataclass(frozen=True)
class PCG(Ratio):
    """PCG: accept with the mean of min(1, P(k) / Q(k)) over the draft token's groups; exact at group level. Drift: TV(token distribution,
    p) itself.

    Where no two values share a group it is the token rule. `member` says who stands for an accepted group. "draft token": x itself, as
    published. "target": a member drawn by p; the distribution of the token then is p, but the draft tokens behind x only live on if that
    member is x, so it accepts less than the token rule, and is there for comparison. Acceptance need not grow as groups do: they overlap.

    Once a `budget` is spent the rule is exact for tokens.
    """

    groups: Groups
    member: Literal["guess", "target"] = "guess"
    budget: float | None = None
    tight = False

    def __post_init__(self):
        if self.member not in ("guess", "target"):
            raise ValueError(f"member is {self.member!r}: valid: draft token, target")
        check_budget(self.budget)

    @property
    def exactness(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return GROUP_EXACT if self.member == "guess" and self.groups.shared else DISTRIBUTION_EXACT

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        if not self.groups.shared:
            return Token().accept_prob(p, q, x)
        return _at(self._chances(*self._distributions(p, q, x)), x)

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        if not self.groups.shared:
            return p.residual(q, x)
        probs, drawn = self._distributions(p, q, x)
        rest = self._rest(probs, drawn) if self.member == "guess" else (probs - drawn * self._chances(probs, drawn)).clamp_(min=0)
        return Categorical.of(torch.where(rest.sum(-1, keepdim=True) > 0, rest, probs))

    def excess(self, p: Any, q: Any, x: Tensor, chance: Tensor | None = None) -> Tensor:
        probs, drawn = self._distributions(p, q, x)
        if self.exactness == DISTRIBUTION_EXACT:
            return torch.zeros_like(probs[..., 0])
        output = drawn * self._chances(probs, drawn) + self._rest(probs, drawn)
        return 0.5 * (output - probs).abs().sum(-1)

    @staticmethod
    def _distributions(p: Any, q: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities under p and q, each [..., V]."""
        probs = p.probs()
        return probs, Categorical.point(x, probs.shape[-1], probs.dtype).probs() if q is None else q.probs()

    def _chances(self, probs: Tensor, drawn: Tensor) -> Tensor:
        """The chance of each value to be kept if it is drafted, [..., V]."""
        p, q = self.groups.coarse(probs), self.groups.coarse(drawn)
        if self.member == "guess":
            return self.groups.mean(torch.where(p < q, p / q, 1))
        most = torch.maximum(p, q)  # min(1, P / Q) times the value's share of its group under p
        return probs * self.groups.mean(torch.where(most > 0, 1 / most, 0)) / self.groups.sizes()

    def _rest(self, probs: Tensor, drawn: Tensor) -> Tensor:
        """What the target has left to commit after a rejection, not normalised, [..., V]."""
        p, q = self.groups.coarse(probs), self.groups.coarse(drawn)
        return probs * self.groups.mean(torch.where(p > q, 1 - q / p, 0))


def _at(values: Tensor, x: Tensor) -> Tensor:
    return values.gather(-1, x[..., None])[..., 0]


def pcg_tree(groups: Groups, budget: float | None = None) -> Walk:
    """PCG for trees: drawn without replacement or deterministic. Lossy, with its drift a bound.

    A second candidate is judged by groups against what the first one left of p, as tokens. Groups that do not overlap keep the
    target's distribution all the way; of groups that do, only the drift says how far a node is from it.
    """
    return relaxed(PCG(groups, budget=budget))
