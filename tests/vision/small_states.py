"""Small targets of continuous tokens with state drafts: untrained, or taught for a second."""

from functools import cache
from typing import Any

import torch

from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.train.continuous.states import distillation
from mmspec.train.continuous.targets import drawn_table
from mmspec.vision.continuous.ar import scheduler
from mmspec.vision.continuous.methods import ContinuousPictures
from mmspec.vision.continuous.state_draft import StateDraft
from tests.vision.pushed import small

SIZES: dict[str, Any] = {"head_steps": 8, "sigma_out": 0.2, "grid": 5, "num_hidden_layers": 3}


def untaught(head: str = "diffusion", own_head: bool = False) -> StateDraft:
    torch.manual_seed(0)
    return StateDraft.beside(small(head, **SIZES), own_head, head_width=16).eval()


@cache
def taught(head: str = "diffusion", own_head: bool = False, steps: int = 60) -> tuple[ContinuousPictures, dict[str, float]]:
    """A target with a state draft, and what the draft's training measured at its end."""
    target, draft = small(head, **SIZES), untaught(head, own_head)
    chain = NoiseSchedule.of(scheduler(), 8, 0.2) if head == "diffusion" else None
    example = distillation(draft.train(), target.requires_grad_(False), [] if chain is None else [chain])
    table, adam = drawn_table(target, None, 64, chain), torch.optim.AdamW(draft.parameters(), 1e-2)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        tokens, classes = table.some(16, generator)
        loss = example(classes, tokens, generator)
        adam.zero_grad()
        loss.backward()
        adam.step()
    draft.eval()
    facts = example.facts(table.classes, table.mean, chain, torch.Generator().manual_seed(0))
    return ContinuousPictures(target, drafter=draft), facts
