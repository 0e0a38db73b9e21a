"""A drafter model on another device than the target (Dovetail, Zhang et al. 2024: the drafter on a GPU, the target on the CPU).

The drafter keeps its prompt, cache and noise on its own device. A round moves the pending token and its limits there and the finished
draft back, once, and afterwards the verdict. Noise is computed on both devices; its bits are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.noise import Noise
from mmspec.core.protocols import TargetSession
from mmspec.core.records import Budget, Committed, Draft, Scored, Verdict
from mmspec.drafters.model.drafter import ModelDrafter, ModelSession


@dataclass(frozen=True)
class DistantDrafter(ModelDrafter):
    """Drafts with a model on a device of its own (Dovetail, Zhang et al. 2024).

    Args:
        target, shape, view: as in `ModelDrafter`.
        device: device of the drafter's model.
    """

    device: torch.device | str = "cpu"

    def begin(self, prompt: Any, session: TargetSession) -> ModelSession:
        """Open the drafting session of one generation, with the prompt on the drafter's device."""
        return super().begin(moved(prompt, self.device), session)

    def later(self, prompt: Any, session: TargetSession) -> ModelSession:
        """Open a session whose model runs the prompt only when it first drafts."""
        return super().later(moved(prompt, self.device), session)

    def _session(self, own: Any, after: Any = None) -> "DistantSession":
        return DistantSession(own, self.shape, after, self.device)


class DistantSession(ModelSession):
    """Drafting session of a model on `device`. Drafts go to the device of the pending tokens."""

    def __init__(self, session: Any, shape: Any, after: Any, device: torch.device | str):
        super().__init__(session, shape, after)
        self.device = device
        self._drafted: Draft | None = None  # the draft under way, on the drafter's device
        self._noise: tuple[Noise, Noise] | None = None  # the target's, and the same on the drafter's device

    def propose(self, pending: Draft, budget: Budget, noise: Noise) -> Draft:
        """Return the draft of this round; see `DraftSession.propose`."""
        if self._noise is None or self._noise[0] is not noise:
            self._noise = noise, Noise(noise.seeds.to(self.device), noise.coupled)
        self._drafted = super().propose(moved(pending, self.device), moved(budget, self.device), self._noise[1])
        return pending if self._drafted.size == pending.size else moved(self._drafted, pending.nodes.device)

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict, committed: Committed) -> None:
        """Take in the verdict of the round; see `DraftSession.observe`."""
        own = self._drafted if self._drafted is not None and self._drafted.size == draft.size else moved(draft, self.device)
        if hasattr(self.session, "learn"):
            scored = replace(scored, p=moved(scored.p, self.device))
        keep, accepted = verdict.keep.to(self.device), verdict.accepted.to(self.device)
        super().observe(own, scored, replace(verdict, keep=keep, accepted=accepted), committed)
        self._drafted = None


def moved(value: Any, device: torch.device | str) -> Any:
    """Move the tensors of a record to a device.

    Args:
        value: a tensor; a dataclass, mapping, list or tuple of such; or anything else, which stays as it is.
        device: the device.

    Returns:
        The same with its tensors there; `value` itself where it holds none elsewhere.
    """
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        there: Any = {name: moved(part, device) for name, part in value.items()}
        return value if all(there[name] is part for name, part in value.items()) else there
    if isinstance(value, list | tuple):
        there = [moved(part, device) for part in value]
        return value if all(one is other for one, other in zip(there, value, strict=True)) else type(value)(there)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    own = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
    there = {name: moved(part, device) for name, part in own.items()}
    changed = {name: part for name, part in there.items() if part is not own[name]}
    return replace(value, **changed) if changed else value
