"""A diffusion chain as a target: speculative sampling of whole pictures (De Bortoli et al. 2025, arXiv 2501.05370).

A value is the chain's next state, flattened to D = C H W numbers; a draft token is a state some steps ahead. One call of the network judges
a
draft: its rows are (state, timestep) pairs of all the chains, each at a step of its own. Every step is a Gaussian with the scheduler's own
noise, so the token rule is the reflection coupling, which accepts with probability 2 Phi(-|m_p - m_q| / (2 std)), the maximum for a single
draft token. This saves sequential calls, not arithmetic. The last step has no noise and is never drafted.

B chains, N nodes, T steps, D numbers of a state.
"""

from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions.gaussian import Gaussian
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.records import Draft, Scored
from mmspec.models.module_copy import own_copy, refresh
from mmspec.models.prompt_proof import require_columns
from mmspec.vision.diffusion.x0_prediction import X0Prediction


@dataclass(frozen=True)
class DiffusionTarget:
    """A network `net(sample [M, *shape], timesteps [M]).sample` and its noise schedule. Any of them can also be a drafter."""

    net: Any
    noise_schedule: NoiseSchedule
    shape: torch.Size  # [C, H, W]
    x0_prediction: X0Prediction | None = None

    @staticmethod
    def of(pipeline: Any, steps: int | None = None, eta: float | None = None) -> "DiffusionTarget":
        """Return the chain of a pipeline, with `steps` steps, by default the pipeline's own number.

        ValueError for pipelines whose steps have no common Gaussian noise.
        """
        from diffusers import DDIMPipeline, DDPMPipeline

        if not isinstance(pipeline, (DDPMPipeline, DDIMPipeline)):
            raise ValueError(
                f"{type(pipeline).__name__} is not supported: every step must be a Gaussian whose noise depends on the step alone, as in "
                "DDPMPipeline, and in DDIMPipeline with eta > 0 (steps of score and flow pipelines are not)"
            )
        net, scheduler, extra = pipeline.unet, pipeline.scheduler, _extra(pipeline.scheduler, eta)
        if getattr(net.config, "out_channels", net.config.in_channels) != net.config.in_channels:
            raise ValueError(
                f"{type(net).__name__} has {net.config.out_channels} channels out for {net.config.in_channels} in, so it predicts its own "
                "noise, but target and draft must share theirs: take a network with as many out as in"
            )
        length: int = signature(type(pipeline).__call__).parameters["num_inference_steps"].default if steps is None else steps
        clips = {"clip_sample": False} if getattr(scheduler.config, "clip_sample", False) else {}
        own, plain = type(scheduler).from_config(scheduler.config), type(scheduler).from_config(scheduler.config, **clips)
        noise_schedule = NoiseSchedule.of(plain, length, 0.0, **extra)
        if not noise_schedule.stochastic:
            raise ValueError(
                f"{type(scheduler).__name__} has steps without noise, at which no draft can be accepted: take a DDPMScheduler, or a "
                "DDIMPipeline with eta > 0"
            )
        x0_prediction = X0Prediction.of(own if clips else plain, plain, length, extra)
        return DiffusionTarget(
            net, noise_schedule.to(net.device), sample_shape(net), None if x0_prediction is None else x0_prediction.to(net.device)
        )

    def require_columns(self, prompt: Tensor) -> None:
        """Test whether states that are judged in one call get the distributions of plain decoding; see `models.prompt_proof`."""
        refresh(self.net)
        require_columns(replace(self, net=own_copy(self.net)), self.net, self, prompt, lambda: len(prompt))

    def begin(self, prompt: Tensor) -> tuple["DiffusionSession", Draft]:
        """Open a session for chains that start from states `prompt` [B, D]."""
        return DiffusionSession(self), Draft.root(prompt, torch.zeros(len(prompt), dtype=torch.long, device=prompt.device))

    def distribution(self, x: Tensor, step: Tensor, out: Tensor) -> Gaussian:
        """Return the distribution of the states after `x` [..., D] at `step` [...], given the network's output `out` [..., D]."""
        mean = self.noise_schedule.mean(x, step, out)
        if self.x0_prediction is not None:
            mean = mean + self.x0_prediction.shift(x, step, out)
        return Gaussian(mean, self.noise_schedule.std[step][..., None])

    @torch.no_grad()
    def run(self, x: Tensor, step: Tensor) -> Tensor:
        """Return the network's outputs [M, D] for states `x` [M, D] at `step` [M], in one call."""
        sample = x.to(self.net.dtype).unflatten(-1, self.shape)
        return self.net(sample, self.noise_schedule.timesteps[step]).sample.flatten(1)


class DiffusionSession:
    """One generation. A state contains a chain's whole past, so there is no cache: committing drops the draft."""

    def __init__(self, target: DiffusionTarget):
        self.target, self.scored = target, 0
        self.asked: list[Tensor] = []  # [] chains in each call that scored no draft

    def score(self, draft: Draft) -> Scored:
        """Return the distributions after every node not scored before, in one call; `hidden` holds the network's outputs."""
        first, self.scored = self.scored, draft.size
        wanted = draft.valid & (torch.arange(draft.size, device=draft.start.device) >= draft.roots - 1)  # older roots have their states
        x, step, out = (table[:, first:] for table in (draft.nodes, self.step(draft.position()), self._run(draft, wanted, first)))
        healthy = out.isfinite().flatten(1).all(1)
        return Scored(self.target.distribution(x, step, out), out, healthy=healthy)

    def commit(self, keep: Tensor, most: int) -> None:
        """Commit the kept columns; see `TargetSession.commit`."""
        self.scored = 0

    def outputs(self, draft: Draft) -> Tensor:
        """Return the network's outputs [B, N, D] at the last root, by one call that scores nothing. For drafters that need them."""
        last = torch.arange(draft.size, device=draft.start.device) == draft.roots - 1
        self.asked.append((draft.valid & last).sum())
        return self._run(draft, draft.valid & last)

    @property
    def foresees(self) -> bool:
        """True if the scheduler defines the clean picture of an output."""
        return self.target.x0_prediction is not None

    def picture(self, x: Tensor, positions: Tensor, out: Tensor) -> Tensor:
        """Return the clean picture [B, M, D] predicted by `out`, after the states `x` [B, M, D] that precede output `positions` [B, M]."""
        return self.target.x0_prediction.picture(x, self.step(positions), out)

    def said(self, x: Tensor, positions: Tensor, picture: Tensor) -> Tensor:
        """Return the network output that predicts the clean picture `picture` after states `x`."""
        return self.target.x0_prediction.said(x, self.step(positions), picture)

    def distribution_of(self, x: Tensor, positions: Tensor, out: Tensor) -> Gaussian:
        """Return the distribution at output `positions` [B, M] after states `x` [B, M, D], for network outputs `out`."""
        return self.target.distribution(x, self.step(positions), out)

    def step(self, positions: Tensor) -> Tensor:
        """Return the steps of output `positions`; finished chains stay at the last step."""
        return positions.clamp(max=self.target.noise_schedule.steps - 1)

    def _run(self, draft: Draft, wanted: Tensor, first: int = 0) -> Tensor:
        """Return outputs [B, N, D] at the columns `wanted` [B, N] from `first` on, 0 elsewhere. Finished chains are not run."""
        wanted = wanted & (torch.arange(draft.size, device=wanted.device) >= first)
        rows, columns = wanted.nonzero(as_tuple=True)
        none = torch.zeros_like(draft.nodes, dtype=self.target.net.dtype)
        if len(rows) == 0:
            return none
        return none.index_put((rows, columns), self.target.run(draft.nodes[rows, columns], self.step(draft.position())[rows, columns]))


@dataclass(frozen=True)
class OpenTarget:
    """A target with an open session, whose counts can be read afterwards."""

    session: DiffusionSession
    pending: Draft

    def require_columns(self, prompt: Any) -> None:
        """Test whether states that are judged in one call get the distributions of plain decoding; see `models.prompt_proof`."""
        self.session.target.require_columns(prompt)

    def begin(self, prompt: Any) -> tuple[DiffusionSession, Draft]:
        """Open a session on `prompt`; see `Target.begin`."""
        return self.session, self.pending


def sample_shape(net: Any) -> torch.Size:
    """Return the shape [C, H, W] of a network's samples."""
    size = net.config.sample_size
    return torch.Size((net.config.in_channels, *((size, size) if isinstance(size, int) else size)))


def _extra(scheduler: Any, eta: float | None) -> dict[str, float]:
    """Return further arguments of the scheduler's steps: eta, if it has one."""
    if "eta" not in signature(scheduler.step).parameters:
        if eta is not None:
            raise ValueError(f"eta is {eta}, but {type(scheduler).__name__} has none: leave it out, or take a DDIMPipeline")
        return {}
    eta = 1.0 if eta is None else eta
    if not 0 < eta <= 1:
        raise ValueError(
            f"eta is {eta}: at 0 DDIM has no noise, and no draft token is ever accepted; give a number above 0 and up to 1 (ancestral)"
        )
    return {"eta": eta}
