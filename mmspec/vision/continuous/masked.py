"""Pictures by a masked model: plain decoding, with fewer iterations or steps, speculation inside the chains, or the published procedure.

These methods do not run in the engine's loop: a masked model has no order for a chain of draft tokens and no cache, and the published
procedure judges no prefix. Fewer iterations, fewer steps of the head, and steps that decrease along the iterations (DiSA) need no draft;
they are the baselines of drafting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.result import Generation
from mmspec.core.rules.base import DISTRIBUTION_EXACT, TOKEN_EXACT, UNMETERED
from mmspec.core.stats import Stats
from mmspec.vision.continuous.cspd_compat import INNER_TEMPERATURE, CSpDCompat, require_masked_drafter
from mmspec.vision.continuous.latents import ChainDrafts
from mmspec.vision.continuous.mar import MaskedAR
from mmspec.vision.continuous.masked_sets import Canvas, SetPlan, SetWriter

MASKED_METHODS = ("plain", "chain", "cspd-compat")


@dataclass
class MaskedStats(Stats):
    """Counts of a masked model's pictures. Draft tokens are judged independently, so they have no depth.

    Attributes:
        head_calls: sequential calls of the target's head.
        head_states: states that these calls held.
        draft_calls: iterations of the drafter.
    """

    head_calls: int = 0
    head_states: int = 0
    draft_calls: int = 0


@dataclass(frozen=True)
class MaskedPictures(Generation):
    """Tokens [B, N, d] in raster order, and statistics."""

    stats: MaskedStats


@torch.no_grad()
def generate_masked(
    model: MaskedAR,
    classes: Sequence[int] | Tensor,
    *,
    method: str = "plain",
    iterations: int | None = None,
    head_steps: int | None = None,
    annealed: int | None = None,
    sigma_out: float | None = None,
    temperature: float = 1.0,
    guidance: float | None = None,
    ramp: str = "constant",
    drafter: MaskedAR | None = None,
    gamma: int = 4,
    inner_temperature: float = INNER_TEMPERATURE,
    prefill: float = 0.05,
    draft_steps: int | str | None = None,
    noise: Noise,
) -> MaskedPictures:
    """Generate one picture for each of `classes`.

    Args:
        model: the target.
        classes: LongTensor [B], class numbers; `model.config.classes` for no class.
        method: "plain"; "chain", in which every cell's chain is sampled by speculation inside it (`core.chains`); or "cspd-compat", which
            needs a `drafter` and is lossy (see `cspd_compat`).
        iterations: iterations of a picture, 1 to its cells; by default the model's own number. Plain decoding with iterations / gamma
            is the baseline of a draft with `gamma` sets a round.
        head_steps: steps of the head's chains; by default the model's own.
        annealed: steps of the last iteration's chains, for steps that decrease along the iterations (DiSA). For plain decoding.
        sigma_out: noise on every token, a part of the distribution; by default the model's own.
        temperature: factor on the noise of the chains' steps.
        guidance: scale of classifier-free guidance.
        ramp: "constant", or "linear" for a scale that grows from 1 with the committed cells.
        drafter: a smaller masked model on the same tokens.
        gamma, inner_temperature, prefill: of cspd-compat; see `CSpDCompat`.
        draft_steps: of chain: states drafted beside the current one, "auto", or None for a number that depends on the steps only.
        noise: one seed a picture. A picture depends on its own seed only, not on its batch.

    Returns:
        Tokens [B, N, d] in raster order. With at least the model's own iterations and steps, `stats.exactness` is "token-exact" for plain
        decoding and "distribution-exact" for chain; everything else is lossy.

    Raises:
        ValueError: for an invalid argument; the message says what to give instead.
        FloatingPointError: when a token is not finite.
    """
    config = model.config
    labels = _classes(classes, config.classes, noise)
    plan = SetPlan.of(
        config,
        iterations=config.iterations if iterations is None else iterations,
        head_steps=config.head_steps if head_steps is None else head_steps,
        annealed=annealed,
        sigma_out=config.sigma_out if sigma_out is None else sigma_out,
        temperature=temperature,
        guidance=guidance,
        ramp=ramp,
    )
    if draft_steps is not None and method != "chain":
        raise ValueError(f"draft_steps is {draft_steps!r}, but method {method!r} runs its head once a step: leave it out, or take chain")
    canvas, target = Canvas(config, noise), SetWriter(model, labels, plan, ChainDrafts(draft_steps) if method == "chain" else None)
    if method in ("plain", "chain"):
        whole = plan.iterations >= config.iterations and all(
            noise_schedule.steps >= config.head_steps for noise_schedule in plan.noise_schedules
        )
        exact = TOKEN_EXACT if method == "plain" else DISTRIBUTION_EXACT
        stats = MaskedStats(exactness=exact if whole else UNMETERED)
        began = perf_counter()
        _plainly(target, canvas, 0, plan.iterations, noise)
        spent = {"score": perf_counter() - began}
    elif method == "cspd-compat":
        small = require_masked_drafter(model, drafter)
        if annealed is not None:
            raise ValueError(f"annealed is {annealed}, but cspd-compat shares the noise of every step between sets: leave it out")
        plan.noise_schedules[0].check_token("cspd-compat")
        way = CSpDCompat(gamma, inner_temperature, prefill)
        stats = MaskedStats(exactness=UNMETERED)
        spent = _drafted(way, target, SetWriter(small, labels, plan), canvas, noise, stats)
    else:
        raise ValueError(f"unknown method {method!r} for masked models; valid: {', '.join(MASKED_METHODS)}")
    if not bool(canvas.tokens.isfinite().all()):
        raise FloatingPointError("a token is not finite: check the model's weights, and its precision")
    rows, cells = canvas.hidden.shape
    stats.tokens, stats.target_calls, stats.row_calls = rows * cells, target.calls, rows * target.calls
    stats.head_calls, stats.head_states = target.head_calls, target.head_states
    stats.histogram = _histogram(stats.histogram, rows * target.calls)
    stats.seconds |= spent | {"total": sum(spent.values())}
    return MaskedPictures(canvas.tokens, torch.full((rows,), cells, device=labels.device), stats)


def _plainly(target: SetWriter, canvas: Canvas, begin: int, end: int, noise: Noise) -> None:
    """Run iterations `begin` to `end` by the target."""
    first = sum(target.plan.sizes[:begin])
    for k in range(begin, end):
        target.write(canvas, first, k, noise)
        first += target.plan.sizes[k]


def _drafted(way: CSpDCompat, target: SetWriter, drafter: SetWriter, canvas: Canvas, noise: Noise, stats: MaskedStats) -> dict[str, float]:
    """Run the published procedure, add its counts to `stats`, and return its seconds by phase."""
    sizes, kept = target.plan.sizes, []
    spent: dict[str, float] = dict.fromkeys(("prefill", "draft", "score"), 0.0)
    began = perf_counter()
    _plainly(target, canvas, 0, way.first(len(sizes)), noise)
    spent["prefill"] = perf_counter() - began
    for iterations in way.rounds(len(sizes)):
        began = perf_counter()
        cells, draft_tokens = way.draft(drafter, canvas, sum(sizes[: iterations.start]), iterations, noise)
        spent["draft"] += perf_counter() - began
        began = perf_counter()
        judged = way.judge(target, drafter, canvas, cells, draft_tokens, iterations[-1], noise)
        canvas.put(judged.cells, judged.tokens)
        spent["score"] += perf_counter() - began
        kept.append(judged.kept)
    stats.draft_calls, stats.drafted = drafter.calls, sum(each.numel() for each in kept)
    stats.histogram = torch.bincount(torch.cat([each.sum(1) for each in kept])).tolist() if kept else []
    stats.accepted, stats.judged = sum(n * calls for n, calls in enumerate(stats.histogram)), stats.drafted
    stats.rejected = stats.judged - stats.accepted
    return spent


def _histogram(drafted: list[int], calls: int) -> list[int]:
    """Return [n] = calls of one picture that accepted n draft tokens, those without a draft included."""
    rest = calls - sum(drafted)
    return [rest + drafted[0], *drafted[1:]] if drafted else [rest]


def _classes(classes: Sequence[int] | Tensor, none: int, noise: Noise) -> Tensor:
    """Return `classes` [B] as a tensor. ValueError for unknown classes, and for another number of classes than seeds."""
    labels = torch.as_tensor(classes, dtype=torch.long, device=noise.seeds.device)
    if labels.dim() != 1 or len(labels) != len(noise.seeds):
        raise ValueError(f"classes has {list(labels.shape)} entries for {len(noise.seeds)} seeds: give one class and one seed a picture")
    for one in labels.tolist():
        if not 0 <= one <= none:
            raise ValueError(f"class {one} is none of the model's: give 0 to {none - 1}, or {none} for no class")
    return labels
