"""Checks of a drafter: draft tokens are drawn from the recorded q, with noise independent of the accept rule's, and are finite.

They run the token rule, which reads q, and test the drafts themselves. A test of outputs needs far more samples: a drafter that is slightly
overconfident changes the distribution of the output only a little.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.check.findings import Finding
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Keys, Noise
from mmspec.core.records import PAD, Draft, Scored, Verdict
from mmspec.core.rules.token import Token

LEAST = 1e-5
"""p-values below this fail: of about ten tests in a check, one in ten thousand checks fails by chance."""
ENOUGH = 200
"""Draft tokens that a test needs."""


@dataclass(frozen=True)
class RecordedToken(Token):
    """The token rule, recording the draft tokens of the first round that drafts for each position."""

    distributions: list[Categorical] = field(default_factory=list)
    draft_tokens: list[Tensor] = field(default_factory=list)
    streams: dict[str, list[Tensor]] = field(default_factory=lambda: {"accept": [], "residual": [], "value": []})
    known: set[tuple[int, int]] = field(default_factory=set)
    broken: list[int] = field(default_factory=list)  # draft tokens whose q held NaN

    def __call__(self, draft: Draft, scored: Scored, noise: Noise) -> Verdict:
        if draft.q is not None and draft.size > draft.roots and isinstance(draft.q, Categorical):
            self._record(draft, noise)
        return super().__call__(draft, scored, noise)

    def _record(self, draft: Draft, noise: Noise) -> None:
        position = draft.position()[:, draft.roots - 1 : -1]
        real, seeds = draft.parents[:, draft.roots :] != PAD, noise.seeds.tolist()
        scores = draft.q.scores
        broken = (scores.isnan().any(-1) | (scores == torch.inf).any(-1)) & real
        self.broken.append(int(broken.sum()))
        fresh = []
        for (row, column), place in zip((real & ~broken).nonzero().tolist(), position[real & ~broken].tolist(), strict=True):
            if (seeds[row], place) not in self.known:
                self.known.add((seeds[row], place))
                fresh.append((row, column))
        if not fresh:
            return
        rows, columns = torch.tensor(fresh, device=scores.device).T
        self.distributions.append(Categorical(scores[rows, columns].float()))
        self.draft_tokens.append(draft.draft_tokens[rows, columns])
        roles = {"accept": noise.accept(position, draft.start), "residual": noise.residual(position, draft.start)}
        for role, keys in (roles | {"value": noise.value(position)}).items():
            self.streams[role].append(keys.words[rows, columns])


def check_drafter(pair: Any, prompts: Any, *, rows: int = 48, temperature: float = 0.8, seed: int = 5000) -> list[Finding]:
    """Run every check of a pair's drafter under the token rule.

    Args:
        pair: as in `mmspec.bench.check.verify.verify`.
        prompts: prompts of the plan.
        rows: copies of each prompt that are sampled at once.
        temperature: sampling temperature.
        seed: seed of the first row.

    Returns:
        Findings. Drafters that record no q, such as retrieval, are not tested for their draws.
    """
    record = RecordedToken()
    try:
        for index, prompt in enumerate(prompts):
            many = pair.inputs([prompt] * rows)
            settings: dict[str, Any] = {"draft_length": 4, "tree": None, "temperature": temperature, "accept": record}
            pair.generate(many, seed=seed + 100 * rows * index, max_new_tokens=min(24, pair.config.run.max_new_tokens), **settings)
    except (FloatingPointError, ValueError, RuntimeError) as error:
        line = f"sampling with the token rule stopped with {type(error).__name__}: {str(error).splitlines()[0]}"
        kind = "drafter nan" if sum(record.broken) or "NaN" in line or "finite" in line or "probability" in line else ""
        return [Finding("drafter: its distributions are finite", False, sum(record.broken), line, kind)]
    if sum(record.broken):
        detail = f"the q of {sum(record.broken)} draft tokens holds NaN or infinity"
        return [Finding("drafter: its distributions are finite", False, sum(record.broken), detail, "drafter nan")]
    count = sum(map(len, record.draft_tokens))
    if count < ENOUGH:
        why = "it records no distribution q" if count == 0 else f"only {count} draft tokens were drawn, {ENOUGH} are needed: more --limit"
        return [Finding("drafter: draws from its q", True, count, f"nothing to test: {why}")]
    finite = Finding("drafter: its distributions are finite", True, count, f"{count} draft tokens", "drafter nan")
    distribution, ids = Categorical(torch.cat([each.scores for each in record.distributions])), torch.cat(record.draft_tokens)
    return [finite, _drawn_from_q(distribution, ids), _independent(distribution, ids, record)]


def _drawn_from_q(distribution: Categorical, ids: Tensor) -> Finding:
    from mmspec.bench.check.drawn_from import judged, moments

    surprise, spread, ranks = (each[0] for each in moments(Categorical(distribution.scores[None]), ids[None], seed=0))
    found = judged("drafter: draws from its q", surprise, spread, ranks, len(ids), LEAST)
    return replace(found, kind="q")


def _independent(distribution: Categorical, ids: Tensor, record: RecordedToken) -> Finding:
    """Return numbers of the streams that judge a draft token, at that token; uniform unless the drafter used the same streams."""
    probabilities = distribution.probs().double()
    generator = torch.Generator().manual_seed(1)
    inside = torch.rand(len(ids), generator=generator, dtype=torch.float64).to(ids.device)
    own = probabilities.gather(-1, ids[:, None])[:, 0]
    rank = probabilities.cumsum(-1).gather(-1, ids[:, None])[:, 0] - own * inside  # uniform in [0, 1] if drawn from q
    found = {}
    for role, words in record.streams.items():
        keys = Keys(torch.cat(words))
        first = keys.uniform()
        gumbel = keys.gumbel_at(ids[:, None])[:, 0]
        found[f"{role}, by the Gumbel maximum"] = torch.exp(-torch.exp(-gumbel))
        found[f"{role}, by inversion"] = torch.remainder(rank - first, 1.0)
        found[f"{role}, by inversion from above"] = torch.remainder(rank + first, 1.0)
    values = {name: _uniform(each) for name, each in found.items()}
    name, worst = min(values.items(), key=lambda each: each[1])
    detail = f"{len(ids)} draft tokens against the numbers of acceptance, replacement and the target's draws: p = {worst:.2g}"
    passed = worst > LEAST
    detail += f"; below {LEAST:g} fails" if passed else f" ({name}): they are not independent"
    return Finding("drafter: its draws are independent of what judges it", passed, len(ids), detail, "noise")


def _uniform(values: Tensor, bins: int = 20) -> float:
    """Return the p-value of a chi-square test of `values` [M] against the uniform distribution on [0, 1]."""
    counts = torch.histc(values.double().cpu(), bins, 0, 1)
    expected = len(values) / bins
    chi = ((counts - expected).square() / expected).sum()
    return torch.special.gammaincc(torch.tensor((bins - 1) / 2, dtype=torch.float64), chi / 2).item()
