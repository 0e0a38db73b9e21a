"""Sibling rules for `siblings.Walk`: top-k, with and without replacement, hybrid, K-SEQ. p, q: [B, 1, V]; x, count: [B, 1]."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.rules.siblings import Walk


def _capped_ratio(p: Categorical, q: Categorical, x: Tensor) -> Tensor:
    return (p.log_prob(x) - q.log_prob(x)).exp().clamp(max=1)


@dataclass(frozen=True)
class TopKSiblings:
    """Deterministic candidates (EAGLE-2, SGLang's "target only"): each is taken with its probability under what is left of p."""

    uses_q, points, tables = False, True, True

    def take_prob(self, p, q, x, index, count):
        return p.prob(x)

    def refuse(self, p, q, x, index, count):
        return p.without(x), q

    def refusal(self, p, q, x, index, count):
        return 1 - p.prob(x)


@dataclass(frozen=True)
class WithReplacement:
    """Multi-step speculative sampling (SpecInfer, Miao et al. 2023): candidates drawn independently from one q."""

    drawn = "with-replacement"
    uses_q, points, tables = True, False, True

    def take_prob(self, p, q, x, index, count):
        return _capped_ratio(p, q, x)

    def refuse(self, p, q, x, index, count):
        return p.residual(q, x), q

    def refusal(self, p, q, x, index, count):
        return p.tv(q, x)


@dataclass(frozen=True)
class WithoutReplacement:
    """Recursive rejection of candidates drawn without replacement (Jeon et al. 2024): rejected candidates are removed from q."""

    uses_q, points, tables = True, False, True

    def take_prob(self, p, q, x, index, count):
        return _capped_ratio(p, q, x)

    def refuse(self, p, q, x, index, count):
        return p.residual(q, x), q.without(x)

    def refusal(self, p, q, x, index, count):
        return p.tv(q, x)


@dataclass(frozen=True)
class Hybrid:
    """Hu et al. 2025: all candidates but the last are q's most likely values, the last is drawn from the rest of q."""

    drawn = "top-and-one"
    uses_q, points, tables = True, False, True

    def take_prob(self, p, q, x, index, count):
        return torch.where(index < count - 1, p.prob(x), _capped_ratio(p, q, x))

    def refuse(self, p, q, x, index, count):
        return p.without(x).where(index < count - 1, p.residual(q, x)), q.without(x)

    def refusal(self, p, q, x, index, count):
        return torch.where(index < count - 1, 1 - p.prob(x), p.tv(q, x))


@dataclass(frozen=True)
class KSeq:
    """K-SEQ (SpecTr, Sun et al. 2023): k independent candidates, each taken with min(1, p / (rho q)); at least 1 - 1/e of the optimum.

    rho in [1, k] solves 1 - (1 - b)^k = rho b with b = sum min(q, p / rho); when all k are rejected, what is left is (p - rho q)+.
    """

    drawn = "with-replacement"
    uses_q, points, tables = True, False, True

    def take_prob(self, p, q, x, index, count):
        return ((p.log_prob(x) - q.log_prob(x)).exp() / self.rho(p, q, count)).clamp(max=1)

    def refuse(self, p, q, x, index, count):
        left = (p.probs() - self.rho(p, q, count)[..., None] * q.probs()).clamp_(min=0)
        left = torch.where(left.sum(-1, keepdim=True) > 0, left, p.probs())
        return Categorical.of(left).where(index == count - 1, p), q

    def refusal(self, p, q, x, index, count):
        return 1 - torch.minimum(q.probs(), p.probs() / self.rho(p, q, count)[..., None]).sum(-1)

    @staticmethod
    def rho(p: Categorical, q: Categorical, count: Tensor) -> Tensor:
        """Solve for rho by bisection.

        Args:
            p: the target's distributions [B, 1, V].
            q: the draft's distributions [B, 1, V].
            count: candidates at the node [B, 1].

        Returns:
            [B, 1].
        """
        probs_p, probs_q = p.probs(), q.probs()
        low, high = torch.ones_like(count, dtype=probs_p.dtype), count.clamp(min=1).to(probs_p.dtype)
        for _ in range(60 if low.dtype == torch.float64 else 30):
            middle = 0.5 * (low + high)
            b = torch.minimum(probs_q, probs_p / middle[..., None]).sum(-1)
            below_root = 1 - (1 - b) ** count > middle * b
            low, high = torch.where(below_root, middle, low), torch.where(below_root, high, middle)
        return high


def with_replacement_rule() -> Walk:
    """Make the rule for candidates drawn with replacement (SpecInfer, Miao et al. 2023).

    Returns:
        A rule for `accept=`.
    """
    return Walk(WithReplacement())


def without_replacement_rule() -> Walk:
    """Make the rule for candidates drawn without replacement (Jeon et al. 2024).

    Returns:
        A rule for `accept=`.
    """
    return Walk(WithoutReplacement())


def topk_rule() -> Walk:
    """Make the rule for deterministic top-k candidates (EAGLE-2).

    Returns:
        A rule for `accept=`.
    """
    return Walk(TopKSiblings())


def hybrid_rule() -> Walk:
    """Make the rule for top-k candidates of which the last one is drawn (Hu et al. 2025).

    Returns:
        A rule for `accept=`.
    """
    return Walk(Hybrid())


def kseq_rule() -> Walk:
    """Make the rule for K-SEQ (SpecTr, Sun et al. 2023).

    Returns:
        A rule for `accept=`.
    """
    return Walk(KSeq())
