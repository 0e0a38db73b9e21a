"""Goodness of fit of tokens to given distributions: a z-test of their likelihood and a chi-square test of their ranks."""

import torch
from torch import Tensor

from mmspec.bench.check.findings import Finding
from mmspec.core.distributions.categorical import Categorical


def moments(distribution: Categorical, ids: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return per token [B, T]: log p minus its mean, the variance of log p, and the token's randomised rank in [0, 1]."""
    log_p = distribution.log_probs().double()
    p = log_p.exp()
    safe = torch.where(p > 0, log_p, 0)
    mean = (p * safe).sum(-1)
    variance = (p * safe.square()).sum(-1) - mean.square()
    own = log_p.gather(-1, ids[..., None])
    above, equal = (p * (log_p > own)).sum(-1), (p * (log_p == own)).sum(-1)
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(ids.shape, generator=generator, dtype=torch.float64).to(p.device)
    return own[..., 0] - mean, variance, above + uniform * equal


def judged(name: str, surprise: Tensor, variance: Tensor, ranks: Tensor, rows: int, least: float = 1e-4) -> Finding:
    """Return a finding: a z-test that surprises sum to about 0, and a chi-square test of the ranks in 20 bins."""
    z = (surprise.sum() / variance.sum().clamp_min(1e-12).sqrt()).abs().item()
    bins = torch.histc(ranks, 20, 0, 1)
    expected = len(ranks) / 20
    chi = ((bins - expected).square() / expected).sum()
    p_z = torch.erfc(torch.tensor(z / 2**0.5, dtype=torch.float64)).item()
    p_chi = torch.special.gammaincc(torch.tensor(9.5, dtype=torch.float64), chi.double().cpu() / 2).item()
    passed = min(p_z, p_chi) > least
    detail = f"{len(ranks)} tokens: p = {p_z:.2g} (likelihood), {p_chi:.2g} (ranks); below {least:g} fails"
    return Finding(name, passed, rows, detail, "rule")
