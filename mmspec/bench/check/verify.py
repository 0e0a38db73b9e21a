"""The losslessness self-test: target and drafter together must give the output of the target alone.

In float32, token-exact rules must give the same tokens as plain decoding; where two logits are closer than rounding, either token may win,
and the finding states the margin. In lower precision near ties are frequent, so every token must be the most likely one within a margin
instead. Distribution-exact rules are tested against the target's distribution by two tests on drawn tokens.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.check.drafters import check_drafter
from mmspec.bench.check.drawn_from import judged, moments
from mmspec.bench.check.findings import LEFT_OUT, Finding, with_causes
from mmspec.bench.check.models import check_model
from mmspec.bench.compare.peers import run_transformers
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.records import Budget
from mmspec.core.rules.base import DISTRIBUTION_EXACT, GROUP_EXACT, LOSSY, TOKEN_EXACT
from mmspec.core.stats import Stats
from mmspec.loading.text import Pair
from mmspec.models.families.registry import family_of, positions_of
from mmspec.models.proof.require import prove
from mmspec.models.target import HFTarget
from mmspec.run.rules import distributions_for, rule_of
from mmspec.run.settings.generation_config import settings
from mmspec.run.settings.processors import end_ids

MARGINS = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.5}
"""Largest difference from the best logit that rounding alone may explain."""
TEMPERATURE = 0.8  # of sampled checks, where the pair's own is 0


@dataclass(frozen=True)
class Plan:
    """Settings of the checks: prompts, seeds of sampled checks, and the margin of near ties (None: by dtype)."""

    prompts: Sequence[Any]  # texts, or `mmspec.text.inputs.vision_inputs.VisionPrompt`: texts about pictures
    seeds: Sequence[int] = (0, 1, 2)
    margin: float | None = None
    logits: bool = True  # check the target's logits
    more: bool = True  # check trees, random draft lengths and the drafter
    budget: float | None = None  # seconds after which no further check begins, but for the first two; None for no limit
    done: Callable[..., Any] = lambda *args: None  # called with 0 and what begins, and with 1 after it
    clock: Callable[[], float] = time.monotonic


ALWAYS = 2
"""Checks that run whatever the budget: the target's logits, and greedy decoding against transformers."""

Known = dict[tuple[int, float, int, bool], list[int]]
"""Outputs of single prompts that several checks use, by prompt number, temperature, seed, and whether without the drafter."""

TREES: tuple[Any, ...] = ((3, 2, 1), "comb", "expand")
"""Trees that a drafter which can grow them is checked with: static, siblings on a chain, a search."""


def step_count(pair: Pair, plan: Plan) -> int:
    """Return the number of steps of the progress bar."""
    return len(_steps(pair, plan, Stats()))


def verify(pair: Pair, plan: Plan) -> tuple[list[Finding], Stats]:
    """Check that drafting does not change the output, and that target and drafter meet the conditions of exactness.

    The checks:

    - logits: two identical forwards agree; sessions with drafts, rollbacks, unequal prompts, attention windows and trees give the logits of
      plain forwards of each row alone (`mmspec.bench.check.models`);
    - tokens: greedy output equals that of transformers' `generate`, for the pair's own draft length and tree, random draft lengths and
      every kind of tree its drafter supports; coupled sampling equals plain sampling with the same seed; a batch equals its rows alone;
    - drafter: its distributions are finite, its draft tokens are drawn from them, and independently of the accept rule's noise
      (`mmspec.bench.check.drafters`);
    - rule: a distribution-exact rule's tokens are draws from the target's distribution.

    Args:
        pair: target, drafter and rule, from `mmspec.loading.text.load_pair` or `mmspec.bench.check.custom.pair_of_models`.
        plan: prompts, seeds of sampled checks, margin of near ties, and a budget.

    Returns:
        The findings, failed ones with their likely cause (`mmspec.bench.check.findings.likely_cause` gives one for all), and statistics of
        the greedy check. Where the plan's budget is spent, a last finding named `LEFT_OUT` lists the checks that did not run.
    """
    stats = Stats(exactness=TOKEN_EXACT)
    findings: list[Finding] = []
    left, begun = [], plan.clock()
    for number, (name, step) in enumerate(_steps(pair, plan, stats)):
        if number >= ALWAYS and plan.budget is not None and plan.clock() - begun > plan.budget:
            left.append(name)
            continue
        plan.done(0, name)
        findings += _run(pair, step, bool(findings) and not all(finding.passed for finding in findings))
        plan.done(1)
    findings = with_causes(findings)
    if left:
        findings.append(Finding(LEFT_OUT, True, 0, f"the budget of {plan.budget:g} seconds was spent before: {'; '.join(left)}"))
    return findings, stats


def _steps(pair: Pair, plan: Plan, stats: Stats) -> list[tuple[str, Callable[[], Any]]]:
    """Return the checks that apply to a pair, with their names; none has run yet."""
    first = plan.seeds[0]
    known: Known = {}
    found: list[tuple[str, Callable[[], Any]]] = []
    if plan.logits:
        found.append(("logits", lambda: check_model(pair.target, first)))
    found.append(("greedy", lambda: _greedy(pair, plan, stats, known)))
    found += [(f"coupled, seed {seed}", partial(_coupled, pair, plan, seed, known)) for seed in plan.seeds]
    found += [(f"{kind} in a batch", partial(_batch, pair, plan, seed, known)) for kind, seed in (("greedy", None), ("coupled", first))]
    if plan.more and pair.drafter is not None:
        found += [(f"tree {_named(tree)}", partial(_tree, pair, plan, tree, known)) for tree in TREES if _grows(pair, tree)]
        found.append(("random draft lengths", lambda: _lengths(pair, plan, known)))
        found += [("the drafter's draws", lambda: check_drafter(pair, plan.prompts[:2]))]
    if pair.exactness in (DISTRIBUTION_EXACT, GROUP_EXACT, LOSSY):
        found.append(("the rule", lambda: _rule(pair, plan)))
    return found


def _run(pair: Pair, step: Callable[[], Any], failed: bool) -> list[Finding]:
    """Run a check. It fails if it stops at NaN, at the target's failed self-test, or after an earlier check in `failed`."""
    try:
        found = step()
    except (FloatingPointError, ValueError) as error:
        line = str(error).splitlines()[0]
        if isinstance(error, ValueError) and "NaN" not in line and not failed and prove(pair.target).exact:
            raise  # bad input
        kind = "tokens" if "NaN" not in line else "drafter nan" if "drafter" in line else "nan"
        return [Finding("generation runs", False, 0, line, kind)]
    return found if isinstance(found, list) else [found]


def _grows(pair: Pair, tree: Any) -> bool:
    """Return True if the pair's drafter supports this tree and the target can score it."""
    drafter = pair.drafter
    can = hasattr(drafter, "guide") or (hasattr(drafter, "generate") and not hasattr(drafter, "begin"))
    return can and pair.config.drafter.tree is None and prove(pair.target).trees


# --- tokens -----------------------------------------------------------------------------------------------------------


def _greedy(pair: Pair, plan: Plan, stats: Stats, known: Known) -> Finding:
    """Compare with transformers' own `generate`."""
    greedy = _set(pair, 0.0, "exact")
    own = [_rows(greedy.generate(greedy.inputs([prompt]), on_step=stats.add))[0] for prompt in plan.prompts]
    known |= {(number, 0.0, 0, False): ids for number, ids in enumerate(own)}
    plain = [run_transformers(greedy, greedy.inputs([prompt]), 0, {}).tokens[0] for prompt in plan.prompts]
    if pair.hears:  # Whisper's generate leaves the end token out
        ends = set(end_ids(pair.target.generation_config))
        own, plain = ([ids[:-1] if ids and ids[-1] in ends else ids for ids in rows] for rows in (own, plain))
    return _compared("greedy: as transformers generate", greedy, plan, own, plain)


def _tree(pair: Pair, plan: Plan, tree: Any, known: Known) -> Finding:
    """Compare greedy decoding with a tree to plain decoding."""
    name = f"greedy, tree {_named(tree)}: as plain decoding"
    return _against_plain(pair, plan, name, "tree tokens", known, tree=tree, draft_length=_length(pair))


def _named(tree: Any) -> str:
    return tree if isinstance(tree, str) else ",".join(map(str, tree))


def _lengths(pair: Pair, plan: Plan, known: Known) -> Finding:
    """Compare greedy decoding with draft lengths 1 to 9, one for each prompt, to plain decoding."""
    lengths = torch.randint(1, 10, (len(plan.prompts),), generator=torch.Generator().manual_seed(plan.seeds[0])).tolist()
    name = f"greedy, draft lengths {', '.join(map(str, lengths))}: as plain decoding"
    return _against_plain(pair, plan, name, "window tokens", known, lengths)


def _length(pair: Pair) -> Any:
    length = pair.config.drafter.length
    return length if isinstance(length, int) and length > 0 else 4


def _against_plain(pair: Pair, plan: Plan, name: str, kind: str, known: Known, lengths: Any = None, **changes: Any) -> Finding:
    greedy = _set(pair, 0.0, "exact")
    own = []
    for number, prompt in enumerate(plan.prompts):
        more = changes if lengths is None else changes | {"draft_length": lengths[number]}
        own.append(_rows(greedy.generate(greedy.inputs([prompt]), **more))[0])
    plain = _alone(greedy, plan, [0] * len(plan.prompts), known, plain=True)
    return replace(_compared(name, greedy, plan, own, plain), kind=kind)


def _coupled(pair: Pair, plan: Plan, seed: int, known: Known) -> Finding:
    """Compare sampling with the drafter to plain sampling with the same seed."""
    coupled, seeds = _sampled(pair), [seed + n for n in range(len(plan.prompts))]
    own, plain = (_alone(coupled, plan, seeds, known, plain=plain) for plain in (False, True))
    return _compared(f"coupled, seed {seed}: as plain sampling", coupled, plan, own, plain, seeds)


def _batch(pair: Pair, plan: Plan, seed: int | None, known: Known) -> Finding:
    """Compare all prompts in one batch to each alone; sampled if `seed` is given."""
    chosen = _set(pair, 0.0, "exact") if seed is None else _sampled(pair)
    seeds = [0 if seed is None else seed + n for n in range(len(plan.prompts))]
    together = _rows(chosen.generate(chosen.inputs(list(plan.prompts)), seed=seeds))
    name = f"{'greedy' if seed is None else 'coupled'}, a batch of {len(together)}: as alone"
    alone = _alone(chosen, plan, seeds, known, plain=False)
    return replace(_compared(name, chosen, plan, together, alone, None if seed is None else seeds), kind="batch tokens")


def _alone(pair: Pair, plan: Plan, seeds: Sequence[int], known: Known, *, plain: bool) -> list[list[int]]:
    """Return the output of every prompt by itself, without the drafter if `plain`; generated unless already in `known`."""
    changes: dict[str, Any] = {"drafter": None, "tree": None} if plain else {}
    keys = [(number, pair.config.run.temperature, seed, plain) for number, seed in enumerate(seeds)]
    for key, prompt, seed in zip(keys, plan.prompts, seeds, strict=True):
        if key not in known:
            known[key] = _rows(pair.generate(pair.inputs([prompt]), seed=seed, **changes))[0]
    return [known[key] for key in keys]


def _compared(
    name: str, pair: Pair, plan: Plan, own: list[list[int]], plain: list[list[int]], seeds: Sequence[int] | None = None
) -> Finding:
    """Compare outputs: equality in float32, with near ties reported; in lower precision every token must be the best within the margin."""
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
    return Finding(name, passed, len(own), "; ".join(notes), "tokens")


def _gap(scores: Tensor, ids: list[int], other: list[int], place: int) -> float:
    """Return the difference of the scores of two outputs' tokens at their first difference; infinite if one of them ended there."""
    if place >= min(len(ids), len(other)):
        return float("inf")
    return (scores[place, ids[place]] - scores[place, other[place]]).abs().item()


def _scores(pair: Pair, prompt: Any, ids: list[int], seed: int | None) -> Tensor:
    """Return scores [T, V] whose argmax is the token at each place of `ids`: logits, or with a seed log-probabilities plus noise."""
    scores = _teach(pair, prompt, [ids]).scores
    if seed is not None:
        places = torch.arange(len(ids), device=scores.device)[None]
        scores = scores + Noise.from_seed(seed, 1, scores.device).value(places).gumbel(scores.shape[-1])
    return scores[0]


def _first(ids: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids), len(other)))


@torch.no_grad()
def _teach(pair: Pair, prompt: Any, rows: list[list[int]]) -> Categorical:
    """Return the target's distributions [B, T] for `rows` of T tokens after one prompt, in one forward without drafting."""
    run, model, inputs = pair.config.run, pair.target, pair.inputs([prompt] * len(rows))
    family = family_of(model)
    chosen = rule_of(pair.accept, run.temperature, run.top_k, run.top_p)
    first = settings(model, family, inputs, family.prompt(model, inputs), run.max_new_tokens, run.repetition_penalty)
    distributions = distributions_for(chosen, run.temperature, run.top_k, run.top_p, None, first)
    session, pending = HFTarget(model, family, distributions, limit=positions_of(model)).begin(inputs)
    nodes = torch.tensor(rows, device=model.device)[:, :-1]
    budget = Budget(torch.full((len(rows),), nodes.shape[1] + 1, device=model.device), nodes.shape[1])
    return session.score(pending.extend_chain(nodes, budget.draft_tokens)).p


# --- distributions -------------------------------------------------------------------------------------------------------------


def _rule(pair: Pair, plan: Plan, rows: int = 64) -> Finding:
    """Test a distribution-exact rule's tokens against the target's distribution. A lossy rule is reported with its drift."""
    run = pair.config.run
    name = f"{pair.config.accept.kind}: draws from the target's distribution"
    if pair.exactness in (GROUP_EXACT, LOSSY):
        stats = Stats()
        for prompt in plan.prompts:
            pair.generate(pair.inputs([prompt]), on_step=stats.add)
        return Finding(
            "the rule is lossless", False, len(plan.prompts), f"{pair.config.accept.kind} is lossy by design: drift {stats.drift or 0:.3g}"
        )
    if run.temperature == 0:
        return Finding(name, True, 0, "at temperature 0 the distribution is a point mass: give --temperature to test it")
    surprise, spread, ranks = [], [], []
    for index, prompt in enumerate(plan.prompts):
        settings = replace(pair, config=replace(pair.config, run=replace(run, max_new_tokens=min(run.max_new_tokens, 8))))
        out = settings.generate(pair.inputs([prompt] * rows), seed=1000 * (index + 1))
        distribution = _teach(settings, prompt, out.sequences.tolist())
        real = torch.arange(out.sequences.shape[1], device=out.lengths.device) < out.lengths[:, None]
        mean, variance, rank = moments(distribution, out.sequences, seed=index)
        surprise.append(mean[real])
        spread.append(variance[real])
        ranks.append(rank[real])
    return judged(name, torch.cat(surprise), torch.cat(spread), torch.cat(ranks), rows * len(plan.prompts))


def _set(pair: Pair, temperature: float, accept: str) -> Pair:
    """Return the pair with a token-exact rule at `temperature`."""
    run = replace(pair.config.run, temperature=temperature)
    return replace(pair, accept=accept, config=replace(pair.config, run=run))


def _sampled(pair: Pair) -> Pair:
    return _set(pair, pair.config.run.temperature or TEMPERATURE, "coupled")


def _rows(out: Any) -> list[list[int]]:
    return [ids[:length].tolist() for ids, length in zip(out.sequences, out.lengths, strict=True)]
