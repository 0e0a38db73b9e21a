"""Early exit: the target's first layers draft, and the target goes on from where they stopped (LayerSkip, Elhoushi et al. 2024).

The shallow run shares the target's cache and hands its exit states over: every layer runs once for every node.
"""

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.hf import HFSession
from mmspec.core.records import Draft, Scored, Verdict
from mmspec.core.side import ShallowView
from mmspec.core.stack import stack


@dataclass(frozen=True)
class EarlyExit:
    """Drafts with the target's first `layer` layers (None: half of them), its final norm and its head.

    The target need not be trained for it, but drafts well only if it is: with an early-exit loss, as LayerSkip's checkpoints, or with
    an adapter (`adapter.Adapter`). ValueError when the target has fewer layers.
    """

    layer: int | None = None

    def guide(self, session: HFSession) -> "ExitGuide":
        half = -(-len(stack(session.target.model)) // 2)
        return ExitGuide(session, half if self.layer is None else self.layer)


class ExitGuide:
    """One generation's early exit. The first round runs the prompt and is not drafted for."""

    most = None

    def __init__(self, session: HFSession, layer: int):
        self.view = ShallowView(session, layer)

    def root(self, frontier: Draft) -> Draft | None:
        return frontier if self.view.ready else None

    def score(self, draft: Draft) -> Scored:
        return self.view.score(draft)

    def share(self, draft: Draft, origin: Tensor) -> None:
        self.view.hand_over(draft, origin)

    def close(self) -> None:
        self.view.close()

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        pass
