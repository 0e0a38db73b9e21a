"""Test of exactness for continuous models under an accept rule, on generated values.

Under an exact rule a committed value x has the target's distribution p, whatever was drafted. With m_p, m_q the means of target and drafter
before it and e = (m_q - m_p) / |m_q - m_p|, which are functions of the past, the number (x - m_p) . e / sigma is standard normal. As e
points from the target's mean to the drafter's, a rule that accepts too much of the draft shifts it. Distances between sets of pictures have
less power: a rule that replaces rejected draft tokens by plain draws from p passed them with hundreds of pictures, and fails this test with
a few thousand tokens.

- Tokens that are Gaussians given the noise of their samplers (`aligned`): one number a token.
- Paths of denoising steps (`path`, `stepwise`, `block`): one number for every step of every token. A committed path has the target's
  distribution, so each of its steps has it given the states before. Speculation inside a chain (`chain`) is tested in the same way, along
  the line to the mean that the prediction of the step before would give.
- Distributions without a mean (mixtures): the rank of log q/p at x among its values at fresh draws from p, which is uniform, turned into a
  normal number. A rule that accepts too much favours values with a large q.

Values may be left out by criteria that depend on the past only: bonus values, under rules that judge from left to right, and values
where the two models nearly agree. Under block verification the number of judged draft tokens depends on later draws, so every value is
used.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.chains.tables import StepTables
from mmspec.core.control import Fixed
from mmspec.core.distributions.denoising_path import DenoisingPath
from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.noise import Noise
from mmspec.core.records import Budget, Step
from mmspec.core.rules.steps import Stepwise
from mmspec.core.rules.token import Token
from mmspec.core.stats import Stats
from mmspec.vision.continuous.generation import WINDOW, generate_continuous, pair_of
from mmspec.vision.continuous.latents import Sampling
from mmspec.vision.continuous.methods import ContinuousPictures, continuous_model, way_of
from mmspec.vision.continuous.state_draft import StateSource

FROM_LEFT = (Token, Stepwise)
"""Rules whose decision on a value does not depend on later values: bonus values may be left out."""
DRAWS = 100
"""Fresh values for the rank of a value, for distributions that are not Gaussian."""
CHUNK, PIECE = 32, 256
"""Rows scored at a time, and tokens ranked."""
_RANKS = 1 << 40
"""Added to a row's seed for the fresh draws, so that their noise is independent of the generation's."""


@dataclass(frozen=True)
class ProjectedValues:
    """Values that are independent standard normals under an exact rule.

    Args:
        values: float [M].
        tokens: number of committed tokens they were computed from.
        stats: statistics of the generation.
    """

    values: Tensor
    tokens: int
    stats: Stats = field(default_factory=Stats)

    @property
    def p_value(self) -> float:
        """p-value of the Kolmogorov-Smirnov distance from N(0, 1)."""
        return normality(self.values)

    @property
    def mean(self) -> float:
        """Mean of `values`; 0 under an exact rule, above 0 where too much of the draft is accepted."""
        return self.values.mean().item()

    @property
    def deviation(self) -> float:
        """Standard deviation of `values`; 1 under an exact rule."""
        return self.values.std().item()

    def __add__(self, other: "ProjectedValues") -> "ProjectedValues":
        """Return both samples together, with the statistics of this one."""
        return ProjectedValues(torch.cat([self.values, other.values]), self.tokens + other.tokens, self.stats)


def normality(values: Tensor) -> float:
    """Return the p-value of the Kolmogorov-Smirnov distance of `values` [M] from N(0, 1).

    Uses the limiting distribution with Stephens' correction, accurate to about 0.001 for M >= 50. ValueError for no values.
    """
    count = len(values)
    if count == 0:
        raise ValueError("there is no value to test: no draft token was judged, or target and drafter are equal everywhere")
    level = torch.special.ndtr(values.double().sort().values)
    steps = torch.arange(count + 1, device=values.device) / count
    away = torch.maximum((steps[1:] - level).max(), (level - steps[:-1]).max()).item()
    reach = (count**0.5 + 0.12 + 0.11 / count**0.5) * away
    if reach < 0.2:  # the series below converges slowly, to 1 within 12 digits
        return 1.0
    return min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * reach) ** 2) for k in range(1, 101)))


def project(
    model: Any,
    prompts: Sequence[Any],
    method: str | None = None,
    *,
    window: int = WINDOW,
    guidance: float | None = None,
    temperature: float = 1.0,
    seed: int | Sequence[int] = 0,
    sampling: Sampling | None = None,
    drafter: Any = None,
    accept: Any = None,
    draft_steps: int | str | None = None,
    least: float = 0.0,
) -> ProjectedValues:
    """Generate one picture a prompt as `mmspec.vision.generate` does, and project every committed value.

    A sample of some thousands of tokens, such as 150 pictures of 7 x 7, detects common faults.

    Args:
        model, prompts, method, window, guidance, temperature, seed, sampling, drafter, accept, draft_steps: as in
            `mmspec.vision.generate`.
        least: values count where the two models' means are at least this many standard deviations apart.

    Returns:
        The projected values.

    Raises:
        ValueError: for models of other kinds, and for methods without a drafter.
    """
    pictures = continuous_model(model)
    if pictures is None:
        raise ValueError(f"{type(model).__name__} is no model of continuous tokens: tokens with a table are checked by mmspec check")
    method = pictures.method if method is None else method
    way = way_of(method)
    if way.accept is None and method != "chain":
        raise ValueError(f"method {method!r} judges no draft token: take one that drafts, such as path, density or aligned")
    noise, sampling = Noise.from_seed(seed, len(prompts), pictures.model.device), sampling or Sampling()
    options: dict[str, Any] = {"guidance": guidance, "temperature": temperature, "drafter": drafter, "sampling": sampling}
    watch, chosen = Watch(len(prompts)), {"control": Fixed(window - 1), "most": window, "noise": noise, "accept": accept}
    found, out = generate_continuous(pictures, prompts, method, on_step=watch, draft_steps=draft_steps, **chosen, **options)
    x, judged = watch.values(), watch.judged()
    if method == "chain" or not isinstance(accept or way.accept, FROM_LEFT):
        judged = torch.ones_like(judged)
    values = [
        _chunk(found, list(prompts[rows]), method, noise.seeds[rows], x[rows], judged[rows].to(x.device), options, window, least)
        for rows in (slice(first, first + CHUNK) for first in range(0, len(x), CHUNK))
    ]
    return ProjectedValues(torch.cat(values), out.stats.tokens, out.stats)


@torch.no_grad()
def _chunk(
    found: ContinuousPictures, prompts: Any, method: str, seeds: Tensor, x: Tensor, judged: Tensor, options: Any, window: int, least: float
) -> Tensor:
    classes, target, drafting = pair_of(found, prompts, method, most=window, noise=Noise(seeds), **options)
    p = taught(target, classes, x)
    q = (
        p
        if drafting is None
        else state_taught(target, drafting, classes, x, p)
        if isinstance(drafting, StateSource)
        else taught(drafting, classes, x)
    )
    values, gap = projected(p, q, x, Noise(seeds + _RANKS))
    judged = judged.reshape(*judged.shape, *(1,) * (values.dim() - 2)).expand_as(values)
    return values[judged & (gap > least)]


def taught(target: Any, prompt: Any, values: Tensor) -> Any:
    """Return the distributions [B, S] of each of `values` [B, S, *value] given those before it, in one forward without drafting."""
    session, pending = target.begin(prompt)
    length = values.shape[1] - 1
    left = torch.full((len(values),), length + 1, device=values.device)
    return session.score(pending.extend_chain(values[:, :-1], Budget(left, length).draft_tokens)).p


def state_taught(target: Any, draft: StateSource, prompt: Any, values: Tensor, p: Any) -> Any:
    """Return the distributions of a state draft that drafts one token behind committed ones.

    Deeper draft tokens were drawn from other distributions, of the draft's own states. The direction from `p` to these is a function of the
    past for them, too.

    Args:
        target: the target.
        draft: the state draft.
        prompt: the target's prompt.
        values: [B, S, *value].
        p: the target's distributions [B, S]; the first token is never drafted, and keeps the target's.

    Returns:
        Distributions [B, S].
    """
    session, pending = target.begin(prompt)
    inner = getattr(session, "doubled", session)
    guide, length = draft.guide(inner), values.shape[1] - 1
    left = torch.full((len(values),), length + 1, device=values.device)
    hidden = session.score(pending.extend_chain(values[:, :-1], Budget(left, length).draft_tokens)).hidden
    before = values[:, :-1].repeat(len(hidden) // len(values), *(1,) * (values.dim() - 1))
    return p.at(torch.zeros_like(left)[:, None]).cat(guide.taught(before, hidden[:, :length]))


def projected(p: Any, q: Any, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Project `x` [B, S, *value] and measure how far `q` is from `p`.

    Args:
        p: distributions of the target.
        q: distributions of the drafter; `p` itself for speculation inside a chain.
        x: committed values [B, S, *value].
        noise: noise for the ranks of distributions that are not Gaussian.

    Returns:
        Numbers that are standard normal if `x` was drawn from `p`, and the distance of `q` from `p`: both [B, S], or [B, S, T] for paths.
        The distance of distributions that are not Gaussian is the spread of log q/p.
    """
    if isinstance(p, DenoisingPath) and q is p:
        return _along(p.steps(x), held_steps(p, x), x[..., 1:, :])
    if isinstance(p, DenoisingPath):
        return _along(p.steps(x), q.steps(x), x[..., 1:, :])
    if isinstance(p, Gaussian):
        return _along(p, q, x)
    return _ranked(p, q, x, noise)


def held_steps(p: DenoisingPath, x: Tensor) -> Gaussian:
    """Return the steps of chains whose prediction of the clean token is held for one step.

    Args:
        p: distributions of paths [B, S].
        x: paths [B, S, T + 1, d].

    Returns:
        Gaussians [B, S, T]; those of the first steps are the head's own.
    """
    schedule, steps, states = p.denoiser.noise_schedule, p.steps(x), x[..., :-1, :]
    a, b, c, e = (table[:, None] for table in StepTables(schedule).coefficients)
    out = (steps.mean - schedule.keep[:, None] * states) / schedule.gain[:, None]
    predicted = c * states + e * out
    held = torch.cat([predicted[..., :1, :], predicted[..., :-1, :]], -2)
    return Gaussian((a * states + b * held).to(steps.mean.dtype), steps.scale)


def _along(p: Gaussian, q: Gaussian, x: Tensor) -> tuple[Tensor, Tensor]:
    away = (q.mean - p.mean).double() / p.scale.double()
    gap = torch.linalg.vector_norm(away, dim=-1)
    e = away / gap.clamp_min(torch.finfo(away.dtype).tiny)[..., None]
    return ((x - p.mean).double() / p.scale.double() * e).sum(-1), gap


def _ranked(p: Any, q: Any, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """Project by the rank of log q/p at `x` among fresh draws from `p`. Ties are broken at random."""
    rows, columns = (index.flatten() for index in torch.meshgrid(*(torch.arange(n, device=x.device) for n in x.shape[:2]), indexing="ij"))
    keys = noise.value(columns.unflatten(0, x.shape[:2])).branch(DRAWS + 1)
    mine, found, spread = -p.log_ratio(q, x), [], []
    for at in zip(rows.split(PIECE), columns.split(PIECE), strict=True):
        many = tuple(index[:, None].expand(-1, DRAWS) for index in at)
        own, drafted, streams = p.picked(*many), q.picked(*many), keys[at]  # [W, DRAWS], the streams one wider
        fresh, seen = -own.log_ratio(drafted, own.sample(streams[:, :-1])), mine[at][:, None]
        below, equal = (fresh < seen).sum(-1), (fresh == seen).sum(-1)
        found.append((below + streams[:, -1].uniform() * (equal + 1)) / (DRAWS + 1))
        spread.append(fresh.amax(-1) - fresh.amin(-1))
    return torch.special.ndtri(torch.cat(found)).view(x.shape[:2]), torch.cat(spread).view(x.shape[:2])


class Watch:
    """An `on_step` callback that records committed values, and for which of them a draft token was judged."""

    def __init__(self, rows: int):
        self._values: list[list[Any]] = [[] for _ in range(rows)]
        self._judged: list[list[bool]] = [[] for _ in range(rows)]

    def __call__(self, step: Step) -> None:
        """Record the values that a round committed.

        Args:
            step: the round.
        """
        for row, (values, judged) in enumerate(zip(step.committed.values, step.committed.judged, strict=True)):
            self._values[row] += values
            self._judged[row] += [place < judged for place in range(len(values))]

    def values(self) -> Tensor:
        """Return the committed values [B, S, *value]; all rows have the same length."""
        return torch.stack([torch.stack(row) for row in self._values])

    def judged(self) -> Tensor:
        """Return where a draft token was judged, bool [B, S]."""
        return torch.tensor(self._judged)
