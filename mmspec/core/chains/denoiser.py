"""A head whose chains are sampled speculatively, in place of one call a step."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mmspec.core.chains.control import FixedSteps, MeasuredSteps, usual_draft_steps
from mmspec.core.chains.linear import LinearDraft
from mmspec.core.chains.sampler import LONGEST, ChainControl, SpeculativeSampler
from mmspec.core.chains.tables import StepTables
from mmspec.core.distributions.denoising_path import Denoiser, Net
from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.core.noise import Keys


@dataclass(frozen=True)
class SpeculativeDenoiser(Denoiser):
    """A head and its chain, sampled by speculation inside the chain. Its distributions are those of the `Denoiser`.

    Args:
        sampler: samples the chains.
    """

    sampler: SpeculativeSampler | None = None

    @staticmethod
    def of(
        net: Net,
        noise_schedule: NoiseSchedule,
        draft_steps: int | str | None = None,
        linear: LinearDraft | None = None,
        guidance: float | None = None,
    ) -> "SpeculativeDenoiser":
        """Make the sampler of a head.

        Args:
            net: the head.
            noise_schedule: its chain; every step must have noise.
            draft_steps: states drafted beside the current one in every call, "auto" for the number that commits the most steps a second, or
                None for a number that depends on the steps of the chain only.
            linear: the linear model by which states are drafted; without one the prediction of the clean token is held unchanged.
            guidance: scale of classifier-free guidance, by which `linear` is combined as the outputs are.

        Returns:
            The head.

        Raises:
            ValueError: for a number out of range, and for chains with a step without noise.
        """
        tables = StepTables(noise_schedule, None if linear is None else linear.response(noise_schedule, guidance))
        first = None if linear is None else partial(linear.first, guidance=guidance)
        sampler = SpeculativeSampler(net, tables, chain_control(draft_steps, noise_schedule.steps), first)
        return SpeculativeDenoiser(net, noise_schedule, sampler=sampler)

    def draw(self, z: Tensor, keys: Keys, width: int, path: Tensor | None = None, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert self.sampler is not None
        shape, numbers = keys.words.shape, keys.branch(2 * self.steps + 1).uniforms(width)  # of the states, then of the judgements
        noise, uniform = torch.special.ndtri(numbers[..., : self.steps + 1, :]).to(z.dtype), numbers[..., self.steps + 1 :, 0]
        kept = None if path is None else path.reshape(-1, *path.shape[-2:])
        begin = None if first is None else first.reshape(-1)
        found = self.sampler.sample(z.reshape(-1, z.shape[-1]), noise.flatten(0, -3), uniform.flatten(0, -2), kept, begin)
        return found.path.view(*shape, *found.path.shape[1:]), found.means.reshape(*shape, *found.means.shape[1:])


def chain_control(draft_steps: int | str | None, steps: int) -> ChainControl:
    """Return the controller of a number of drafted states.

    Args:
        draft_steps: a number, "auto", or None for the usual one.
        steps: steps of the chain.

    Returns:
        The controller.

    Raises:
        ValueError: for anything else.
    """
    if draft_steps == "auto":
        return MeasuredSteps()
    number = usual_draft_steps(steps) if draft_steps is None else draft_steps
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < LONGEST:
        raise ValueError(f"draft_steps is {draft_steps!r}: give 0 to {LONGEST - 1} states, or 'auto'")
    return FixedSteps(number)
