"""Principled coarse-grained acceptance (PCG, 2025, arXiv 2511.13732): exact for groups of similar tokens.

As published: draw one of the draft token's groups k and accept with P(k) / Q(k), the masses target and drafter give to the group. After a
rejection draw t from p, draw one of its groups k', keep t with (1 - Q(k') / P(k'))+, or try again. The group then has the target's own
distribution over groups. Which of its tokens is committed is the drafter's choice, so the token's distribution differs, which is metered.

Neither draw of a group is made here. Over the groups of x the probability to pass is the mean of min(1, P / Q), and the loop ends in

    r(t) ~ p(t) * mean over k in S(t) of (1 - Q(k) / P(k))+,

so both are the same distributions in closed form, with less noise and no loop.
"""

import warnings
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
    p).

    Where no two values share a group it is the token rule. Acceptance need not grow with the groups, as they overlap. Once `budget` is
    spent the rule is exact for tokens.

    Args:
        groups: groups of values.
        member: which token of an accepted group is committed. "draft": the draft token, as published. "target": a member drawn by p; the
            distribution of the token is then p, but the draft tokens after x are kept only if that member is x, so it accepts less than the
            token rule, and serves as a comparison.
        budget: total variation a row may spend; None for no limit.

    Raises:
        ValueError: for an unknown member or a budget out of range.
    """

    groups: Groups
    member: Literal["draft", "target"] = "draft"
    budget: float | None = None
    tight = False

    def __post_init__(self):
        if self.member == "guess":  # the name of 0.1
            warnings.warn("member 'guess' is now 'draft'; the old name goes in 0.3", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "member", "draft")
        if self.member not in ("draft", "target"):
            raise ValueError(f"member is {self.member!r}; valid: draft, target")
        check_budget(self.budget)

    @property
    def table_size(self) -> int:
        """Values of the groups."""
        return self.groups.values

    @property
    def exactness(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """ "group-exact" if values share groups and the draft token is committed, else "distribution-exact"."""
        return GROUP_EXACT if self.member == "draft" and self.groups.shared else DISTRIBUTION_EXACT

    def accept_prob(self, p: Any, q: Any, x: Tensor) -> Tensor:
        if not self.groups.shared:
            return Token().accept_prob(p, q, x)
        return _at(self._chances(*self._distributions(p, q, x)), x)

    def replacement(self, p: Any, q: Any, x: Tensor) -> Any:
        if not self.groups.shared:
            return p.residual(q, x)
        probs, drawn = self._distributions(p, q, x)
        rest = self._rest(probs, drawn) if self.member == "draft" else (probs - drawn * self._chances(probs, drawn)).clamp_(min=0)
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
        """The probability of each value to be kept if it is drafted, [..., V]."""
        p, q = self.groups.coarse(probs), self.groups.coarse(drawn)
        if self.member == "draft":
            return self.groups.mean(torch.where(p < q, p / q, 1))
        most = torch.maximum(p, q)  # min(1, P / Q) times the value's share of its group under p
        return probs * self.groups.mean(torch.where(most > 0, 1 / most, 0)) / self.groups.sizes()

    def _rest(self, probs: Tensor, drawn: Tensor) -> Tensor:
        """The target's unnormalised distribution after a rejection, [..., V]."""
        p, q = self.groups.coarse(probs), self.groups.coarse(drawn)
        return probs * self.groups.mean(torch.where(p > q, 1 - q / p, 0))


def _at(values: Tensor, x: Tensor) -> Tensor:
    return values.gather(-1, x[..., None])[..., 0]


def pcg_tree(groups: Groups, budget: float | None = None) -> Walk:
    """Make PCG for trees whose candidates are deterministic or drawn without replacement. Lossy; its drift is a bound.

    A second candidate is judged by groups against what the first one left of p, as tokens. Groups that do not overlap keep the target's
    distribution; with overlapping groups the drift bounds how far a node is from it.

    Args:
        groups: as `PCG`.
        budget: as `PCG`.

    Returns:
        A rule for `accept=`.
    """
    return relaxed(PCG(groups, budget=budget))
