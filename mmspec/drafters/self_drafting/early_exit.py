"""Early exit: the target's first layers draft, and the target goes on from where they stopped (LayerSkip, Elhoushi et al. 2024).

The shallow run shares the target's cache and hands its exit states over: every layer runs once for every node.
"""

from dataclasses import dataclass

from torch import Tensor

from mmspec.core.records import Draft
from mmspec.drafters.guided import ViewGuide
from mmspec.models.partial_forward import ShallowView
from mmspec.models.stack import stack
from mmspec.models.target import HFSession


@dataclass(frozen=True)
class EarlyExit:
    """Drafts with the target's first `layer` layers (None: half of them), its final norm and its head.

    The target need not be trained for it, but drafts well only if it is: with an early-exit loss, as LayerSkip's checkpoints, or with
    an adapter (`adapter.Adapter`). ValueError when the target has fewer layers.
    """

    layer: int | None = None

    def guide(self, session: HFSession) -> "ExitGuide":
        """Return the guide of one generation on the target session `session`."""
        half = -(-len(stack(session.target.model)) // 2)
        return ExitGuide(ShallowView(session, half if self.layer is None else self.layer))


class ExitGuide(ViewGuide):
    """One generation's early exit, which hands over what it has run."""

    view: ShallowView

    def share(self, draft: Draft, origin: Tensor) -> None:
        """Hand this draft's partial forward to the target; see `Sharing.share`."""
        self.view.hand_over(draft, origin)
