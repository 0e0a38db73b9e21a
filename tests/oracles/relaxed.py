"""What every relaxed rule must obey, written down without the engine: the identity, a node of a tree, a path of draft tokens."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import CONTEXT, PAD, Draft, Scored, Verdict

TINY, SEEN = 1e-9, 1e-3
"""A rule's error where it holds, and the least a mutant's must be."""


def _dirichlet(sharp: float, size: int, generator: torch.Generator) -> Tensor:
    weights = torch._standard_gamma(torch.full((size,), sharp, dtype=torch.float64), generator) + 1e-6
    return weights / weights.sum()


def _only(distribution: Tensor, values: Tensor) -> Tensor:
    kept = torch.zeros_like(distribution).index_copy_(0, values, distribution[values])
    return kept / kept.sum()


def families(size: int, seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    """Pairs of distributions p, q [V] float64 of every kind that picture models make."""
    g = torch.Generator().manual_seed(seed)
    broad, other = _dirichlet(5.0, size, g), _dirichlet(5.0, size, g)
    peaked, sharp = _dirichlet(0.15, size, g), _dirichlet(0.15, size, g)
    uniform = torch.full((size,), 1 / size, dtype=torch.float64)
    order, half = torch.randperm(size, generator=g), size // 2
    point = torch.nn.functional.one_hot(order[:1], size)[0].double()
    return {
        "broad": (broad, other),
        "peaked": (peaked, sharp),
        "peaked p": (peaked, broad),
        "peaked q": (broad, sharp),
        "near": (broad, 0.9 * broad + 0.1 * other),
        "equal": (broad, broad),
        "top-k overlap": (_only(broad, order[: half + 1]), _only(other, order[half - 1 :])),
        "top-k disjoint": (_only(broad, order[:half]), _only(other, order[half:])),
        "point p": (point, broad),
        "point q": (broad, point),
        "two points": (point, point.roll(1)),
        "uniform q": (peaked, uniform),
        "uniform p": (uniform, broad),
    }


def many(size: int, seeds: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    for seed in range(seeds):
        yield from families(size, seed).values()


def spread(distribution: Tensor) -> Categorical:
    """One copy of `distribution` [V] for each value, [V, V]."""
    return Categorical.of(distribution.expand(len(distribution), len(distribution)))


def distance(one: Tensor, other: Tensor) -> float:
    return 0.5 * (one - other).abs().sum().item()


def identity_error(rule, p: Tensor, q: Tensor) -> float:
    """Largest violation of: a >= min(1, p/q); TV(output, p) = beta_a - beta_SD = E_q[excess]."""
    x = torch.arange(len(p))
    chance = rule.accept_prob(spread(p), spread(q), x)
    excess = rule.excess(spread(p), spread(q), x)
    drawn = q > 0
    if not chance[drawn].isfinite().all():
        return torch.inf
    short = ((p / q).clamp(max=1) - chance)[drawn].clamp(min=0).max().item()
    gain = (q * chance)[drawn].sum().item() - torch.minimum(p, q).sum().item()
    meter = (q * excess)[drawn].sum().item()
    spent = distance(rule.output_distribution(Categorical.of(p), Categorical.of(q)).probs(), p)
    return max(short, abs(spent - gain), abs(spent - meter))


def point_error(rule, p: Tensor) -> float:
    """The same for draft tokens that are point masses with no distribution on record: one for every value."""
    x, distributions = torch.arange(len(p)), spread(p)
    chance, excess = rule.accept_prob(distributions, None, x)[:, None], rule.excess(distributions, None, x)
    output = chance * torch.eye(len(p)) + (1 - chance) * rule.replacement(distributions, None, x).probs()
    spent = 0.5 * (output - p).abs().sum(-1)
    return max((p - chance[:, 0]).clamp(min=0).max().item(), (spent - excess).abs().max().item())


# --- nodes and paths, draft token by draft token ----------------------------------------------------------------------------------


def node(rule, p: Tensor, q: Tensor | None, picks: list[int] | int) -> tuple[Tensor, float]:
    """Distribution of the value committed at one node, and the mean drift. `picks`: values to try in turn, or how many to draw from q."""
    left = len(picks) if isinstance(picks, list) else picks
    if left == 0:
        return p, 0.0
    distribution, drift = torch.zeros_like(p), 0.0
    for x in [picks[0]] if isinstance(picks, list) else q.nonzero().flatten().tolist():
        own, distributions = torch.tensor(x), (Categorical.of(p), None if q is None else Categorical.of(q))
        weight = 1.0 if q is None else q[x].item()
        chance, excess = rule.accept_prob(*distributions, own).item(), rule.excess(*distributions, own).item()
        rest = p.clone() if q is None else (p - q).clamp(min=0)
        if q is None:
            rest[x] = 0
        rest = rest / rest.sum() if rest.sum() > 0 else p
        struck = None if q is None else q.clone().index_fill_(0, own, 0)
        struck = struck / struck.sum() if struck is not None and struck.sum() > 0 else None
        more = picks[1:] if isinstance(picks, list) else (left - 1 if struck is not None else 0)
        below, cost = node(rule, rest, struck, more) if chance < 1 else (rest, 0.0)
        distribution = distribution + weight * (1 - chance) * below
        distribution[x] += weight * chance
        drift += weight * (excess + (1 - chance) * cost)
    return distribution, drift


def path_drift(rule, target: Tensor, drafter: Tensor, size: int, length: int, code: int = 1, place: int = 0) -> float:
    """Mean drift of one round on a chain: the distance at each place, times the chance to get there. Tables [codes, V]."""
    if length == 0:
        return 0.0
    p, q, x = target[code], drafter[code], torch.arange(size)
    here = rule.at(torch.full((size,), place))
    chance = here.accept_prob(spread(p), spread(q), x)
    total = distance(here.output_distribution(Categorical.of(p), Categorical.of(q)).probs(), p)
    for value in range(size):
        below = path_drift(rule, target, drafter, size, length - 1, code * size + value, place + 1)
        total += (q[value] * chance[value]).item() * below if q[value] > 0 else 0.0
    return total


# --- windows: one round of made-up distributions -------------------------------------------------------------------------------


def window(size: int, draft_tokens: int, rows: int, kind: str = "drawn", seed: int = 0, dtype=torch.float32) -> tuple[Draft, Scored, Noise]:
    """A round on a chain: top-k distributions with impossible values; q is on record as `drawn`, is `uniform`, or is none (`point`)."""
    g = torch.Generator().manual_seed(seed)

    def distributions(columns: int) -> Categorical:
        scores = 2 * torch.randn(rows, columns, size, generator=g, dtype=dtype)
        floor = scores.topk(size // 2, -1).values[..., -1:]
        return Categorical(scores.masked_fill(scores < floor, -torch.inf))

    q = distributions(draft_tokens) if kind != "uniform" else Categorical(torch.zeros(rows, draft_tokens, size, dtype=dtype))
    own = Noise.from_seed(seed, rows)
    start = torch.arange(rows) % 3
    values = q.sample(own.draft_token(start[:, None] + torch.arange(draft_tokens), start))
    draft = Draft(torch.zeros(rows, 1, dtype=torch.long), torch.full((rows, 1), CONTEXT), start)
    budget = torch.arange(rows) % (draft_tokens + 1) + (torch.arange(rows) % 2) * draft_tokens  # some rows are cut
    draft = draft.extend_chain(values, budget, None if kind == "point" else q)
    return draft, Scored(distributions(draft_tokens + 1)), own


def same(one: Verdict, other: Verdict) -> bool:
    """Whether two verdicts agree bit for bit, meters of rejection included."""
    names = ("keep", "values", "count", "accepted", "judged", "expected")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names] + [(one.pending.nodes, other.pending.nodes)]
    return all(a is b is None or torch.equal(a, b) for a, b in pairs)


def finished(draft: Draft, row: int) -> Draft:
    """`draft` with one row that has nothing to do."""
    parents = draft.parents.clone()
    parents[row] = PAD
    return replace(draft, parents=parents)


# --- many rows of one draft token -------------------------------------------------------------------------------------------


def committed(rule, p: Tensor, q: Tensor, *, rows: int = 1_000_000, point: bool = False, most: int = 50_000) -> tuple[Tensor, float]:
    """The first value of `rows` independent rounds of one draft from `q` [V] judged by `p` [V], and the mean drift.

    With `point` no distribution is on record, and the draft token is q's most likely value.
    """
    values, drift = [], 0.0
    for first in range(0, rows, most):
        count = min(most, rows - first)
        noise, start = Noise.from_seed(first, count), torch.zeros(count, dtype=torch.long)
        distribution = Categorical(q.log().expand(count, 1, -1))
        x = distribution.mode() if point else distribution.sample(noise.draft_token(start[:, None], start))
        draft = Draft.root(start, start).extend_chain(x, torch.ones_like(start), None if point else distribution)
        verdict = rule(draft, Scored(Categorical(p.log().expand(count, 2, -1))), noise)
        values.append(verdict.values[:, 0])
        drift += 0.0 if verdict.drift is None else verdict.drift.sum().item()
    return torch.cat(values), drift / rows
