"""Where a chain of draft tokens ends within a round: by the drafter's confidence, or by a learned estimate of acceptance.

`before` sees the scores of the next draft token and may end the chain before it is drawn. `after` sees the drawn token too, and may
only end the chain behind it. Dropping a draft token because of its own value would change the distribution of those that remain, which
must be q.
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

from mmspec.core.records import Scored
from mmspec.utils.weights import fill, read_mapping, read_tensors


class Stop(Protocol):
    """Ends a row's chain. `reads` are the hidden states of the drafter that it needs; see `mmspec.models.stack`."""

    @property
    def reads(self) -> tuple[int, ...]:
        """Hidden states of the drafter that the stop reads."""
        ...

    def before(self, scored: Scored, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """Decide whether chains end before the next draft token is drawn.

        Args:
            scored: the drafter's scores; the last distribution is the next draft token's.
            reach: [B] as `after` takes it.

        Returns:
            [B] bool, True where the chain ends (None: nowhere), and the new `reach`.
        """
        ...

    def after(self, scored: Scored, value: Tensor, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """Decide whether chains end behind the draft token just drawn.

        Args:
            scored: the drafter's scores; the last distribution is the one `value` was drawn from.
            value: [B, 1] the draft token.
            reach: [B] state of the stop in this round, 1 at first: the estimated probability that all draft tokens so far are accepted.

        Returns:
            [B] bool, True where the chain ends (None: nowhere), and the new `reach`.
        """
        ...


@dataclass(frozen=True)
class Confidence:
    """Stop where the drafter's largest probability falls below `threshold` (BiLD, Kim et al. 2023; Kangaroo, Liu et al. 2024).

    Args:
        threshold: probability between 0 and 1.

    Raises:
        ValueError: for a threshold out of range.
    """

    threshold: float = 0.4
    reads = ()

    def __post_init__(self):
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, (int, float)) or not 0 <= self.threshold <= 1:
            raise ValueError(f"the threshold of stop_below is {self.threshold!r}: give a probability between 0 and 1")

    def before(self, scored: Scored, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.before`."""
        distribution = scored.p.last(1)
        return distribution.prob(distribution.mode())[:, 0] < self.threshold, reach

    def after(self, scored: Scored, value: Tensor, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.after`."""
        return None, reach


@dataclass(frozen=True)
class Survival:
    """Stop where the drafter's own estimate that all draft tokens up to the next are accepted falls below `threshold` (DSpark).

    For drafters that return `Scored.confidence`. The estimate of a draft token does not depend on the token.

    Args:
        threshold: probability between 0 and 1.

    Raises:
        ValueError: for a threshold out of range.
    """

    threshold: float = 0.4
    reads = ()

    def __post_init__(self):
        Confidence(self.threshold)

    def before(self, scored: Scored, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.before`. ValueError for a drafter that estimates no acceptance."""
        if scored.confidence is None:
            raise ValueError("the drafter estimates no acceptance: Survival needs one with a confidence head, such as dspark")
        reach = reach * scored.confidence[:, -1]
        return reach < self.threshold, reach

    def after(self, scored: Scored, value: Tensor, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.after`."""
        return None, reach


@dataclass(frozen=True)
class Learned:
    """Stop where the estimated probability of a rejection, 1 - prod_j f(x_j), exceeds `risk` (SpecDec++, Huang et al. 2024).

    At least one draft token is always made.

    Args:
        head: the acceptance head f, on the drafter's device.
        risk: probability between 0 and 1.
        states: hidden states the head was trained on, numbered as in `mmspec.models.stack`.

    Raises:
        ValueError: for a risk out of range.
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

    def before(self, scored: Scored, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.before`."""
        return None, reach

    @torch.no_grad()
    def after(self, scored: Scored, value: Tensor, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.after`."""
        if scored.hidden is None:
            raise ValueError("the drafter returns no hidden states: a learned stop needs a ModelDrafter over a transformers model")
        log_q = scored.p.last(1).log_prob(value)[:, 0]
        reach = reach * self.head(scored.hidden[:, -1], log_q).sigmoid().to(reach.dtype)
        return 1 - reach > self.risk, reach


class AcceptanceHead(nn.Module):
    """Logit of the probability that the target accepts a draft token x, given that it accepted those before it (SpecDec++).

    Reads the drafter's hidden state before x [..., hidden] and log q(x), so that x need not be run before it is judged.

    Args:
        hidden: width of the drafter's hidden states.
        width: width of the head's layers; `hidden` by default.
        blocks: number of residual blocks.

    Raises:
        ValueError: for sizes out of range.
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
        """Load the head saved in `folder`, in eval mode.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if its files are broken.
        """
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
    """Weighted binary cross-entropy of SpecDec++.

    Args:
        logits: [...] the head's logits.
        accepted: [...] whether the target accepted, or the probability min(1, p(x) / q(x)) that it does.
        real: [...] bool, the draft tokens that count; all by default.
        rejected_weight: weight of a rejected draft token. Rejections are rarer, and one draft token too many costs more than one too few.

    Returns:
        The mean loss, a scalar.
    """
    accepted = accepted.to(logits.dtype)
    loss = -accepted * logsigmoid(logits) - rejected_weight * (1 - accepted) * logsigmoid(-logits)
    return loss.mean() if real is None else (loss * real).sum() / real.sum().clamp(min=1)
