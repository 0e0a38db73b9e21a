"""Generation of continuous tokens by each method. See `mmspec.vision.continuous.methods` for their names."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.chains.denoiser import chain_control
from mmspec.core.control import Control, Fixed
from mmspec.core.decode import OnStep
from mmspec.core.decode import generate as run
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.result import Generation
from mmspec.core.rules.base import Accept
from mmspec.core.rules.token import Token
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.guided import GuidedDrafter
from mmspec.drafters.guided_pair import GuidedPair
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Shape
from mmspec.models.guidance import Guided, Pairs
from mmspec.models.target import HFTarget
from mmspec.utils.names import shown
from mmspec.vision.continuous.ar import ContinuousAR
from mmspec.vision.continuous.heads import HeadStats, require_chain_head
from mmspec.vision.continuous.latents import ChainDrafts, LatentRequest, Sampling, tokens_of
from mmspec.vision.continuous.masked import generate_masked
from mmspec.vision.continuous.methods import ContinuousPictures, way_of
from mmspec.vision.continuous.state_draft import SHARED, StateDraft, StateSource

WINDOW = 5
"""Default tokens per forward: four draft tokens and the pending one."""


@dataclass(frozen=True)
class LatentDraft:
    """A drafter with its own sampling settings: fewer steps (method "aligned"), `every` (any method), another temperature.

    Args:
        model: the drafter, a smaller model or a state draft.
        sampling: settings; those that are None are the target's.
        temperature: factor on the noise of the chain's steps; None for the target's.
    """

    model: ContinuousAR | StateDraft
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
    draft_steps: int | str | None = None,
    on_step: OnStep = None,
) -> tuple[ContinuousPictures, Generation]:
    """Generate one picture a prompt; see `mmspec.vision.generate`.

    `control` chooses the draft length, with at most `most` tokens a forward.

    Returns:
        The model that generated them, and their tokens [B, S, d].
    """
    found, way = model.fit(method), way_of(method)
    if way.form == "sets" and not isinstance(control, Fixed):
        raise ValueError(f"{method} drafts the same number of iterations every round: give window a number, not 'auto'")
    check_draft_steps(found, method, draft_steps)
    if way.form == "sets" or found.head == "masked":
        return found, _by_sets(found, found.classes(prompts), method, most, noise, sampling, guidance, temperature, drafter, draft_steps)
    network = found.model
    classes, target, drafting = pair_of(
        found, prompts, method, most=most, noise=noise, sampling=sampling, guidance=guidance, temperature=temperature, drafter=drafter,
        draft_steps=draft_steps,
    )  # fmt: skip
    chain = NoDraft() if drafting is None else _drafter(drafting, way.shape)
    if drafting is not None:
        target.require_columns(classes)
        _uncount(target)  # what the self-test called
    out = run(
        target,
        chain,
        accept or way.accept or Token(),
        classes,
        stopping=DefaultStopping(len(noise.seeds), found.cells, device=network.device),
        noise=noise,
        control=Fixed(0) if isinstance(chain, NoDraft) else control,
        on_step=on_step,
    )
    return found, replace(out, tokens=tokens_of(out.tokens, network.config.channels), stats=_counted(out.stats, target, drafting))


def _drafter(drafting: Any, shape: Shape) -> ModelDrafter | GuidedDrafter:
    """Return the source of drafts, for what `pair_of` returned."""
    return GuidedDrafter(GuidedPair(drafting), shape) if isinstance(drafting, StateSource) else ModelDrafter(drafting, shape)


def check_draft_steps(model: ContinuousPictures, method: str, draft_steps: int | str | None) -> None:
    """Raise ValueError for `draft_steps` out of range, and for methods and heads that do not read it.

    Args:
        model: the model whose head `method` uses.
        method: a name of `CONTINUOUS_METHODS`.
        draft_steps: as in `generate`; None is always accepted.
    """
    if draft_steps is None:
        return
    if way_of(method).form != "path" or model.head == "mixture" or (model.head == "masked" and method != "chain"):
        raise ValueError(
            f"draft_steps is {shown(draft_steps)}, but method {method!r} runs its head once a step: leave it out, or take chain"
        )
    chain_control(draft_steps, 1)


def _counted(stats: Stats, target: Any, drafting: Any) -> Stats:
    """Return the statistics with the calls of both heads, if they have chains."""
    head = _head(target)
    if head is None:
        return stats
    theirs = drafting.heads if isinstance(drafting, StateSource) else [] if drafting is None else [_head(drafting)]
    calls = sum(each.calls for each in theirs)
    return HeadStats(**vars(stats), head_calls=head.calls, head_states=head.states, draft_head_calls=calls)


def _uncount(target: Any) -> None:
    head = _head(target)
    if head is not None:
        head.calls = head.states = 0


def _head(target: Any) -> Any:
    return getattr(getattr(target, "doubled", target).family, "head", None)


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
    draft_steps: int | str | None = None,
) -> tuple[Any, Any, Any]:
    """Return the engine objects for `method` with a causal model: its prompt, the target, and the drafter.

    The prompt holds class numbers; with guidance, those for no class follow. The drafter is a target, a `StateSource` or None. ValueError
    as in `generate`.
    """
    way, draft_token = way_of(method), model.drafter if drafter is None else drafter
    network: Any = model.model
    form = "density" if model.head == "mixture" else way.form
    if form == "density" and sampling != Sampling():
        raise ValueError(
            "head_steps, sigma_out and all of sampling are for a diffusion head's chain, and a mixture head has none: leave them out"
        )
    if guidance is not None:
        _check_guided(network)
    encoded = model.encode(prompts, guidance is not None)
    chains = None if draft_steps is None and method != "chain" else ChainDrafts(draft_steps, model.linear)
    if chains is not None and (every := sampling.filled(network.config).every) != 1:
        raise ValueError(f"every is {every}, but speculation inside a chain runs the head at every state: leave every or draft_steps out")
    request = LatentRequest(form, noise, temperature, guidance, chains)
    target = _target(model, network, request, sampling, most)
    if chains is not None:
        _require_chains(target, encoded)
    if way.accept is None or most == 1:
        return encoded, target, None
    if draft_token is None:
        kind = type(network).__name__
        raise ValueError(f"method {method!r} needs a drafter: pass drafter=..., a smaller {kind} of the same tokens, or take plain")
    return encoded, target, _drafting(model, draft_token, request, sampling, most)


def _require_chains(target: Any, prompt: Any) -> None:
    """Raise ValueError for a head whose chains are not those of plain decoding where several states are judged in one call."""
    family = getattr(target, "doubled", target).family

    def width() -> int:
        session, pending = target.begin(prompt)
        return session.score(pending).p.z.shape[-1]  # the head is not called

    require_chain_head(family.model, family.head, family.noise_schedule.timesteps, width)


def _target(model: ContinuousPictures, network: Any, request: LatentRequest, sampling: Sampling, most: int) -> Any:
    distributions = Pipeline() if request.guidance is None else Guided((), request.guidance)
    family: Any = model.family(network, request, sampling)  # its prompts are what `encode` returned
    target = HFTarget(network, family, distributions, reserve=model.cells + most)
    return target if request.guidance is None else Pairs(target)


def _drafting(model: ContinuousPictures, draft_token: Any, request: LatentRequest, sampling: Sampling, most: int) -> Any:
    """Return the drafter as a target, or the source of a state draft. ValueError if its tokens or its chain differ from the target's."""
    draft = draft_token if isinstance(draft_token, LatentDraft) else LatentDraft(draft_token)
    theirs, own, kind = getattr(draft.model, "config", None), model.model.config, type(model.model)
    reading: Any = draft.model if isinstance(draft.model, StateDraft) else None
    if reading is None and not isinstance(draft.model, kind):
        raise ValueError(
            f"drafter is a {type(draft.model).__name__}: methods for continuous tokens draft with a {kind.__name__} of the same tokens, "
            "or with a StateDraft"
        )
    for name in model.shared if reading is None else SHARED:
        if getattr(theirs, name) != getattr(own, name):
            what = "one of the same tokens and head" if reading is None else "a state draft of this target"
            raise ValueError(f"the drafter's {name} is {getattr(theirs, name)}, the target's {getattr(own, name)}: take {what}")
    shares = reading is not None and reading.head is None  # the target's linear model is of its head
    chains = None if request.chains is None else request.chains if shares else replace(request.chains, linear=None)
    draft_request = replace(request, temperature=request.temperature if draft.temperature is None else draft.temperature, chains=chains)
    if own.head == "mixture":
        return (
            _target(model, draft.model, draft_request, sampling, most) if reading is None else StateSource(reading, draft_request, sampling)
        )
    chosen = draft.sampling.over(replace(sampling, every=theirs.every)).filled(own)
    _check_kernels(sampling.filled(own).noise_schedule(request.temperature), chosen.noise_schedule(draft_request.temperature), request.form)
    return _target(model, draft.model, draft_request, chosen, most) if reading is None else StateSource(reading, draft_request, chosen)


def _check_kernels(own: NoiseSchedule, theirs: NoiseSchedule, form: str) -> None:
    """Raise ValueError for chains that cannot be judged against each other."""
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
    draft_steps: int | str | None,
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
        draft_steps=draft_steps,
        noise=noise,
    )
