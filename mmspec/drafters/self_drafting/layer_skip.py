"""The target itself as drafter, with parts of its layers left out (Draft & Verify, Zhang et al. 2023).

Nothing is trained and nothing is stored twice: the draft runs on the target's weights and cache. Which parts to leave out may be
given, taken from how little a layer changes its input (`SimilarLayers`), or searched while generating (`swift.Swift`).
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
from mmspec.models.partial_forward import PartialForward, leaving
from mmspec.models.skipped_parts import Skips
from mmspec.models.stack import stack
from mmspec.models.target import HFSession

Part = tuple[str, int]
"""What may be left out: ("layers" | "attention" | "mlp", the layer's number)."""
Parts = frozenset[Part]


@dataclass(frozen=True)
class SkipLayers:
    """Leaves out a fixed set: whole `layers`, and the `attention` or `mlp` of others, each by the layers' numbers from 0.

    Without any of the three, the attention and MLP of every other layer. `search_parts` finds good sets offline. ValueError, when a
    generation begins, for layers the target does not have or parts that cannot be left out of it.
    """

    layers: tuple[int, ...] | None = None
    attention: tuple[int, ...] | None = None
    mlp: tuple[int, ...] | None = None

    @staticmethod
    def of(parts: Iterable[Part]) -> "SkipLayers":
        """As `parts` name it."""
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
    """Leaves out the layers whose output is most like their input (Draft on the Fly, Metel et al. 2024).

    Likeness is the mean cosine similarity over the last `window` values of the prompt; `share` of the layers are left out, never the
    last one. Every row of a batch chooses for itself; a layer is spared where all rows leave it out.
    """

    share: float = 0.4
    window: int = 64

    def __post_init__(self):
        check_share(self.share, self.window)

    def guide(self, session: HFSession) -> "SimilarGuide":
        """Return the guide of one generation on the target session `session`."""
        return SimilarGuide(self, session)


class SimilarGuide(ViewGuide):
    def __init__(self, plan: SimilarLayers, session: HFSession):
        super().__init__(PartialForward(session))
        self.plan, self.session = plan, session

    def observe(self, draft: Draft, scored: Scored, verdict: Verdict) -> None:
        """After the first round, which ran the prompt, choose. Looks at the device once."""
        if self.plan is None:
            return
        likeness = self._likeness().tolist()
        count = min(round(self.plan.share * len(likeness[0])), len(likeness[0]) - 1)
        rows = [sorted(range(len(row) - 1), key=lambda index, row=row: -row[index])[:count] for row in likeness]
        self.view.skip(skips_of([frozenset(("layers", index) for index in row) for row in rows], self.session))
        self.plan = None

    def _likeness(self) -> Tensor:
        """[B, L] mean cosine similarity of what enters and what leaves each layer, at the newest committed values."""
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
    """The parts a search chooses from: attention and MLP of all layers but the first and the last, or of all where there are but two."""
    count = len(stack(model))
    return [(kind, index) for index in (range(1, count - 1) if count > 2 else range(count)) for kind in ("attention", "mlp")]


def every_other(parts: Sequence[Part], share: float) -> Parts:
    """`share` of `parts`, evenly spread: where searches start."""
    count = min(max(1, round(share * len(parts))), len(parts))
    return frozenset(parts[int((index + 0.5) * len(parts) / count)] for index in range(count))


def skips_of(rows: Sequence[Parts], session: HFSession) -> Skips:
    """What every row leaves out. One set stands for all rows. A part that all rows leave out is not run at all."""
    found: dict[str, dict[int, Tensor | None]] = {"layers": {}, "attention": {}, "mlp": {}}
    for kind, index in sorted(frozenset().union(*rows)):
        inside = [(kind, index) in row for row in rows]
        found[kind][index] = None if all(inside) else torch.tensor(inside, device=session.lengths.device)
    return Skips(**found)


def check_share(share: float, window: int) -> None:
    if not 0 < share < 1:
        raise ValueError(f"share is {share}: leave out more than 0 and less than 1 of the layers, such as 0.45")
    if window < 1:
        raise ValueError(f"window is {window}: look at 1 value or more")
