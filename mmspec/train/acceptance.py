"""Training of SpecDec++'s acceptance head (Huang et al. 2024) on a target's verdicts on draft tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmspec.core.records import Scored, Step
from mmspec.drafters.stops import AcceptanceHead, acceptance_loss


@dataclass
class Judgements:
    """Every judged draft token of a generation: the drafter's hidden state before it, its log q, and whether the target accepted it.

    Use one object as the chain's `stop`, which never ends it, and as `on_step`. One transfer to the host a round. `rows` says of which row
    each judgement is, counted from `first`: set it to the number of the next generation's first prompt.
    """

    states: tuple[int, ...] = (-1,)
    hidden: list[Tensor] = field(default_factory=list)  # [F] each
    log_q: list[float] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    first: int = 0
    _round: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def reads(self) -> tuple[int, ...]:
        """The hidden states that this object needs."""
        return self.states

    def before(self, scored: Scored, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.before`."""
        return None, reach

    def after(self, scored: Scored, value: Tensor, reach: Tensor) -> tuple[Tensor | None, Tensor]:
        """See `Stop.after`."""
        if scored.hidden is None:
            raise ValueError("the drafter returns no hidden states: collect judgements of a model or a trained drafter")
        self._round.append((scored.hidden[:, -1].float().cpu(), scored.p.last(1).log_prob(value)[:, 0].float().cpu()))
        return None, reach

    def __call__(self, step: Step) -> None:
        """Record which draft tokens of a round were accepted."""
        for place, (hidden, log_q) in enumerate(self._round):
            for row, judged in enumerate(step.committed.judged):
                if place < judged:
                    self.hidden.append(hidden[row])
                    self.log_q.append(float(log_q[row]))
                    self.accepted.append(place < step.committed.accepted[row])
                    self.rows.append(self.first + row)
        self._round = []

    def __len__(self) -> int:
        return len(self.accepted)

    def draw(self, turn: int, rows: int, among: Sequence[int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return `rows` judgements, `among` those of the given numbers: hidden [rows, F], log q [rows], accepted [rows].

        A function of `turn` alone.
        """
        numbers = range(len(self)) if among is None else among
        chosen = torch.randint(len(numbers), (rows,), generator=torch.Generator().manual_seed(turn)).tolist()
        return self.at([numbers[place] for place in chosen])

    def at(self, chosen: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the judgements of the given numbers; see `draw`."""
        hidden = torch.stack([self.hidden[i] for i in chosen])
        return hidden, torch.tensor([self.log_q[i] for i in chosen]), torch.tensor([self.accepted[i] for i in chosen])


def head_loss(head: AcceptanceHead, batch: tuple[Tensor, Tensor, Tensor], rejected_weight: float = 6.0) -> Tensor:
    """Return the weighted cross-entropy of `head` on judgements from `Judgements.draw`; the loss for `fit`."""
    hidden, log_q, accepted = batch
    return acceptance_loss(head(hidden, log_q), accepted, rejected_weight=rejected_weight)


@torch.no_grad()
def separation(head: AcceptanceHead, batch: tuple[Tensor, Tensor, Tensor]) -> float:
    """Return the area under the ROC curve of `head`; 0.5 is chance."""
    hidden, log_q, accepted = batch
    logits = head(hidden, log_q)
    gaps = logits[accepted][:, None] - logits[~accepted][None, :]
    return ((gaps > 0).float() + 0.5 * (gaps == 0).float()).mean().item()
