"""Where a chain of draft tokens ends within a round: by the drafter's confidence, or by a learned estimate of acceptance.

A stop is asked twice a draft token. `before` sees the distribution the draft token will be drawn from and may keep it from being made.
`after` sees the draft token too and decides about the draft tokens behind it only. That split is what keeps every rule exact: were a draft
token dropped because of its own value, the draft tokens that remain would no longer follow q.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, silu

from mmspec.core.distributions.categorical import Categorical
from mmspec.core.records import Scored
from mmspec.utils.weights import fill, read_mapping, read_tensors


class Stop(Protocol):
    """Ends a row's chain; rows that have ended hold PAD. `reads` are the hidden states of the drafter it looks at, see `models.stack`."""

    @property
    def reads(self) -> tuple[int, ...]:
        """The hidden states that this object needs."""

    def before(self, distribution: Categorical) -> Tensor | None:
        """[B] bool: end here, without a draft from `distribution` [B, 1, V]? None: never."""
        ...

    def after(self, scored: Scored, value: Tensor, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """Once `value` [B, 1] is drawn from the last distribution of `scored`: [B] bool, end behind it (None: never), and the new `reach`.

        `reach` [B] is the stop's memory of the round, 1 at first: the chance it gives the draft tokens made so far to be accepted.
        """
        ...


@dataclass(frozen=True)
class Confidence:
    """Ends where the drafter's best probability falls below `threshold` (BiLD, Kim et al. 2023; Kangaroo, Liu et al. 2024)."""

    threshold: float = 0.4
    reads = ()

    def __post_init__(self):
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, (int, float)) or not 0 <= self.threshold <= 1:
            raise ValueError(f"the threshold of stop_below is {self.threshold!r}: give a probability between 0 and 1")

    def before(self, distribution: Categorical) -> Tensor | None:
        """See `Stop.before`."""
        return distribution.prob(distribution.mode())[:, 0] < self.threshold

    def after(self, scored: Scored, value: Tensor, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.after`."""
        return None, reach


@dataclass(frozen=True)
class Learned:
    """SpecDec++ (Huang et al. 2024): ends where the chance that some draft token is rejected, 1 - prod_j f(x_j), exceeds `risk`.

    f is `head`, on the drafter's device; `states` are the hidden states it was trained on. At least one draft token is always made.
    """

    head: "AcceptanceHead"
    risk: float = 0.7
    states: tuple[int, ...] = (-1,)

    def __post_init__(self):
        if not 0 <= self.risk <= 1:
            raise ValueError(f"risk is {self.risk}: give a probability between 0 and 1")

    @property
    def reads(self) -> tuple[int, ...]:
        """The hidden states that this object needs."""
        return self.states

    def before(self, distribution: Categorical) -> Tensor | None:
        """See `Stop.before`."""
        return None

    @torch.no_grad()
    def after(self, scored: Scored, value: Tensor, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.after`."""
        if scored.hidden is None:
            raise ValueError("the drafter hands out no hidden states: a learned stop needs a ModelDrafter over a transformers model")
        log_q = scored.p.last(1).log_prob(value)[:, 0]
        reach = reach * self.head(scored.hidden[:, -1], log_q).sigmoid().to(reach.dtype)
        return 1 - reach > self.risk, reach


class AcceptanceHead(nn.Module):
    """Logit of the chance that the target accepts a draft token x, if it accepted those before it.

    Input is the drafter's hidden state before x, [..., hidden] (the one q comes from), and log q(x): of x itself the head sees no
    more than the drafter's probability, so that no draft token has to be run before it is judged.
    """

    kind = "acceptance head"

    def __init__(self, hidden: int, width: int | None = None, blocks: int = 3):
        super().__init__()
        width = hidden if width is None else width
        if min(hidden, width) < 1 or blocks < 0:
            raise ValueError(f"hidden, width and blocks are {hidden}, {width} and {blocks}: give sizes of at least 1, and 0 or more blocks")
        self.config = {"hidden": hidden, "width": width, "blocks": blocks}
        self.enter = nn.Linear(hidden + 1, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.leave = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, log_q: Tensor) -> Tensor:
        """[...] logits from `hidden` [..., hidden] and `log_q` [...]."""
        if hidden.shape[-1] != self.config["hidden"]:
            raise ValueError(
                f"the acceptance head reads {self.config['hidden']} numbers, but the drafter's states hold {hidden.shape[-1]}: "
                "use the head trained for this drafter and these states"
            )
        seen = torch.cat([hidden.to(self.enter.weight), log_q[..., None].clamp(min=-30).to(self.enter.weight)], -1)
        state = self.enter(seen)
        for block in self.blocks:
            state = state + silu(block(state))
        return self.leave(state)[..., 0]

    def save(self, folder: str | Path) -> None:
        """Write `acceptance.safetensors` and `acceptance.json` into `folder`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights, config = folder / "acceptance.safetensors", folder / "acceptance.json"
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, weights.with_suffix(".tmp"))
        os.replace(weights.with_suffix(".tmp"), weights)
        config.with_suffix(".tmp").write_text(json.dumps(self.config, indent=1) + "\n", encoding="utf-8")
        os.replace(config.with_suffix(".tmp"), config)

    @staticmethod
    def load(folder: str | Path) -> "AcceptanceHead":
        """The head saved in `folder`, in eval mode. FileNotFoundError where there is none, ValueError, in one line, for broken files."""
        folder = Path(folder)
        for name in ("acceptance.json", "acceptance.safetensors"):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{folder} holds no {name}: give the folder that AcceptanceHead.save wrote")
        config = read_mapping(folder / "acceptance.json", "give the folder that AcceptanceHead.save wrote")
        try:
            head = AcceptanceHead(**config)
        except TypeError as error:
            raise ValueError(f"{folder / 'acceptance.json'} describes no acceptance head: {error}") from None
        return fill(head, read_tensors(folder / "acceptance.safetensors"), folder)


def acceptance_loss(logits: Tensor, accepted: Tensor, real: Tensor | None = None, rejected_weight: float = 6.0) -> Tensor:
    """SpecDec++'s weighted binary cross-entropy: the mean over `real` [...] draft tokens, a rejected one counted `rejected_weight` times.

    `accepted` [...] says what the target did, or gives the chance min(1, p(x) / q(x)) that it accepts. Rejections are rarer, and a
    draft token too many costs more than one too few.
    """
    accepted = accepted.to(logits.dtype)
    loss = -accepted * logsigmoid(logits) - rejected_weight * (1 - accepted) * logsigmoid(-logits)
    return loss.mean() if real is None else (loss * real).sum() / real.sum().clamp(min=1)
