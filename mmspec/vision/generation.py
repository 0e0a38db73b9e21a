"""`mmspec.vision.generate`: an autoregressive image model, faster, drawing the same."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.core.control import Control, Fixed
from mmspec.core.decode import Generation
from mmspec.core.decode import generate as run
from mmspec.core.draft_length.hill_climb import LADDER, HillClimb, in_flight
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import pipeline
from mmspec.core.processors.raster import Grammar
from mmspec.core.records import Step
from mmspec.core.rules.base import GROUP_EXACT, LOSSY, Accept
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.couplers import Coupler
from mmspec.drafters.jacobi.initialisers import INITIALISERS, Initialiser
from mmspec.drafters.none import NoDraft
from mmspec.models.guidance import Guided, Pairs
from mmspec.models.target import HFTarget
from mmspec.vision.codes.methods import Method, method_of
from mmspec.vision.codes.rows import generate_rows
from mmspec.vision.continuous.generation import WINDOW as TOKENS
from mmspec.vision.continuous.generation import ContinuousPictures, continuous_model, generate_continuous
from mmspec.vision.continuous.latents import Sampling
from mmspec.vision.families import image_model
from mmspec.vision.families.base import ImageModel, Size

WINDOW = 32
"""Codes in flight a forward where no number is asked for."""


@dataclass(frozen=True)
class Pictures:
    """What was generated. `images` are decoded when they are first asked for."""

    model: ImageModel | ContinuousPictures = field(repr=False)
    sequences: Tensor = field(repr=False)  # [B, T] codes and controls, or vectors [B, T, d]
    runs: Tensor | None = field(
        repr=False
    )  # [B, height, width] what a cell's forward committed in all; None by rows, by sets and of vectors
    stats: Stats

    @property
    def tokens(self) -> Tensor:
        """The codes [B, height, width], or vectors [B, height, width, d]."""
        return self.model.picture(self.sequences)

    @cached_property
    def images(self) -> list[Image.Image]:
        """The pictures. ValueError where the model has no decoder."""
        return self.model.decode(self.tokens)


@torch.no_grad()
def generate(
    model: Any,
    prompts: Sequence[Any] | Mapping[str, Tensor],
    method: str | Method | None = None,
    window: int | str | Control | None = None,
    guidance: float | Sequence[float] | None = None,
    temperature: float | Sequence[float] = 1.0,
    top_k: int | Sequence[int] | None = None,
    seed: int | Sequence[int] = 0,
    *,
    size: Size | None = None,
    drafter: Any = None,
    accept: Accept | Callable[[ImageModel], Accept] | None = None,
    couple: Coupler | None = None,
    init: str | Initialiser | None = None,
    drift_budget: float | None = None,
    sampling: Sampling | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Pictures:
    """Generate one picture per prompt.

    Args:
        model: a transformers image model, a `mmspec.vision.LlamaGen`, or an adapter made by hand (`mmspec.vision.ImageModel`) where
            the model needs something beside it: a processor for texts, a decoder for its codes.
        prompts: a list of texts or classes, or the tensors the model's processor returned.
        method: a name of `mmspec.vision.METHODS`, or a `Method`; by default "jacobi". For models of continuous tokens a name of
            `mmspec.vision.CONTINUOUS_METHODS`; by default the head's own: "path" (diffusion), "density" (mixture) or "plain" (masked).
        window: tokens in flight a forward, the last committed one included, at least 1; by default 32, and 5 for continuous tokens, whose
            draft tokens a smaller model has to draw; "auto" for the number that maximises measured throughput. Rows (zipar, pjd) and
            trained
            trees have sizes of their own: the window only bounds a tree's depth.
        guidance: the scale of classifier-free guidance, one or one per picture; None or 1 for none.
        temperature: 0 for the most likely code; a number, or one per picture.
        top_k: keep this many codes; None or 0 keeps all. Applied, like guidance, to the target's and the drafter's distributions alike.
        seed: an int (picture r gets seed + r) or one per picture. A picture depends on its own seed only, not on its batch.
            With "jacobi" and "plain" it does not depend on the window either. With window="auto" other methods follow the clock.
        size: pixels a side, or (height, width), for models that can draw several sizes.
        drafter: the trained net of the methods that draft with one; by default the model's own, if it has one.
        accept, couple, init: take the place of the method's own rule, coupler and initialiser (a name: uniform, left, up, ...).
        drift_budget: total variation a lossy rule may spend on a picture; then it is exact for the rest of that picture.
        sampling: how the heads of continuous models are drawn from: steps, the noise `sigma_out` on every token, a diffusers scheduler.
        on_step: sees every round, for progress bars and previews.

    Returns:
        `images` list of PIL pictures, `tokens` LongTensor [B, height, width] (of continuous tokens floats [B, height, width, d]),
        `sequences` with controls, `runs`, and `stats`.

    Raises:
        ValueError: for anything the request gets wrong, in one line that says how to mend it.
        FloatingPointError: when the target's logits hold NaN or infinity, naming the picture and the position.
    """
    if not isinstance(prompts, Mapping) and len(prompts) == 0:
        raise ValueError("prompts is empty: give at least one")
    if (vectors := continuous_model(model)) is not None:
        given = {"top_k": top_k, "size": size, "couple": couple, "init": init, "drift_budget": drift_budget}
        return _continuous(vectors, prompts, method, window, guidance, temperature, seed, sampling, drafter, accept, on_step, given)
    if sampling is not None:
        raise ValueError("sampling is for models of continuous tokens, and this one writes codes: leave it out")
    found, method = image_model(model), default_method() if method is None else method
    found = found if size is None else found.resized(size)
    plan = method_of(method, accept=accept, couple=couple, init=_initialiser(init))
    guidance = _guidance(guidance)
    distributions = pipeline(temperature=temperature, top_k=top_k, first=[Grammar(found.raster)])
    prompt = found.encode(prompts, guided=guidance is not None)
    rows = len(prompt.mask) // (1 if guidance is None else 2)
    device = prompt.embeds.device
    noise = Noise.from_seed(seed, rows, device)
    watch = _Runs(found, rows)
    if plan.rows is not None:
        if drift_budget is not None:
            raise ValueError("drift_budget is for methods that judge draft tokens: rows side by side are measured afterwards, if at all")
        out = generate_rows(
            found, prompt, plan=plan.rows, processors=distributions, guidance=guidance, noise=noise, on_step=on_step or (lambda step: None)
        )
        return Pictures(found, out.sequences, None, out.stats)
    rule = _budgeted(plan.rule(found), drift_budget)
    control, most = _control(WINDOW if window is None else window, len(prompt.mask), device)
    proposer = plan.drafter(found, rule, most, found.drafter if drafter is None else drafter) if most > 1 else NoDraft()
    distributions = distributions if guidance is None else Guided(distributions.steps, guidance)
    family: Any = found  # its prompts are `Prompt`s
    target = HFTarget(found.model, family, distributions, reserve=found.raster.length + most)
    out: Generation = run(
        target if guidance is None else Pairs(target),
        proposer,
        rule,
        prompt,
        stopping=DefaultStopping(rows, found.raster.length, device=device),
        noise=noise,
        control=Fixed(0) if isinstance(proposer, NoDraft) else control,
        on_step=watch if on_step is None else _both(watch, on_step),
    )
    return Pictures(found, out.sequences, watch.picture(), out.stats)


def default_method() -> str:
    """The method of `generate` for codes where none is named."""
    return "jacobi"


def _continuous(
    model: ContinuousPictures,
    prompts: Any,
    method: Any,
    window: int | str | Control | None,
    guidance: Any,
    temperature: Any,
    seed: int | Sequence[int],
    sampling: Sampling | None,
    drafter: Any,
    accept: Any,
    on_step: Callable[[Step], None] | None,
    codes_only: Mapping[str, Any],
) -> Pictures:
    """`generate` for continuous tokens. ValueError for options that only codes have."""
    for name, value in codes_only.items():
        if value is not None:
            raise ValueError(f"{name} is {value!r}, but it is for picture codes, and this model writes continuous tokens: leave it out")
    for name, value in (("guidance", guidance), ("temperature", temperature)):
        if isinstance(value, Sequence):
            raise ValueError(f"{name} is a list: over continuous tokens it is one number for all pictures")
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}: a density has no best value to take, give a positive number")
    control, most = _control(TOKENS if window is None else window, len(prompts), model.model.device)
    found, out = generate_continuous(
        model,
        prompts,
        model.method if method is None else method,
        control=control,
        most=most,
        noise=Noise.from_seed(seed, len(prompts), model.model.device),
        sampling=Sampling() if sampling is None else sampling,
        guidance=_guidance(guidance),  # type: ignore[arg-type]
        temperature=temperature,
        drafter=drafter,
        accept=accept,
        on_step=on_step or (lambda step: None),
    )
    return Pictures(found, out.sequences, None, out.stats)


def _initialiser(init: str | Initialiser | None) -> Initialiser | None:
    if not isinstance(init, str):
        return init
    if init not in INITIALISERS:
        raise ValueError(f"unknown initialiser {init!r}; valid: {', '.join(INITIALISERS)}")
    return INITIALISERS[init]


def _guidance(scale: float | Sequence[float] | None) -> float | tuple[float, ...] | None:
    """The scale, or None where there is nothing to guide."""
    for one in scale if isinstance(scale, Sequence) else (scale,):
        if one is not None and not (isinstance(one, (int, float)) and 0 <= one < math.inf):
            raise ValueError(f"guidance is {one!r}: a scale is a number from 0 on; 1 or None is no guidance, 2 to 8 is usual")
    if isinstance(scale, Sequence):
        return tuple(float(one) for one in scale)
    return None if scale is None or scale == 1 else float(scale)


def _budgeted(rule: Accept, budget: float | None) -> Accept:
    """`rule` with a drift budget. Exact rules spend nothing, so any budget is kept."""
    if budget is None or rule.exactness not in (GROUP_EXACT, LOSSY):
        return rule
    inner = getattr(getattr(rule, "siblings", None), "rule", None)
    if inner is not None:  # a relaxed rule at work in a tree
        return replace(rule, siblings=replace(rule.siblings, rule=replace(inner, budget=budget)))  # pyright: ignore
    if not hasattr(rule, "budget"):
        raise ValueError(f"{type(rule).__name__} has no drift budget: leave drift_budget out, or choose cool-sd, lantern or gsd")
    return replace(rule, budget=budget)  # pyright: ignore[reportArgumentType]


def _control(window: int | str | Control, rows: int, device: torch.device) -> tuple[Control, int]:
    """What chooses the window, and its most tokens."""
    most = LADDER[-1] + 1
    if isinstance(window, int) and not isinstance(window, bool):
        if window < 1:
            raise ValueError(f"window is {window}: give at least 1 token (1 is plain decoding), or 'auto'")
        return Fixed(window - 1), window
    if window == "auto":
        return HillClimb(first=in_flight(rows, device.type == "cuda") - 1), most
    if isinstance(window, (str, int)) or not hasattr(window, "begin"):
        raise ValueError(f"window is {window!r}: give a number of tokens, 'auto', or a Control object")
    return window, most


def _both(first: Callable[[Step], None], second: Callable[[Step], None]) -> Callable[[Step], None]:
    def call(step: Step) -> None:
        first(step)
        second(step)

    return call


class _Runs:
    """Where in the picture values were committed in runs: for every position, how many its forward committed."""

    def __init__(self, model: ImageModel, rows: int):
        self.raster, self.lengths = model.raster, [[] for _ in range(rows)]

    def __call__(self, step: Step) -> None:
        for row, values in zip(self.lengths, step.committed.values, strict=True):
            row += [len(values)] * len(values)

    def picture(self) -> Tensor:
        return self.raster.picture(torch.tensor(self.lengths))
