"""`mmspec.vision.denoise`: pictures of a diffusers pipeline in fewer sequential calls of its network, with the same distribution."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from einops import rearrange
from PIL import Image
from torch import Tensor

from mmspec.core.accept_rule import AcceptRule
from mmspec.core.control import Control
from mmspec.core.decode import OnStep, run
from mmspec.core.draft_length.break_even import BreakEven
from mmspec.core.noise import Noise
from mmspec.core.protocols import Drafter
from mmspec.core.records import Committed, Draft, Scored, Verdict
from mmspec.core.result import Result
from mmspec.core.rules.block import Block
from mmspec.core.rules.d_grs import dgrs
from mmspec.core.rules.token import Token
from mmspec.core.stats import Stats
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.jacobi.frozen import FrozenTarget
from mmspec.drafters.model.drafter import ModelDrafter
from mmspec.drafters.none import NoDraft
from mmspec.drafters.shapes import Chain, Comb, Shape, draw_with_replacement
from mmspec.run.arguments import public_call
from mmspec.run.draft_length import control_of
from mmspec.utils.names import shown, unknown
from mmspec.vision.diffusion.target import DiffusionSession, DiffusionTarget, OpenTarget, sample_shape

MOST_AT_ONCE = 4096
"""Most pictures of a call: their states stand in memory together."""
_FIRST = -1  # the output position whose numbers are a chain's first state
RULES: dict[str, AcceptRule] = {"token": Token(), "block": Block(), "d-grs": dgrs()}


class Chains(DefaultStopping):
    """`DefaultStopping` that keeps only the last state of every chain, because a whole chain may take a gigabyte."""

    join_rows = None  # type: ignore[assignment]  # keeps states of the whole batch

    def commit(self, draft: Draft, scored: Scored, verdict: Verdict) -> tuple[Verdict, Committed]:
        done = super().commit(draft, scored, verdict)
        for states in self.outputs:
            states[:-1] = [None] * (len(states) - 1)
        return done


@dataclass(frozen=True)
class Denoised(Result):
    """Images of a diffusion pipeline.

    Attributes:
        tokens: float [B, C, H, W], the last state of each chain, as the network sees it: about -1 .. 1.
        lengths: LongTensor [B], steps of each chain.
        stats: counts and seconds.
    """

    @property
    def samples(self) -> Tensor:
        """`tokens`, under the name that diffusers has for them."""
        return self.tokens

    @cached_property
    def images(self) -> list[Image.Image]:
        """The pictures as PIL images.

        Raises:
            ValueError: if a sample has another number of channels than 1 or 3.
        """
        from diffusers import DDPMPipeline

        channels = self.samples.shape[1]
        if channels not in (1, 3):
            raise ValueError(f"a sample has {channels} channels, which make no picture: read samples, or decode them yourself")
        pixels = rearrange((self.samples.float() / 2 + 0.5).clamp(0, 1).cpu(), "b c h w -> b h w c").numpy()
        return DDPMPipeline.numpy_to_pil(pixels)


@public_call
def denoise(
    pipeline: Any,
    count: int = 1,
    *,
    drafter: Any = None,
    draft_length: int | str | Control = 8,
    steps: int | None = None,
    eta: float | None = None,
    siblings: int = 1,
    accept: str | AcceptRule | None = None,
    seed: int | Sequence[int] = 0,
    on_step: OnStep = None,
) -> Denoised:
    """Draw `count` pictures with an unconditional diffusers pipeline, in fewer sequential calls of its network, with the same distribution.

    Args:
        pipeline: a DDPMPipeline, or a DDIMPipeline with eta > 0. Clipped samples (`clip_sample`) are supported; thresholding is not.
        count: number of pictures.
        drafter: None for plain decoding; "frozen" for the target's own last output, which costs no call; a smaller network with the
            pipeline's scheduler, or a pipeline whose scheduler has the same noise; or a Drafter, such as `FrozenTarget("root")`.
        draft_length: states drafted a round; "auto" maximises measured throughput, zero included. Every call scores one state more than
            were drafted, so drafting pays off where a batch of states takes little longer than one.
        steps: steps of the chain; by default the pipeline's own number.
        eta: DDIM's eta in (0, 1], 1 by default (the pipeline's own default is 0). Not for DDPM.
        siblings: states drafted side by side at every step, of which the first is continued. Multiplies the rows of a call.
        accept: "token" (reflection), "block" (block verification, which accepts a little more), "d-grs" (the rule for siblings), or a
            rule; by default token or, with siblings, d-grs. All are distribution-exact.
        seed: an int (picture r gets seed + r) or one per picture. A picture depends on its own seed and the draft length alone, not on
            its batch, up to rounding; with "auto" it depends on measured times.
        on_step: called with every round, for progress bars.

    Returns:
        `images`, a list of PIL pictures; `samples` float [B, C, H, W]; `lengths`; `stats`. A target call is one evaluation of the
        network, whatever its batch.

    Raises:
        ValueError: for an invalid argument; the message says what to give instead.
        FloatingPointError: when the network's output is not finite, naming the picture and the step.
    """
    if not 1 <= count <= MOST_AT_ONCE:
        raise ValueError(f"count is {count}: ask for 1 to {MOST_AT_ONCE} pictures at once")
    target = DiffusionTarget.of(pipeline, steps, eta)
    if siblings < 1:
        raise ValueError(f"siblings is {siblings}: at least 1 state is drafted at every step (1 is a chain)")
    shape = Chain() if siblings == 1 else Comb(siblings, draw_with_replacement)
    proposer, rule = _drafter(drafter, target, eta, shape), _rule(accept or ("token" if siblings == 1 else "d-grs"))
    control = control_of(draft_length, proposer, auto=BreakEven, thompson=False, unit="states")
    return chains(target, proposer, rule, count, control=control, seed=seed, on_step=on_step)


@torch.no_grad()
def chains(
    target: DiffusionTarget,
    proposer: Drafter,
    rule: AcceptRule,
    count: int,
    *,
    control: Control,
    seed: int | Sequence[int] = 0,
    on_step: OnStep = None,
) -> Denoised:
    """As `denoise`, for a target of one's own: a network and a noise schedule without a pipeline.

    Args:
        target: the target.
        proposer: the drafter.
        rule: the accept rule.
        count: number of pictures.
        control: chooses the draft length.
        seed: an int (picture r gets seed + r) or one per picture.
        on_step: called with every round.

    Returns:
        The pictures, as `denoise` returns them.
    """
    device = target.noise_schedule.std.device
    noise = Noise.from_seed(seed, count, device)
    start = noise.value(torch.full((count, 1), _FIRST, device=device)).normal(target.shape.numel())[:, 0]
    opened, stopping = OpenTarget(*target.begin(start)), Chains(count, target.noise_schedule.steps, device=device)
    stats = Stats(exactness=rule.exactness)
    for _ in run(opened, proposer, rule, start, stopping=stopping, noise=noise, control=control, stats=stats, on_step=on_step):
        pass
    last = torch.stack([states[-1] for states in stopping.outputs])
    lengths = torch.full((count,), target.noise_schedule.steps, device=device)
    return Denoised(last.to(target.net.dtype).unflatten(-1, target.shape), lengths, _counted(stats, opened.session))


def _counted(stats: Stats, session: DiffusionSession) -> Stats:
    """Return `stats` with the network calls that scored no state."""
    rows = sum(int(asked) for asked in session.asked)
    return replace(stats, target_calls=stats.target_calls + len(session.asked), row_calls=stats.row_calls + rows)


def _drafter(drafter: Any, target: DiffusionTarget, eta: float | None, shape: Shape) -> Drafter:
    if drafter is None:
        return NoDraft()
    if drafter == "frozen":
        return FrozenTarget(shape=shape)
    if hasattr(drafter, "begin"):
        return drafter
    if hasattr(drafter, "unet") and hasattr(drafter, "scheduler"):
        own = DiffusionTarget.of(drafter, target.noise_schedule.steps, eta)
        target.noise_schedule.check_shared(own.noise_schedule, "speculation")
        own = replace(own, noise_schedule=replace(own.noise_schedule, std=target.noise_schedule.std))  # reflection needs the same noise
    elif hasattr(drafter, "config") and callable(drafter):
        own = replace(target, net=drafter, shape=sample_shape(drafter))
    else:
        raise ValueError(f"drafter is {shown(drafter)}: give None, 'frozen', a network, a pipeline or a Drafter")
    if own.shape != target.shape:
        raise ValueError(f"the drafter's samples are {tuple(own.shape)}, but the target's {tuple(target.shape)}: take one of the same size")
    return ModelDrafter(own, shape)


def _rule(accept: str | AcceptRule) -> AcceptRule:
    if isinstance(accept, str) and accept not in RULES:
        raise unknown("accept rule for diffusion chains", accept, RULES)
    return RULES[accept] if isinstance(accept, str) else accept
