"""The rows of a picture decoded side by side: where each starts, when it may continue, and the token before its first cell.

The engine's rows are lanes. A lane decodes one line of the raster after the other: lane k of a picture the lines k, k + lanes, and so on,
as only so many lines are active at once. A line is a grid row's cells; the first one also holds the positions before the picture. Values
have their raster position as output position, so processors, noise and cache slots are independent of lanes.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.noise import Keys, Noise
from mmspec.core.processors.raster import FREE, Raster
from mmspec.core.records import Committed, Draft, Scored, Verdict
from mmspec.core.stopping import DefaultStopping


@dataclass(frozen=True)
class RasterRows:
    """The lines of a raster. Controls between lines or after the last one are known, so they are not decoded."""

    raster: Raster

    def __post_init__(self):
        raster, width = self.raster, self.raster.width
        gaps = {raster.cells[row] - raster.cells[row - width] - width for row in range(width, len(raster.cells), width)}
        if len(gaps) > 1 or not gaps <= {0, 1}:
            found = " or ".join(map(str, sorted(gaps)))
            raise ValueError(f"this raster has {found} controls between its rows: rows are decoded side by side with none or one")

    @property
    def head(self) -> int:
        """Output positions before the first cell."""
        return self.raster.cells[0]

    @property
    def starts(self) -> list[int]:
        """[height] the first output position of each line."""
        return [0, *self.raster.cells[self.raster.width :: self.raster.width]]

    @property
    def lengths(self) -> list[int]:
        """[height] how many values each line decodes."""
        return [self.head + self.raster.width] + [self.raster.width] * (self.raster.height - 1)

    @property
    def ended(self) -> bool:
        """True if a known control, the end of a row, precedes each line but the first."""
        return self.raster.height > 1 and self.raster.forced[self.starts[1] - 1] != FREE

    @property
    def free(self) -> int:
        """Values of a picture that no line decodes."""
        return self.raster.length - sum(self.lengths)


@dataclass(frozen=True, slots=True)
class Front:
    """State of every lane, passed with the pending tokens to drafters and rules."""

    line: Tensor  # [L]
    above: Tensor  # [L] cells committed in the line above; all of them for the first line
    complete: Tensor  # [L] bool: everything before the line is committed, so that nothing is missing from its context
    opening: Tensor  # [L] bool: the line has committed nothing yet
    turn: int  # rounds before this one


@dataclass(frozen=True)
class TurnNoise(Noise):
    """Noise with the round's number in all keys that hold the round's start: lines that commit nothing begin several rounds alike."""

    offset: int = 0

    def draft_token(self, position: Tensor, start: Tensor, branch: int | Tensor = 0) -> Keys:
        """Keys of the draft tokens at `position` [B, N] of the round that began at `start` [B]."""
        return Noise.draft_token(self, position, start + self.offset, branch)

    def accept(self, position: Tensor, start: Tensor) -> Keys:
        """Keys of the acceptance tests at `position` [B, N]."""
        return Noise.accept(self, position, start + self.offset)

    def residual(self, position: Tensor, start: Tensor) -> Keys:
        """Keys of the residual draws at `position` [B, N]."""
        return Noise.residual(self, position, start + self.offset)


class RowStreamStopping(DefaultStopping):
    """A generation of pictures by lines: `lanes` rows of the engine a picture.

    A line starts when the one above has `start` cells, or all. A round commits at most `window` values a line, and never a cell whose
    neighbour above is not committed. A line with nothing to commit rests: it runs its pending token again.

    What stands before a line's first cell is a control the raster knows, or else the last cell of the line above. While that is not
    known, a stand-in is run in its place: the value last committed in the line above. Once it is, a line not opened yet takes it.
    A finished line runs one round more where its last cell has not been run otherwise: over the stand-in, or before a control.
    """

    join_rows = None  # type: ignore[assignment]  # keeps states of the whole batch

    def __init__(self, lines: RasterRows, pictures: int, lanes: int, start: int, window: int, device: torch.device, meter: bool = False):
        super().__init__(pictures * lanes, 1, device=device)
        self.lines, self.pictures, self.lanes, self.begin, self.window = lines, pictures, lanes, start, window
        raster, height = lines.raster, lines.raster.height
        self.remaining = [sum(lines.lengths[lane::lanes]) for lane in range(lanes)] * pictures
        self.starts, self.lengths = torch.tensor(lines.starts, device=device), torch.tensor(lines.lengths, device=device)
        self.head = torch.tensor([lines.head] + [0] * (height - 1), device=device)
        known = torch.tensor([*raster.forced, FREE], device=device).clamp_min(0)
        self.board = known.repeat(pictures, 1)  # [B, T + 1] committed values; the last column takes what is none
        self.log_q = torch.zeros_like(self.board, dtype=torch.float32) if meter else None  # with what probability each was drawn
        self.done = torch.zeros(pictures, height, dtype=torch.long, device=device)
        self.line = torch.arange(lanes, device=device).repeat(pictures, 1)  # [B, lanes] the line each lane is at
        self.finished = torch.zeros_like(self.done, dtype=torch.bool)
        self.turn = 0
        self.pending = self._schedule()

    def commit(self, draft: Draft, scored: Scored, verdict: Verdict) -> tuple[Verdict, Committed]:
        """Record what the round committed."""
        if self.log_q is not None:
            self._write(self.log_q, verdict, scored.p.log_prob(verdict.values[:, :1]).to(self.log_q.dtype))
        verdict, committed = super().commit(draft, scored, verdict)
        for lane, healthy in enumerate(committed.healthy):
            if not healthy and committed.values[lane]:
                position = int(draft.start[lane])
                raise FloatingPointError(
                    f"the target's logits hold NaN or infinity in picture {lane // self.lanes} at output position {position}: "
                    "check the weights and the dtype (float16 overflows where bfloat16 does not)"
                )
        return verdict, committed

    def _cut(self, verdict: Verdict) -> Verdict:
        """What was committed goes on the board, and the next pending token is made from the board alone."""
        verdict = super()._cut(verdict)
        self._write(self.board, verdict, verdict.values)
        self.done.scatter_add_(1, self.line, verdict.count.view_as(self.line))
        self.turn += 1
        self.pending = self._schedule()
        return replace(verdict, pending=self.pending)

    def _close(self, committed: Committed) -> Committed:
        """Return the round: a lane without a pending token may only be waiting, and lanes end when all their values are committed."""
        return committed

    def _write(self, board: Tensor, verdict: Verdict, what: Tensor) -> None:
        """`what` [L, K] of the values committed this round on `board` [B, T + 1]."""
        steps = torch.arange(what.shape[1], device=what.device)
        new = steps < torch.minimum(verdict.count, self.left_before)[:, None]
        place = torch.where(new, self.pending.start[:, None] + steps, board.shape[1] - 1)
        board.scatter_(1, place.view(self.pictures, -1), what.view(self.pictures, -1))

    def _schedule(self) -> Draft:
        """The next round's pending token; `left` says what each lane may commit in it."""
        cells = (self.done - self.head).clamp_min(0)
        above = torch.cat([torch.full_like(cells[:, :1], self.lines.raster.width), cells[:, :-1]], 1)
        finished, opening = self.done == self.lengths, self.done == 0
        awake = ~finished & (~opening | (above >= min(self.begin, self.lines.raster.width)))
        gap = above - cells
        gap[:, 0] = self.lengths[0]
        left = torch.where(awake, torch.minimum(gap, self.lengths - self.done).clamp(max=self.window), 0)
        again = torch.zeros_like(finished)
        again[:, :-1] = (finished & ~self.finished)[:, :-1] & (~opening[:, 1:] | self.lines.ended)
        self.finished = finished
        after = self.line + self.lanes
        over = finished.gather(1, self.line) & ~again.gather(1, self.line) & (after < len(self.starts))
        self.line = torch.where(over, after, self.line)

        def lane(table: Tensor) -> Tensor:
            return table.gather(1, self.line).flatten()

        front = Front(self.line.flatten(), lane(above), lane(above == self.lines.raster.width), lane(opening), self.turn)
        start = self.starts[front.line] + lane(self.done)
        self.left = self.left_before = lane(left)
        return replace(Draft.root(self._before(start, front), start, lane(awake | again)), aux=front)

    def _before(self, start: Tensor, front: Front) -> Tensor:
        """[L] what stands before output positions `start` [L], or stands in for it."""
        over = (front.line - 1).clamp_min(0)
        nearest = self.starts[over] + self.head[over] + front.above - 1
        stands_in = front.opening & ~front.complete & (not self.lines.ended)
        place = torch.where(stands_in, nearest, start - 1)
        value = self.board.gather(1, place.clamp_min(0).view(self.pictures, -1)).flatten()
        return torch.where(place < 0, self.lines.raster.values, value)  # the last prompt position, by its id


def deferred(verdict: Verdict, where: Tensor) -> Verdict:
    """Return `verdict` without the value committed after the draft tokens in lanes `where` [L], which may then commit nothing.

    The target's distribution changes once more of the context is known. `RowStreamStopping` makes the pending token of the committed
    values.
    """
    return replace(verdict, count=(verdict.count - where.long()).clamp_min(0))
