"""Pictures of continuous tokens, asked for by the names of the ways to write them.

| name | a value is | its distribution | rule | exactness |
|---|---|---|---|---|
| plain | a token | as in density or aligned | none: plain sampling | distribution-exact |
| density | a token | the mixture (mixture heads) | token | distribution-exact |
| path | a token and its chain of states | the chain's | token | distribution-exact |
| stepwise | the same | the same | reflection step by step (De Bortoli et al. 2025, arXiv 2501.05370) | distribution-exact |
| block | the same | the same | block verification over all steps (Soen et al. 2026, 2606.13426) | distribution-exact |
| aligned | a token | a Gaussian, given noise that target and drafter share | token | distribution-exact |
| d-grs | the same | the same | several draft tokens a token (Bullo et al. 2026, 2609.17691) | distribution-exact |
| aligned-block | the same | the same | block (Sun et al. 2024, 2403.10444) | distribution-exact |
| cspd-compat | sets of tokens (masked models) | | the CSpD code's (Wang et al. 2024, 2411.11925) | lossy, not metered |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmspec.core.control import Control, Fixed
from mmspec.core.decode import Generation
from mmspec.core.decode import generate as run
from mmspec.core.distributions.denoising_path import recorded
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.records import Step
from mmspec.core.rules.base import Accept
from mmspec.core.rules.block import Block
from mmspec.core.rules.d_grs import dgrs
from mmspec.core.rules.steps import BlockSteps, Stepwise
from mmspec.core.rules.token import Token
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, Comb, Shape, draw_with_replacement, sampled
from mmspec.models.guidance import Guided, Pairs
from mmspec.models.target import HFTarget
from mmspec.vision.continuous.ar import ContinuousAR
from mmspec.vision.continuous.latents import LatentRequest, Latents, Sampling, tokens_of
from mmspec.vision.continuous.mar import MaskedAR
from mmspec.vision.continuous.masked import generate_masked
from mmspec.vision.families.base import class_of


@dataclass(frozen=True)
class ContinuousMethod:
    """One way to write pictures: the form of a value, the rule that judges draft tokens (None: there are none), and the heads it is for.

    `siblings` draft tokens are drawn for a token, of which the first is drafted on: they cost the drafter nothing.
    """

    form: str
    accept: Any
    heads: tuple[str, ...]
    siblings: int = 1

    @property
    def shape(self) -> Shape:
        """How its drafts grow."""
        if self.siblings > 1:
            return Comb(self.siblings, draw_with_replacement)
        draw: Any = recorded if self.form == "path" else sampled
        return Chain(draw)


CONTINUOUS_METHODS: dict[str, ContinuousMethod] = {
    "plain": ContinuousMethod("aligned", None, ("diffusion", "mixture", "masked")),
    "density": ContinuousMethod("density", Token(), ("mixture",)),
    "path": ContinuousMethod("path", Token(), ("diffusion",)),
    "stepwise": ContinuousMethod("path", Stepwise(), ("diffusion",)),
    "block": ContinuousMethod("path", BlockSteps(), ("diffusion",)),
    "aligned": ContinuousMethod("aligned", Token(), ("diffusion",)),
    "d-grs": ContinuousMethod("aligned", dgrs(), ("diffusion",), siblings=3),
    "aligned-block": ContinuousMethod("aligned", Block(), ("diffusion",)),
    "cspd-compat": ContinuousMethod("sets", None, ("masked",)),
}
WINDOW = 5
"""Tokens in flight a round where none are asked for: four draft tokens."""


class ContinuousPictures:
    """A model of continuous tokens with what turns prompts into classes and tokens into pictures.

    `to_pictures` makes PIL pictures of tokens [B, h, w, d] (an autoencoder's decoder); without it only tokens can be had. `labels` are
    names of the classes. `drafter` is what ways that draft use where the caller gives none: a smaller model of the same tokens. `others`
    are models with other heads over the same tokens: a way that this one's head is not made for runs on the first that it fits.
    """

    def __init__(
        self,
        model: ContinuousAR | MaskedAR,
        to_pictures: Callable[[Tensor], list[Image.Image]] | None = None,
        labels: Sequence[str] = (),
        drafter: ContinuousAR | MaskedAR | None = None,
        others: Sequence["ContinuousPictures"] = (),
    ):
        self.model, self.to_pictures, self.labels, self.drafter, self.others = model, to_pictures, tuple(labels), drafter, tuple(others)

    @property
    def head(self) -> str:
        return "masked" if isinstance(self.model, MaskedAR) else self.model.config.head

    @property
    def method(self) -> str:
        """How it writes pictures where no way is named."""
        return {"diffusion": "path", "mixture": "density", "masked": "plain"}[self.head]

    def fit(self, method: str) -> "ContinuousPictures":
        """This model, or the first of `others`, whose head `method` is for. ValueError where there is none."""
        heads = way_of(method).heads
        for each in (self, *self.others):
            if each.head in heads:
                return each
        raise ValueError(
            f"method {method!r} is for {' or '.join(heads)} heads, and this model has a {self.head} head: {_fitting(self.head)}"
        )

    def classes(self, prompts: Sequence[Any]) -> Tensor:
        """Class numbers [B] of class names or numbers. ValueError names the first that is unknown."""
        numbers = [class_of(prompt, self.labels, self.model.config.classes) for prompt in prompts]
        return torch.tensor(numbers, device=self.model.device)

    def picture(self, sequences: Tensor) -> Tensor:
        """Tokens [B, h, w, d] of what was written, [B, S, d]."""
        return sequences.unflatten(1, (self.model.config.grid, -1))

    def decode(self, tokens: Tensor) -> list[Image.Image]:
        """Pictures from tokens [B, h, w, d]."""
        if self.to_pictures is None:
            raise ValueError("this model has no decoder: give the adapter to_pictures, a function from tokens [B, h, w, d] to pictures")
        return self.to_pictures(tokens)


def way_of(method: Any) -> ContinuousMethod:
    """The way a name stands for. ValueError lists the names there are."""
    if method not in CONTINUOUS_METHODS:
        raise ValueError(f"unknown method {method!r} for continuous tokens; valid: {', '.join(CONTINUOUS_METHODS)}")
    return CONTINUOUS_METHODS[method]


def _fitting(head: str) -> str:
    return f"take {', '.join(name for name, way in CONTINUOUS_METHODS.items() if head in way.heads)}, or a model with such a head"


def continuous_model(model: Any) -> ContinuousPictures | None:
    """The adapter of a model of continuous tokens; None for any other model."""
    if isinstance(model, ContinuousAR | MaskedAR):
        return ContinuousPictures(model)
    return model if isinstance(model, ContinuousPictures) else None


@dataclass(frozen=True)
class LatentDraft:
    """A drafter with a sampling of its own: fewer steps (under aligned), `every` (under any way), another temperature."""

    model: ContinuousAR
    sampling: Sampling = field(default_factory=Sampling)
    temperature: float | None = None


@torch.no_grad()
def generate_continuous(
    model: ContinuousPictures,
    prompts: Sequence[Any],
    method: str = "path",
    *,
    control: Control,
    most: int,
    noise: Noise,
    sampling: Sampling,
    guidance: float | None = None,
    temperature: float = 1.0,
    drafter: Any = None,
    accept: Accept | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> tuple[ContinuousPictures, Generation]:
    """The tokens [B, S, d] of one picture a prompt, and the model that wrote them; see `mmspec.vision.generate`.

    `control` chooses the draft length, with `most` tokens in flight at the most.
    """
    found, way = model.fit(method), way_of(method)
    if way.form == "sets" and not isinstance(control, Fixed):
        raise ValueError(f"{method} drafts the same number of iterations every round: give window a number, not 'auto'")
    if way.form == "sets" or found.head == "masked":
        return found, _by_sets(found, found.classes(prompts), method, most, noise, sampling, guidance, temperature, drafter)
    network = found.model
    classes, target, drafting = pair_of(
        found, prompts, method, most=most, noise=noise, sampling=sampling, guidance=guidance, temperature=temperature, drafter=drafter
    )
    chain = NoDraft() if drafting is None else ModelDrafter(drafting, way.shape)
    out = run(
        target,
        chain,
        accept or way.accept or Token(),
        classes,
        stopping=DefaultStopping(len(noise.seeds), network.config.grid**2, device=network.device),
        noise=noise,
        control=Fixed(0) if isinstance(chain, NoDraft) else control,
        on_step=on_step,
    )
    return found, replace(out, sequences=tokens_of(out.sequences, network.config.channels))


def pair_of(
    model: ContinuousPictures,
    prompts: Sequence[Any],
    method: str,
    *,
    most: int,
    noise: Noise,
    sampling: Sampling,
    guidance: float | None = None,
    temperature: float = 1.0,
    drafter: Any = None,
) -> tuple[Tensor, Any, Any]:
    """What the engine runs for `method` over a causal model: its prompt, the target, and the drafter as a target of its own, or None.

    The prompt are class numbers, behind them those of no class where the pair is guided. ValueError as `generate` says it.
    """
    way, draft_token = way_of(method), model.drafter if drafter is None else drafter
    network: Any = model.model
    form = "density" if model.head == "mixture" else way.form
    if form == "density" and sampling != Sampling():
        raise ValueError(
            "head_steps, sigma_out and all of sampling are for a diffusion head's chain, and a mixture head has none: leave them out"
        )
    classes = model.classes(prompts)
    if guidance is not None:
        _check_guided(network)
        classes = torch.cat([classes, torch.full_like(classes, network.config.classes)])
    asked = LatentRequest(form, noise, temperature, guidance)
    target = _target(network, asked, sampling, most)
    if way.accept is None or most == 1:
        return classes, target, None
    if draft_token is None:
        raise ValueError(f"method {method!r} needs a drafter: pass drafter=..., a smaller ContinuousAR of the same tokens, or take plain")
    return classes, target, _drafting(draft_token, network, asked, sampling, most)


def _target(network: ContinuousAR, asked: LatentRequest, sampling: Sampling, most: int) -> Any:
    distributions = Pipeline() if asked.guidance is None else Guided((), asked.guidance)
    family: Any = Latents(network, asked, sampling)  # its prompts are class numbers
    target = HFTarget(network, family, distributions, reserve=network.config.grid**2 + most)
    return target if asked.guidance is None else Pairs(target)


def _drafting(draft_token: Any, network: ContinuousAR, asked: LatentRequest, sampling: Sampling, most: int) -> Any:
    """The drafter as a target of its own. ValueError where its tokens or its chain are not the target's."""
    draft = draft_token if isinstance(draft_token, LatentDraft) else LatentDraft(draft_token)
    theirs, own = getattr(draft.model, "config", None), network.config
    if not isinstance(draft.model, ContinuousAR):
        raise ValueError(
            f"drafter is a {type(draft.model).__name__}: ways over continuous tokens draft with a ContinuousAR of the same tokens"
        )
    for name in ("channels", "grid", "head"):
        if getattr(theirs, name) != getattr(own, name):
            raise ValueError(
                f"the drafter's {name} is {getattr(theirs, name)}, the target's {getattr(own, name)}: take one of the same tokens and head"
            )
    theirs_asked = replace(asked, temperature=asked.temperature if draft.temperature is None else draft.temperature)
    if own.head == "mixture":
        return _target(draft.model, theirs_asked, sampling, most)
    chosen = draft.sampling.over(replace(sampling, every=theirs.every)).filled(own)
    _check_kernels(sampling.filled(own).noise_schedule(asked.temperature), chosen.noise_schedule(theirs_asked.temperature), asked.form)
    return _target(draft.model, theirs_asked, chosen, most)


def _check_kernels(own: NoiseSchedule, theirs: NoiseSchedule, form: str) -> None:
    """ValueError, before anything runs, for chains that could not be judged against each other."""
    if form == "aligned":
        return own.check_token("aligned")
    own.check_path(form)
    return own.check_shared(theirs, form)


def _check_guided(network: ContinuousAR) -> None:
    if network.config.head == "mixture" and network.config.components != 1:
        raise ValueError(
            f"guidance has a closed form for a single Gaussian, and this mixture has {network.config.components}: leave guidance out, "
            "or take a diffusion head"
        )


def _by_sets(
    model: ContinuousPictures,
    classes: Tensor,
    method: str,
    most: int,
    noise: Noise,
    sampling: Sampling,
    guidance: float | None,
    temperature: float,
    drafter: Any,
) -> Generation:
    if sampling.schedule is not None:
        raise ValueError("schedule is for causal models: masked ones are drawn by the schedule they were trained by")
    network: Any = model.model
    draft_token: Any = model.drafter if drafter is None else drafter
    return generate_masked(
        network,
        classes,
        method=method,
        head_steps=sampling.steps,
        sigma_out=sampling.sigma_out,
        temperature=temperature,
        guidance=guidance,
        drafter=draft_token,
        gamma=max(1, most - 1),
        noise=noise,
    )
