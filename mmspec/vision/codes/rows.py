"""Pictures decoded several rows at a time: a row starts before the one above it is finished, so that contexts are incomplete.

This is lossy, and how lossy can be measured where the distribution each value was drawn from is at hand. Values to the right of a cell's
window never depend on it, so given everything before it in raster order the cell still follows that distribution q. One plain forward over
the finished picture gives p, what the target says with nothing missing, and (1 - p(x)/q(x))+ is an unbiased estimate of TV(p, q): as for
any rule, the sum over the cells bounds the total variation of the whole picture in the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import OnStep, run
from mmspec.core.noise import Noise
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.protocols import Drafter, Target
from mmspec.core.records import Step
from mmspec.core.result import Generation
from mmspec.core.rules.base import LOSSY, TOKEN_EXACT, UNMETERED, Accept
from mmspec.core.stats import Stats
from mmspec.models.guidance import Guided, Pairs
from mmspec.models.target import HFTarget
from mmspec.vision.codes.row_streams import RasterRows, RowStreamStopping
from mmspec.vision.codes.row_target import RowTarget
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.prompts import Prompt

_PIECE = 128  # values a metering forward takes at once, which bounds the logits it makes


@dataclass(frozen=True)
class RowMethod:
    """How the lines of one raster are decoded: who drafts, who judges, and when lines may go on (see `RowStreamStopping`).

    `lanes` lines are under way at most. `drawn` says that every value is a draw from the distribution after its line's pending token: such
    a generation can be metered.
    """

    start: int
    lanes: int
    drafter: Drafter
    accept: Accept
    window: int = 1
    drawn: bool = False


class RowPlan(Protocol):
    """A published way of decoding by rows."""

    @property
    def meter(self) -> bool:
        """Whether to measure the drift, where that can be done."""
        ...

    def way(self, lines: RasterRows) -> RowMethod:
        """Return how pictures with these rows are decoded."""
        ...


@dataclass
class RowStats(Stats):
    """Counts of a generation by rows. A call is one picture's share of a forward; chains are judged lane by lane."""

    lanes: int = 1

    def add(self, step: Step) -> None:
        before = self.row_calls
        super().add(step)
        running = [not ended or bool(values) for ended, values in zip(step.committed.ended, step.committed.values, strict=True)]
        self.row_calls = before + sum(any(running[row : row + self.lanes]) for row in range(0, len(running), self.lanes))


@torch.no_grad()
def generate_rows(
    model: ImageModel,
    prompt: Prompt,
    *,
    plan: RowPlan,
    processors: Pipeline,
    guidance: float | Sequence[float] | None = None,
    noise: Noise,
    on_step: OnStep = None,
) -> Generation:
    """Pictures by rows, as `plan` says: sequences [B, raster.length], controls included.

    `prompt` holds 2B rows when there is `guidance`, one number or one a picture. `processors` go over mixed logits, the raster's
    grammar among them. `noise` has a seed a picture and is keyed by raster position, so a picture does not depend on its batch and
    is that of plain decoding where nothing is left out. `on_step` sees the engine's rounds, whose rows are lanes.

    Raises ValueError for rasters with several controls between rows and for noise or guidance of another size than the prompts.
    """
    pictures, device = _pictures(prompt, noise, guidance), prompt.embeds.device
    lines = RasterRows(model.raster)
    way = plan.way(lines)
    whole = way.start >= model.raster.width  # nothing is missing from any context
    metered = plan.meter and way.drawn and not whole
    stopping = RowStreamStopping(lines, pictures, way.lanes, way.start, way.window, device, metered)
    processors = processors if guidance is None else Guided(processors.steps, guidance)
    runs = HFTarget(model.model, model, processors, reserve=model.raster.length)  # pyright: ignore[reportArgumentType]
    target = RowTarget(runs, stopping.pending)
    lanes = replace(noise, seeds=noise.seeds.repeat_interleave(way.lanes))
    exactness = TOKEN_EXACT if whole and way.drawn else LOSSY if metered else UNMETERED
    stats = RowStats(exactness=exactness, lanes=way.lanes)
    control, counted = Fixed(way.window - 1), {"stats": stats, "on_step": on_step}
    for _ in run(target, way.drafter, way.accept, prompt, stopping=stopping, noise=lanes, control=control, **counted):
        pass
    stats.tokens += pictures * lines.free
    sequences = stopping.board[:, :-1]
    if stopping.log_q is not None:
        began = perf_counter()
        stats.drift = float(drift(runs if guidance is None else Pairs(runs), prompt, sequences, stopping.log_q[:, :-1]).sum())
        spent = perf_counter() - began
        stats.seconds["other"] += spent
        stats.seconds["total"] += spent
    return Generation(sequences, torch.full((pictures,), model.raster.length, device=device), stats)


def drift(target: Target, prompt: Prompt, sequences: Tensor, log_q: Tensor) -> Tensor:
    """[B] the estimated total variation of finished `sequences` [B, T], whose values were drawn with log-probability `log_q` [B, T]
    (0 where they were forced)."""
    session, draft = target.begin(prompt)
    spent = torch.zeros(len(sequences), device=sequences.device)
    budget = torch.full_like(sequences[:, 0], sequences.shape[1])
    for first in range(0, sequences.shape[1], _PIECE):  # the values up to `first` are in the draft; score what comes after them
        values, drawn = (table[:, first : first + _PIECE] for table in (sequences, log_q))
        draft = draft.extend_chain(values[:, :-1], budget)
        log_p = session.score(draft).p.log_prob(values)
        spent += (1 - (log_p - drawn).exp()).clamp(min=0).sum(1)
        draft = draft.extend_chain(values[:, -1:], budget)
    return spent


def _pictures(prompt: Prompt, noise: Noise, guidance: float | Sequence[float] | None) -> int:
    rows, pictures = len(prompt.mask), len(noise.seeds)
    if rows != pictures * (1 if guidance is None else 2):
        pairs = "rows" if guidance is None else "rows of prompts with guidance"
        raise ValueError(f"{rows} {pairs} for {pictures} seeds: give one seed a picture, and both halves of the pairs with guidance")
    if isinstance(guidance, Sequence) and len(guidance) != pictures:
        raise ValueError(f"{len(guidance)} guidance scales for {pictures} pictures: give one number, or one a picture")
    return pictures
