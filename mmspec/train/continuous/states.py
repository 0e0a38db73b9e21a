"""Distilling state drafts: one layer that reads the target's last hidden states, over drafts of several tokens."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.train.continuous.drafts import MixtureExample, PathExample
from mmspec.vision.continuous.state_draft import StateDraft


class StateExample(nn.Module):
    """A state draft's distillation: the loss of `PathExample` or `MixtureExample` over tokens of drafts of one to `levels` tokens, and the
    distance of the predicted states from the target's.

    Args:
        judged: the loss of tokens, of the draft and its target.
        levels: tokens a draft.
        tokens: tokens a step whose chains are drawn, a random part of all of them.
        weight: of the distance of the states.
    """

    def __init__(self, judged: PathExample | MixtureExample, levels: int = 3, tokens: int = 128, weight: float = 1.0):
        super().__init__()
        self.judged, self.levels, self.tokens, self.weight = judged, levels, tokens, weight

    def forward(self, classes: Tensor, seen: Tensor, generator: torch.Generator, share: float = 0.0) -> Tensor:
        """Return the distillation loss, a scalar. `share` is not read: states are the target's behind `seen`."""
        theirs, own = (torch.cat([each.flatten(0, 1) for each in parts]) for parts in zip(*self.predicted(classes, seen), strict=True))
        pick = torch.randperm(len(own), generator=generator)[: self.tokens]
        judged: Any = self.judged
        loss = judged.loss_of(theirs[pick], own[pick], judged.chain(generator), generator)
        return loss + self.weight * nn.functional.smooth_l1_loss(own, theirs)

    def predicted(self, classes: Tensor, seen: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the target's states and the predicted ones [B, T - 1 - k, D] for every level k, behind tokens `seen` [B, T, d]."""
        target: Any = self.judged.frozen[0]
        with torch.no_grad():
            states = target.states(classes, seen)
            cells = torch.arange(seen.shape[1] - 1, device=seen.device).expand(len(seen), -1)
            embeds = target.embed(seen[:, :-1], cells)
        found = self.judged.draft.unrolled(states[:, :-1], embeds, cells, self.levels)
        return [(states[:, level + 1 :], each) for level, each in enumerate(found)]

    @torch.no_grad()
    def facts(self, classes: Tensor, seen: Tensor, noise_schedule: NoiseSchedule | None, generator: torch.Generator) -> dict[str, float]:
        """What `PathExample.facts` or `MixtureExample.facts` tells, for each place of a draft, from 1 on."""
        found, judged = {}, self.judged
        for level, parts in enumerate(self.predicted(classes, seen)):
            told_p, told_q = (each.flatten(0, 1) for each in parts)
            facts: dict[str, float] = judged.facts_of(told_p, told_q, noise_schedule, generator)  # type: ignore[arg-type]
            found |= {f"{name}, token {level + 1}": value for name, value in facts.items()}
        return found


def distillation(draft: Any, target: Any, noise_schedules: Sequence[NoiseSchedule], every: int = 1) -> nn.Module:
    """Return the loss of a draft of any kind.

    Args:
        draft: a smaller model, or a `StateDraft`.
        target: its target.
        noise_schedules: chains of a diffusion head.
        every: a smaller model's head runs at every so many states.

    Returns:
        A module that is called with classes, contexts, a generator and a share of drafted tokens; `facts` measures the draft.
    """
    mixture = target.config.head == "mixture"
    judged = MixtureExample(draft, target) if mixture else PathExample(draft, target, noise_schedules, every=every)
    return StateExample(judged) if isinstance(draft, StateDraft) else judged
