"""The target as its own drafter, with parts of its layers skipped (Draft & Verify, Zhang et al. 2023).

The draft uses the target's weights and cache and needs no training. The skipped parts are given, chosen by how little a layer changes its
input (`SimilarLayers`), or searched while generating (`swift.Swift`).
"""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mmspec.core.records import Draft, Scored, Verdict
from mmspec.drafters.guided import ViewGuide
from mmspec.models.module_copy import own_copy
from mmspec.models.partial_forward import PartialForward, leaving, refuse_replay
from mmspec.models.skipped_parts import Skips
from mmspec.models.stack import stack
from mmspec.models.target import HFSession
from mmspec.utils.devices import to_device

Part = tuple[str, int]
"""What may be left out: ("layers" | "attention" | "mlp", the layer's number)."""
Parts = frozenset[Part]


@dataclass(frozen=True)
class SkipLayers:
    """Skips fixed parts of the target's layers (Draft & Verify, Zhang et al. 2023).

    Without any of the three, attention and MLP of every other layer are skipped. `search_parts` finds good sets offline.

    Args:
        layers: numbers of the layers skipped as a whole, from 0.
        attention: numbers of the layers whose attention is skipped.
        mlp: numbers of the layers whose MLP is skipped.

    Raises:
        ValueError: when a generation begins, for layers the target does not have or parts that cannot be skipped.
    """

    layers: tuple[int, ...] | None = None
    attention: tuple[int, ...] | None = None
    mlp: tuple[int, ...] | None = None

    @staticmethod
    def of(parts: Iterable[Part]) -> "SkipLayers":
        """Return the drafter that skips `parts`."""
        chosen = sorted(parts)
        return SkipLayers(*(tuple(index for kind, index in chosen if kind == name) for name in ("layers", "attention", "mlp")))

    def guide(self, session: HFSession) -> ViewGuide:
        """Return the guide of one generation on the target session `session`."""
        if self.layers is None and self.attention is None and self.mlp is None:
            model = session.target.model
            return ViewGuide(PartialForward(session, skips_of([every_other(sublayers(model), 0.5)], session)))
        return ViewGuide(PartialForward(session, Skips(*(dict.fromkeys(part or ()) for part in (self.layers, self.attention, self.mlp)))))


@dataclass(frozen=True)
class SimilarLayers:
    """Skips the layers whose output is most similar to their input (Draft on the Fly, Metel et al. 2024).

    Similarity is the mean cosine similarity over the newest values of the prompt. The last layer is never skipped. Every row of a batch
    chooses its own layers; time is saved where all rows skip a layer.

    Args:
        share: share of the layers that are skipped.
        window: number of values compared.

    Raises:
        ValueError: for values out of range.
    """

    share: float = 0.4
    window: int = 64

    def __post_init__(self):
        check_share(self.share, self.window)

    def guide(self, session: HFSession) -> "SimilarGuide":
        """Return the guide of one generation on the target session `session`."""
        return SimilarGuide(self, session)


class SimilarGuide(ViewGuide):
    """Guide that chooses the layers to skip after the first round."""

    def __init__(self, plan: SimilarLayers, session: HFSession):
        refuse_replay(session)
        super().__init__(PartialForward(session))
        self.plan, self.session = plan, session
        self.chosen: list[Parts] = []  # what each row skips

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """Choose the layers after the first round, which ran the prompt. One host synchronisation."""
        if self.plan is None:
            return
        likeness = self._likeness().tolist()
        count = min(round(self.plan.share * len(likeness[0])), len(likeness[0]) - 1)
        rows = [sorted(range(len(row) - 1), key=lambda index, row=row: -row[index])[:count] for row in likeness]
        self.chosen, self.plan = [frozenset(("layers", index) for index in row) for row in rows], None
        self.view.skip(skips_of(self.chosen, self.session))

    def take_rows(self, rows: Sequence[int]) -> None:
        """Keep some rows; see `core.rows.changes.ChangesRows`."""
        self.chosen = [self.chosen[row] for row in rows]
        self.view.skip(skips_of(self.chosen, self.session))

    def join_rows(self, other: "SimilarGuide") -> None:
        """Append the rows of another guide; see `core.rows.changes.ChangesRows`."""
        self.chosen = [*self.chosen, *other.chosen]
        self.view.skip(skips_of(self.chosen, self.session))

    def _likeness(self) -> Tensor:
        """[B, L] mean cosine similarity of each layer's input and output at the newest committed values."""
        model = own_copy(self.session.target.model)
        layers = range(1, len(stack(model)) + 1)
        with ExitStack() as taps:
            found = [taps.enter_context(leaving(model, number)) for number in layers]
            entered: list[Tensor] = []
            handle = stack(model)[0].register_forward_pre_hook(
                lambda module, args, kwargs: entered.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
            )
            taps.callback(handle.remove)
            replay = self.view.replay(self.plan.window)
        states = [entered[0], *(state[0] for state in found)]
        like = [torch.cosine_similarity(before.float(), after.float(), dim=-1) for before, after in pairwise(states)]
        return torch.stack([(cosine * replay.real).sum(1) / replay.real.sum(1).clamp_min(1) for cosine in like], 1)


def sublayers(model: Any) -> list[Part]:
    """Return the parts a search chooses from: attention and MLP of all layers but the first and the last, or of all where there are only
    two.
    """
    count = len(stack(model))
    return [(kind, index) for index in (range(1, count - 1) if count > 2 else range(count)) for kind in ("attention", "mlp")]


def every_other(parts: Sequence[Part], share: float) -> Parts:
    """Return `share` of `parts`, evenly spread: the start of a search."""
    count = min(max(1, round(share * len(parts))), len(parts))
    return frozenset(parts[int((index + 0.5) * len(parts) / count)] for index in range(count))


def skips_of(rows: Sequence[Parts], session: HFSession) -> Skips:
    """Return what every row skips; one set holds for all rows. A part that all rows skip is not run."""
    found: dict[str, dict[int, Tensor | None]] = {"layers": {}, "attention": {}, "mlp": {}}
    for kind, index in sorted(frozenset().union(*rows)):
        inside = [(kind, index) in row for row in rows]
        found[kind][index] = None if all(inside) else to_device(inside, session.lengths.device)
    return Skips(**found)


def check_share(share: float, window: int) -> None:
    """Raise ValueError for a share or window out of range."""
    if not 0 < share < 1:
        raise ValueError(f"share is {share}: leave out more than 0 and less than 1 of the layers, such as 0.45")
    if window < 1:
        raise ValueError(f"window is {window}: look at 1 value or more")
