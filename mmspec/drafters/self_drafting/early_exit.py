"""Early exit: the target's first layers draft, and the target continues from their output (LayerSkip, Elhoushi et al. 2024).

The partial forward shares the target's cache and hands its exit states over, so every layer runs once for every node.
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
    """Drafts with the target's first layers, its final norm and its head (LayerSkip, Elhoushi et al. 2024).

    Works best with a target trained with an early-exit loss, such as LayerSkip's checkpoints, or with an adapter (`adapter.Adapter`).

    Args:
        layer: number of layers that run; None for half of them.

    Raises:
        ValueError: when a generation begins, if the target has fewer layers.
    """

    layer: int | None = None

    def guide(self, session: HFSession) -> "ExitGuide":
        """Return the guide of one generation on the target session `session`."""
        half = -(-len(stack(session.target.model)) // 2)
        return ExitGuide(ShallowView(session, half if self.layer is None else self.layer))


class ExitGuide(ViewGuide):
    """Guide of an early exit, which hands its exit states over."""

    view: ShallowView

    def share(self, draft: Draft, origin: Tensor) -> None:
        """Hand this draft's partial forward to the target; see `Sharing.share`."""
        self.view.hand_over(draft, origin)
