"""The losslessness self-test: is what a target and drafter write together what the target writes alone?

In float32 token-exact rules must give the very tokens of plain decoding; where two tokens' logits are closer than rounding, a
different one may win, which is told with the margin between them. In lower precision near ties are everywhere, so there every
token must be the likeliest within a margin instead. Law-exact rules are held to the target's law by two tests on drawn tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.peers import run_transformers
from mmspec.core.accept import GROUP_EXACT, LAW_EXACT, LOSSY, TOKEN_EXACT
from mmspec.core.families import family_of, positions_of
from mmspec.core.hf import HFTarget
from mmspec.core.laws import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Room
from mmspec.core.stats import Stats
from mmspec.options import laws_for, rule_of
from mmspec.text.pairs import Pair
from mmspec.text.processors import constraints

MARGINS = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.5}
"""How far below the likeliest token's logit a token may be and still be told apart by rounding alone."""
TEMPERATURE = 0.8  # of sampled checks, where the pair's own is 0


@dataclass(frozen=True)
class Finding:
    """One check's outcome, over `compared` outputs."""

    name: str
    passed: bool
    compared: int
    detail: str


@dataclass(frozen=True)
class Plan:
    """What is checked: prompts, seeds of sampled checks, and the margin of near ties (None: by dtype)."""

    prompts: Sequence[Any]  # texts, or `mmspec.text.sight.Seen`: texts about pictures
    seeds: Sequence[int] = (0, 1, 2)
    margin: float | None = None
    done: Callable[..., Any] = lambda *args: None


def work(pair: Pair, plan: Plan) -> int:
    """Steps of the progress bar."""
    return 3 + len(plan.seeds) + (pair.exactness in (LAW_EXACT, GROUP_EXACT, LOSSY))


def verify(pair: Pair, plan: Plan) -> tuple[list[Finding], Stats]:
    """Every check that applies to the pair's rule, and what drafting brought in them."""
    stats = Stats(exactness=TOKEN_EXACT)
    findings = [_greedy(pair, plan, stats)]
    plan.done()
    for seed in plan.seeds:
        findings.append(_coupled(pair, plan, seed))
        plan.done()
    for seed in (None, plan.seeds[0]):
        findings.append(_batch(pair, plan, seed))
        plan.done()
    if pair.exactness in (LAW_EXACT, GROUP_EXACT, LOSSY):
        findings.append(_rule(pair, plan))
        plan.done()
    return findings, stats


# --- tokens -----------------------------------------------------------------------------------------------------------


def _greedy(pair: Pair, plan: Plan, stats: Stats) -> Finding:
    """Against transformers' own generate."""
    greedy = _set(pair, 0.0, "exact")
    own = [_rows(greedy.generate(greedy.inputs([prompt]), on_step=stats.add))[0] for prompt in plan.prompts]
    plain = [run_transformers(greedy, greedy.inputs([prompt]), 0, {}).tokens[0] for prompt in plan.prompts]
    return _compared("greedy: as transformers generate", greedy, plan, own, plain)


def _coupled(pair: Pair, plan: Plan, seed: int) -> Finding:
    """Sampling with the drafter against plain sampling by the same seed."""
    coupled, seeds = _sampled(pair), [seed + n for n in range(len(plan.prompts))]
    own, plain = (_alone(coupled, plan, seeds, plain=plain) for plain in (False, True))
    return _compared(f"coupled, seed {seed}: as plain sampling", coupled, plan, own, plain, seeds)


def _batch(pair: Pair, plan: Plan, seed: int | None) -> Finding:
    """All prompts together against each alone; sampled where there is a seed."""
    chosen = _set(pair, 0.0, "exact") if seed is None else _sampled(pair)
    seeds = [(seed or 0) + n for n in range(len(plan.prompts))]
    together = _rows(chosen.generate(chosen.inputs(list(plan.prompts)), seed=seeds))
    name = f"{'greedy' if seed is None else 'coupled'}, a batch of {len(together)}: as alone"
    return _compared(name, chosen, plan, together, _alone(chosen, plan, seeds, plain=False), None if seed is None else seeds)


def _alone(pair: Pair, plan: Plan, seeds: Sequence[int], *, plain: bool) -> list[list[int]]:
    """Every prompt by itself, without the drafter if `plain`."""
    changes: dict[str, Any] = {"drafter": None, "tree": None} if plain else {}
    return [_rows(pair.generate(pair.inputs([prompt]), seed=seed, **changes))[0] for prompt, seed in zip(plan.prompts, seeds, strict=True)]


def _compared(
    name: str, pair: Pair, plan: Plan, own: list[list[int]], plain: list[list[int]], seeds: Sequence[int] | None = None
) -> Finding:
    """Equal in float32, near ties explained; in lower precision every token the best within the margin. `seeds` of sampled outputs."""
    margin = MARGINS.get(pair.target.dtype, 0.5) if plan.margin is None else plan.margin
    exact = pair.target.dtype is torch.float32
    same = sum(a == b for a, b in zip(own, plain, strict=True))
    notes, passed, worst = [f"{same} of {len(own)} identical"], True, 0.0
    for number, (ids, other) in enumerate(zip(own, plain, strict=True)):
        if ids == other and exact:
            continue
        scores = _scores(pair, plan.prompts[number], ids, None if seeds is None else seeds[number])
        worst = max(worst, (scores.amax(-1) - scores.gather(-1, torch.tensor(ids, device=scores.device)[:, None])[:, 0]).max().item())
        if ids != other:
            place = _first(ids, other)
            gap = _gap(scores, ids, other, place)
            passed &= not exact or gap <= margin
            kind = "a near tie" if gap <= margin else "not a tie"
            notes.append(f"prompt {number} differs at token {place}, where the two scores are {gap:.2g} apart: {kind}")
    if not exact:
        passed = worst <= margin
        notes.append(f"every token within {worst:.2g} of the best score (allowed: {margin:g})")
    return Finding(name, passed, len(own), "; ".join(notes))


def _gap(scores: Tensor, ids: list[int], other: list[int], place: int) -> float:
    """How far apart the scores of two outputs' tokens are where they part; infinite where one stopped and the other went on."""
    if place >= min(len(ids), len(other)):
        return float("inf")
    return (scores[place, ids[place]] - scores[place, other[place]]).abs().item()


def _scores(pair: Pair, prompt: Any, ids: list[int], seed: int | None) -> Tensor:
    """What the token at each place of `ids` is the argmax of, [T, V]: logits, or with a seed the law's scores and their noise."""
    scores = _teach(pair, prompt, [ids]).scores
    if seed is not None:
        places = torch.arange(len(ids), device=scores.device)[None]
        scores = scores + Noise.from_seed(seed, 1, scores.device).value(places).gumbel(scores.shape[-1])
    return scores[0]


def _first(ids: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids), len(other)))


@torch.no_grad()
def _teach(pair: Pair, prompt: Any, rows: list[list[int]]) -> Categorical:
    """The target's laws [B, T] for `rows` of T tokens behind one prompt: no drafting, no acceptance, one forward."""
    run, model, inputs = pair.config.run, pair.target, pair.inputs([prompt] * len(rows))
    unsaid = getattr(family_of(model), "unsaid", ())
    first = constraints(model.generation_config, inputs["input_ids"].shape[1], run.max_new_tokens, unsaid)
    chosen = rule_of(pair.accept, run.temperature, run.top_k, run.top_p)
    laws = laws_for(chosen, run.temperature, run.top_k, run.top_p, run.repetition_penalty, first)
    session, frontier = HFTarget(model, family_of(model), laws, limit=positions_of(model)).begin(inputs)
    nodes = torch.tensor(rows, device=model.device)[:, :-1]
    room = Room(torch.full((len(rows),), nodes.shape[1] + 1, device=model.device), nodes.shape[1])
    return session.score(frontier.extend_chain(nodes, room.guesses)).p


# --- laws -------------------------------------------------------------------------------------------------------------


def _rule(pair: Pair, plan: Plan, rows: int = 64) -> Finding:
    """A law-exact rule's own tokens, held to the target's law; a lossy rule cannot pass and is told by its drift."""
    run = pair.config.run
    name = f"{pair.config.accept.kind}: draws from the target's law"
    if pair.exactness in (GROUP_EXACT, LOSSY):
        stats = Stats()
        for prompt in plan.prompts:
            pair.generate(pair.inputs([prompt]), on_step=stats.add)
        return Finding(
            "the rule is lossless", False, len(plan.prompts), f"{pair.config.accept.kind} is lossy by design: drift {stats.drift or 0:.3g}"
        )
    if run.temperature == 0:
        return Finding(name, True, 0, "at temperature 0 this law is a point: give --temperature to judge it")
    surprise, spread, ranks = [], [], []
    for index, prompt in enumerate(plan.prompts):
        settings = replace(pair, config=replace(pair.config, run=replace(run, max_new_tokens=min(run.max_new_tokens, 8))))
        out = settings.generate(pair.inputs([prompt] * rows), seed=1000 * (index + 1))
        law = _teach(settings, prompt, out.sequences.tolist())
        real = torch.arange(out.sequences.shape[1], device=out.lengths.device) < out.lengths[:, None]
        mean, variance, rank = _moments(law, out.sequences, seed=index)
        surprise.append(mean[real])
        spread.append(variance[real])
        ranks.append(rank[real])
    return _judged(name, torch.cat(surprise), torch.cat(spread), torch.cat(ranks), rows * len(plan.prompts))


def _moments(law: Categorical, ids: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per token [B, T]: log p minus its mean, that law's variance of log p, and the token's randomised rank in [0, 1]."""
    log_p = law.log_probs().double()
    p = log_p.exp()
    safe = torch.where(p > 0, log_p, 0)
    mean = (p * safe).sum(-1)
    variance = (p * safe.square()).sum(-1) - mean.square()
    own = log_p.gather(-1, ids[..., None])
    above, equal = (p * (log_p > own)).sum(-1), (p * (log_p == own)).sum(-1)
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(ids.shape, generator=generator, dtype=torch.float64).to(p.device)
    return own[..., 0] - mean, variance, above + uniform * equal


def _judged(name: str, surprise: Tensor, variance: Tensor, ranks: Tensor, rows: int) -> Finding:
    """Under the law the surprises sum to about 0 and the ranks are uniform: a z-test and a chi-square of 20 bins."""
    z = (surprise.sum() / variance.sum().clamp_min(1e-12).sqrt()).abs().item()
    bins = torch.histc(ranks, 20, 0, 1)
    expected = len(ranks) / 20
    chi = ((bins - expected).square() / expected).sum()
    p_z = torch.erfc(torch.tensor(z / 2**0.5, dtype=torch.float64)).item()
    p_chi = torch.special.gammaincc(torch.tensor(9.5, dtype=torch.float64), chi.double().cpu() / 2).item()
    passed = min(p_z, p_chi) > 1e-4
    return Finding(name, passed, rows, f"{len(ranks)} tokens: p = {p_z:.2g} (likelihood), {p_chi:.2g} (ranks); below 0.0001 fails")


def _set(pair: Pair, temperature: float, accept: str) -> Pair:
    """The pair with a token-exact rule at `temperature`."""
    run = replace(pair.config.run, temperature=temperature)
    return replace(pair, accept=accept, config=replace(pair.config, run=run))


def _sampled(pair: Pair) -> Pair:
    return _set(pair, pair.config.run.temperature or TEMPERATURE, "coupled")


def _rows(out: Any) -> list[list[int]]:
    return [ids[:length].tolist() for ids, length in zip(out.sequences, out.lengths, strict=True)]
