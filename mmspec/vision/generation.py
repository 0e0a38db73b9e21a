"""`mmspec.vision.generate`: image generation by speculative decoding, with autoregressive image models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from mmspec.core.control import Control
from mmspec.core.decode import OnStep, each
from mmspec.core.decode import generate as run
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import pipeline
from mmspec.core.processors.raster import Grammar
from mmspec.core.result import Generation, Result
from mmspec.core.rules.base import Accept
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.couplers import Coupler
from mmspec.drafters.jacobi.initialisers import Initialiser
from mmspec.models.guidance import Guided
from mmspec.run.arguments import check, check_rows, public_call, shown
from mmspec.run.guidance import scale_of
from mmspec.run.request import Request, refuse
from mmspec.run.rules import rule_of
from mmspec.run.shapes import Tree
from mmspec.utils.renamed import once_positional
from mmspec.vision.checkpoints.latents import load_latent_drafter
from mmspec.vision.codes.methods import Method
from mmspec.vision.codes.registry import names_method
from mmspec.vision.codes.rows import generate_rows
from mmspec.vision.codes.runs import CommittedRuns
from mmspec.vision.codes.usual import code_record
from mmspec.vision.continuous.generation import WINDOW as TOKENS
from mmspec.vision.continuous.generation import generate_continuous
from mmspec.vision.continuous.latents import Sampling
from mmspec.vision.continuous.methods import ContinuousPictures, continuous_model
from mmspec.vision.families import image_model
from mmspec.vision.families.base import ImageModel, Size
from mmspec.vision.plan import PicturePlan, control_for, guidance_of


@dataclass(frozen=True)
class Pictures(Result):
    """Images, one a prompt.

    Attributes:
        tokens: the codes, LongTensor [B, height, width], or vectors, float [B, height, width, d].
        lengths: LongTensor [B], values of a row of `sequences`.
        stats: counts and seconds.
        model: the adapter that decodes tokens to images.
        sequences: what the model wrote, [B, T] codes and controls, or vectors [B, T, d].
        runs: LongTensor [B, height, width], how many values the forward of a cell committed in all; None by rows, by sets and of vectors.
    """

    model: ImageModel | ContinuousPictures = field(repr=False)
    sequences: Tensor = field(repr=False)
    runs: Tensor | None = field(repr=False)

    @cached_property
    def images(self) -> list[Image.Image]:
        """The images, decoded when they are first read. ValueError if the model has no decoder."""
        return self.model.decode(self.tokens)


@once_positional(("method", "window", "guidance", "temperature", "top_k", "seed"), names_method)
@public_call
def generate(
    model: Any,
    prompts: Sequence[Any] | Mapping[str, Tensor],
    drafter: Any = None,
    *,
    accept: str | Accept | Callable[[ImageModel], Accept] | None = None,
    draft_length: int | str | Control | None = None,
    tree: Tree = None,
    seed: int | Sequence[int] = 0,
    temperature: float | Sequence[float] = 1.0,
    top_k: int | Sequence[int] | None = None,
    top_p: float | Sequence[float] | None = None,
    method: str | Method | None = None,
    window: int | str | Control | None = None,
    guidance: float | Sequence[float] | None = None,
    size: Size | None = None,
    couple: Coupler | None = None,
    init: str | Initialiser | None = None,
    drift_budget: float | None = None,
    sampling: Sampling | None = None,
    draft_steps: int | str | None = None,
    on_step: OnStep = None,
    capture: bool = False,
) -> Pictures:
    """Generate one picture per prompt.

    Args:
        model: a transformers image model, a `mmspec.vision.LlamaGen`, or an adapter (`mmspec.vision.ImageModel`) where the model needs
            a processor for texts or a decoder for its codes.
        prompts: a list of texts or classes, of `mmspec.vision.ImagePrompt` for image to image, or the tensors that the model's processor
            returned.
        drafter: the trained net, the smaller image model (or its adapter), the smaller model or state draft of continuous tokens, or the
            folder that a recipe wrote of any of them, for methods that draft with one; by default the model's own. Others refuse it.
        accept: in place of the method's own rule: a name, a rule, or a function from the adapter to a rule.
        draft_length: draft tokens a round: `window` less the pending token. Give one of the two.
        tree: of the methods that draft with a trained net, in place of their own tree; as `mmspec.text.generate` takes it.
        seed: an int (image r gets seed + r) or one per image. An image depends on its own seed only, not on its batch. With "jacobi" and
            "plain" it does not depend on the window either. With "auto" other methods depend on measured seconds.
        temperature: 0 for the most likely code; a number, or one per image.
        top_k, top_p: truncation of the distributions of target and drafter alike, one number or one per image; None for none.
        method: a name of `mmspec.vision.METHODS` or `PUBLISHED`, or a `Method`; by default "jacobi", "eagle" if `drafter` is a net and
            "assisted-jacobi" if it is an image model. For models of continuous tokens a name of `mmspec.vision.CONTINUOUS_METHODS`; by
            default the head's own: "path", "density" (mixture) or "plain" (masked).
        window: tokens a forward, the pending token included, at least 1; by default 32, and 5 for continuous tokens, which a smaller
            model drafts; "auto" for the number of highest measured throughput, 1 where none pays; or a controller. Rows (zipar, pjd)
            have sizes of their own. It bounds the depth of trees.
        guidance: the scale of classifier-free guidance, one number or one per image; None or 1 for none.
        size: pixels a side, or (height, width), for models with several sizes.
        couple, init: in place of the method's own coupler and initialiser (a name: uniform, left, up, ...).
        drift_budget: the total variation that a lossy rule may spend on an image; after that it is exact for the rest of the image.
        sampling: of the heads of continuous models: steps, the noise `sigma_out` on every token, a diffusers scheduler.
        draft_steps: of diffusion heads, by methods "chain", "path", "stepwise" and "block": states of a chain that are drafted beside the
            current one and judged in one call of the head, 0 to 31; "auto" for the number that commits the most steps a second.
        on_step: called with every round, for progress bars and previews.
        capture: compile the target's forward with fixed shapes, as `mmspec.text.generate`. For methods without a drafter of their own.

    Returns:
        `images` list of PIL pictures, `tokens` LongTensor [B, height, width] (of continuous tokens floats [B, height, width, d]),
        `sequences` with controls, `runs`, and `stats`.

    Raises:
        ValueError: for an invalid argument; the message says what to give instead.
        FloatingPointError: when the target's logits hold NaN or infinity, naming the picture and the position.
    """
    request = Request.of(
        drafter=drafter, tree=tree, seed=seed, temperature=temperature, top_k=top_k, top_p=top_p,
        **({"accept": accept} if isinstance(accept, str) else {}), **({} if draft_length is None else {"draft_length": draft_length}),
    )  # fmt: skip
    check(prompts=prompts, window=window, guidance=guidance, couple=couple, drift_budget=drift_budget, on_step=on_step, capture=capture)
    if accept is not None and not isinstance(accept, str) and not callable(accept):
        raise ValueError(f"accept is {shown(accept)}: give the name of a rule, a rule, or a function from the adapter to a rule")
    window = window if draft_length is None else _window(window, request.draft_length)
    if (vectors := continuous_model(model)) is not None:
        refuse(
            "picture codes, and this model writes continuous tokens",
            top_k=top_k, top_p=top_p, tree=tree, couple=couple, init=init, drift_budget=drift_budget, capture=capture or None,
        )  # fmt: skip
        vectors = vectors if size is None else vectors.resized(size)
        return _continuous(vectors, prompts, method, window, guidance, temperature, seed, sampling, draft_steps, drafter, accept, on_step)
    refuse("models of continuous tokens, and this one writes codes", sampling=sampling, draft_steps=draft_steps)
    found = image_model(model)
    found = (found if size is None else found.resized(size)).prepared(prompts)
    plan = PicturePlan.of(
        found, method, drafter, window=window, tree=tree, couple=couple, init=init, drift_budget=drift_budget,
        accept=rule_of(accept, temperature) if isinstance(accept, str) else accept,
    )  # fmt: skip
    scale = guidance_of(found, guidance)
    distributions = pipeline(temperature=temperature, top_k=top_k, top_p=top_p, first=[Grammar(found.raster)])
    prompt = found.encode(prompts, guided=scale is not None)
    rows = len(prompt.mask) // (1 if scale is None else 2)
    check_rows(rows, guidance=guidance, temperature=temperature, top_k=top_k, top_p=top_p)
    plan = plan.windowed(window, len(prompt.mask))
    noise = Noise.from_seed(seed, rows, prompt.embeds.device)
    if plan.method.rows is not None:
        refuse("methods that write cell by cell, and this one writes rows side by side", capture=capture or None)
        out = generate_rows(found, prompt, plan=plan.method.rows, processors=distributions, guidance=scale, noise=noise, on_step=on_step)
        return _pictures(found, out, None)
    watch = CommittedRuns(found.raster, rows)
    processors = distributions if scale is None else Guided(distributions.steps, scale)
    out = run(
        plan.target(processors, capture),
        plan.proposer(processors, lambda small: small.encode(prompts, guided=scale is not None)),
        plan.rule,
        prompt,
        stopping=DefaultStopping(rows, found.raster.length, device=prompt.embeds.device),
        noise=plan.noise(noise),
        control=plan.control,
        on_step=each(watch, on_step),
    )
    code_record(found.model, found.raster).add(out.tokens)
    return _pictures(found, out, watch.picture())


def _pictures(model: ImageModel | ContinuousPictures, out: Generation, runs: Tensor | None) -> Pictures:
    return Pictures(model.picture(out.tokens), out.lengths, out.stats, model, out.tokens, runs)


def _window(window: Any, draft_length: Any) -> Any:
    """Return tokens a forward for a draft length. ValueError if a window is given, too."""
    if window is not None:
        raise ValueError(
            f"window is {window!r} and draft_length is {draft_length!r}: a window is the draft and the pending token, give one"
        )
    return draft_length + 1 if isinstance(draft_length, int) else draft_length


def _continuous(
    model: ContinuousPictures,
    prompts: Any,
    method: Any,
    window: int | str | Control | None,
    guidance: Any,
    temperature: Any,
    seed: int | Sequence[int],
    sampling: Sampling | None,
    draft_steps: int | str | None,
    drafter: Any,
    accept: Any,
    on_step: OnStep,
) -> Pictures:
    """`generate` for continuous tokens. ValueError for options of codes."""
    for name, value in (("guidance", guidance), ("temperature", temperature)):
        if isinstance(value, Sequence):
            raise ValueError(f"{name} is a list: over continuous tokens it is one number for all pictures")
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}: a density has no best value to take, give a positive number")
    method = model.method if method is None else method
    if method in ("plain", "chain"):
        given = {"drafter": drafter, "accept": accept, "window": None if window == 1 else window}
        refuse(f"methods that draft tokens, and method {method!r} does not", **given)
    drafter = load_latent_drafter(drafter, model) if isinstance(drafter, str | Path) else drafter
    control, most = control_for(TOKENS if window is None else window, len(prompts), model.model.device, model.cells)
    found, out = generate_continuous(
        model,
        prompts,
        method,
        control=control,
        most=most,
        noise=Noise.from_seed(seed, len(prompts), model.model.device),
        sampling=Sampling() if sampling is None else sampling,
        guidance=scale_of(guidance),  # type: ignore[arg-type]
        temperature=temperature,
        drafter=drafter,
        draft_steps=draft_steps,
        accept=rule_of(accept, 1.0) if isinstance(accept, str) and accept != "exact" else None if accept == "exact" else accept,
        on_step=on_step,
    )
    return _pictures(found, out, None)
