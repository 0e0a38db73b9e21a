"""Speculative sampling of one denoising chain (De Bortoli et al. 2025, arXiv 2501.05370), for the head of an autoregressive model.

A round holds a prediction of the clean token, writes K states ahead with it, runs the head on the state and all drafted states but the
last in one call, and judges them from left to right by reflection. A step is kept with probability 2 Phi(-|m_p - m_q| / (2 std)); the first
that is not is reflected, which draws it from what is left of the target's step. The last step of a window ends the round either way, so a
round with K = 1 is a step of plain sampling. A last step without noise is always the target's own mean. No second model is needed, and
every row of a batch is at a step of its own.

The next round holds the prediction made at the parent of the last committed state, moved by that step's noise. It depends on no noise that
a later step uses, so the numbers of every step are drawn once, and used whenever that step is judged.

A round is a fixed number of operations whatever K and R: what depends on noise, timestep and conditioning alone is computed once a token,
for every step that a round may start at, and looked up.

R rows, T steps, K states a round, d numbers of a state, D the width of the conditioning.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from mmspec.core.chains.tables import StepTables, WindowTables
from mmspec.core.prepared_head import PreparedHead, conditioned

LONGEST = 32
"""Largest number of states in a round."""


KEPT = 1 << 26
"""Numbers that a prepared head keeps for the rows sampled at once; of more rows, parts are sampled one after the other."""


class ChainControl(Protocol):
    """Chooses the number of states of every round."""

    def length(self, rows: int, left: int) -> int:
        """Return K for `rows` open rows, of which the slowest has `left` steps to go."""
        ...

    def observe(self, length: int, left: list[int], kept: list[int], seconds: float) -> None:
        """Record a round of `length` states a row.

        Args:
            length: K.
            left: steps that each row had to go.
            kept: steps that each row committed.
            seconds: duration of the round.
        """
        ...


@dataclass(frozen=True)
class SampledChains:
    """Sampled chains.

    Args:
        path: states [R, T + 1, d].
        means: the head's mean of every sampled state but the first [R, T, d]; other entries are undefined.
    """

    path: Tensor
    means: Tensor


@dataclass
class _Rows:
    """The open rows of a generation of chains: where they stand, and what they hold."""

    index: list[int]  # row numbers
    done: list[int]  # steps done
    at: Tensor  # [3, A] steps done; places in tables of T entries a row, and of T + LONGEST entries a row
    held: Tensor  # [A, 2, d] state, and prediction of the clean token

    def only(self, stride: int) -> int | None:
        """The place in a table of `stride` entries a row, if one row is open; else None."""
        return self.index[0] * stride + self.done[0] if len(self.done) == 1 else None


@dataclass
class _Tokens:
    """The tokens of one call, with all that depends on them alone."""

    outputs: Callable[[Tensor, _Rows], Tensor]  # (states [A, K, d], rows) -> outputs [A, K, d]
    noise: Tensor  # [R, T, d]
    response: Tensor | None  # [R, T, d]
    level: Tensor  # [R, T]
    record: Tensor  # [R * (T + LONGEST), 2 d] every state and the output at it
    final: Tensor  # [R, d] clean tokens
    windows: dict[int, tuple[WindowTables, Tensor]] = field(default_factory=dict)  # by K, with their tables by token

    def close(self, rows: _Rows, steps: int) -> _Rows:
        """Store the tokens of rows that have finished, and drop these rows."""
        if max(rows.done, default=0) < steps:
            return rows
        gone, stay = ([n for n, done in enumerate(rows.done) if (done >= steps) == over] for over in (True, False))
        place = torch.tensor([gone, [rows.index[n] for n in gone]], device=self.final.device)
        self.final.index_copy_(0, place[1], rows.held[:, 0].index_select(0, place[0]))
        keep = torch.tensor(stay, dtype=torch.long, device=self.final.device)
        return _Rows([rows.index[n] for n in stay], [rows.done[n] for n in stay], rows.at[:, keep], rows.held[keep])


class SpeculativeSampler:
    """Samples chains of a head speculatively. Its tables are made when they are first used.

    Args:
        net: maps (states [M, d], timesteps [M], conditioning [M, D]) to outputs [M, d]. A `PreparedHead` is prepared once a token.
        tables: the chain's steps.
        control: chooses the number of states of every round.
        first: the prediction that the first round holds [R, d], from conditioning [R, D]; by default 0.
    """

    def __init__(
        self,
        net: Callable[[Tensor, Tensor, Tensor], Tensor],
        tables: StepTables,
        control: ChainControl,
        first: Callable[[Tensor], Tensor] | None = None,
    ):
        self.net, self.tables, self.control, self.first = net, tables, control, first
        self._made: dict[Any, Any] = {}

    def sample(self, z: Tensor, normal: Tensor, uniform: Tensor, path: Tensor | None = None, first: Tensor | None = None) -> SampledChains:
        """Sample chains.

        Args:
            z: conditioning [R, D].
            normal: standard normal [R, T + 1, d]: x_T, then the noise of every step.
            uniform: numbers in (0, 1) [R, T], by which steps are judged.
            path: states [R, T + 1, d] to continue from.
            first: LongTensor [R], index of the first state that is sampled; those of `path` before it stay.

        Returns:
            The chains.
        """
        most = self._most(z)
        if len(z) <= most:
            return self._sample(z, normal, uniform, path, first)
        parts = (slice(row, row + most) for row in range(0, len(z), most))
        given = (path, None) if path is None or first is None else (path, first)
        found = [
            self._sample(z[rows], normal[rows], uniform[rows], *(None if each is None else each[rows] for each in given)) for rows in parts
        ]
        return SampledChains(torch.cat([each.path for each in found]), torch.cat([each.means for each in found]))

    def _most(self, z: Tensor) -> int:
        """Return the number of rows that are sampled at once."""
        if not isinstance(self.net, PreparedHead) or len(z) == 0:
            return len(z)
        times, net = self.tables.noise_schedule.timesteps[:1], self.net
        kept = self._cached("kept", z.dtype, lambda _: net.condition(net.embed_times(times), z[:1]).shape[-1])
        return max(1, KEPT // (kept * self.tables.steps))

    def _sample(self, z: Tensor, normal: Tensor, uniform: Tensor, path: Tensor | None, first: Tensor | None) -> SampledChains:
        steps, width = self.tables.steps, normal.shape[-1]
        tokens, rows = self._begin(z, normal, uniform.log().to(normal.dtype), path, first)
        while rows.done:
            began, left = perf_counter(), [steps - done for done in rows.done]
            length = min(self.control.length(len(left), max(left)), steps, LONGEST)
            kept = self._round(rows, tokens, length, min(length, max(left)))
            self.control.observe(min(length, max(left)), left, kept, perf_counter() - began)
            rows = tokens.close(rows, steps)
        states, outputs = tokens.record.view(len(z), -1, 2 * width)[:, :steps].split(width, -1)
        keep, gain = (table[:, None] for table in self._cached("mean", normal.dtype, self._mean))
        return SampledChains(torch.cat([states, tokens.final[:, None]], 1), torch.addcmul(keep * states, gain, outputs))

    def _begin(self, z: Tensor, normal: Tensor, level: Tensor, path: Tensor | None, first: Tensor | None) -> tuple[_Tokens, _Rows]:
        """Open the rows, each at its first step."""
        (count, _, width), steps, stride = normal.shape, self.tables.steps, self.tables.steps + LONGEST
        noise, start, index = normal[:, 1:], normal[:, 0], torch.arange(count, device=normal.device)
        record, begin, done = normal.new_empty(count, stride, 2 * width), torch.zeros_like(index), [0] * count
        if self.tables.ends_bare:  # no noise, and a level that refuses every draft: the state is moved to the target's mean
            noise = torch.cat([noise[:, :-1], torch.zeros_like(noise[:, -1:])], 1)
            level = torch.cat([level[:, :-1], torch.full_like(level[:, -1:], torch.inf)], 1)
        if path is not None and first is not None:
            begin = (first - 1).clamp(min=0)
            start, done = torch.where((first < 1)[:, None], start, path[index, begin]), begin.tolist()
            record[:, :steps, :width] = path[:, :steps]
        table = None if self.tables.response is None else self._cached("response", normal.dtype, self.tables.response.to)
        response = None if table is None else torch.einsum("rti,tij->rtj", noise, table)
        tokens = _Tokens(self._outputs(z), noise, response, level, record.flatten(0, 1), start.clone())
        held = torch.zeros_like(start) if self.first is None else self.first(z).to(start.dtype)
        at = torch.stack([begin, torch.add(begin, index, alpha=steps), torch.add(begin, index, alpha=stride)])
        return tokens, tokens.close(_Rows(list(range(count)), done, at, torch.stack([start, held], 1)), steps)

    def _outputs(self, z: Tensor) -> Callable[[Tensor, _Rows], Tensor]:
        """Condition the head."""
        times, steps, net = self.tables.noise_schedule.timesteps, self.tables.steps, self.net
        ready: Any = conditioned(net, times, z)
        if ready is not None:
            head, table = self.net, ready.flatten(0, 1)
            return lambda x, rows: head.denoise(x.flatten(0, 1), _picked(table, rows.at[1], rows.only(steps), x.shape[1])).view(x.shape)  # pyright: ignore[reportFunctionMemberAccess]

        def outputs(x: Tensor, rows: _Rows) -> Tensor:
            step = (rows.at[0][:, None] + torch.arange(x.shape[1], device=x.device)).clamp(max=steps - 1)
            given = z.index_select(0, rows.at[1] // steps).repeat_interleave(x.shape[1], 0)
            return net(x.flatten(0, 1), times[step].flatten(), given).view(x.shape)

        return outputs

    def _round(self, rows: _Rows, tokens: _Tokens, length: int, most: int) -> list[int]:
        """Draft `most` states a row, by the tables of windows of `length`, and judge them. Return the number of committed steps."""
        (count, _, width), steps = rows.held.shape, self.tables.steps
        window, table = self._windows(tokens, length, most)
        length = window.length
        known = _picked(window.by_step, rows.at[0], rows.done[0] if count == 1 else None)
        maps, weight = known.split([4 * length + 2, length], 1)
        own = _picked(table, rows.at[1], rows.only(steps)).split([(2 * length + 1) * width, length * (width + 1), length], 1)
        moved, numbers = own[0].view(count, -1, width), own[1].view(count, length, width + 1)[:, :most]
        # the state, the drafted states, and the parts of the gaps that do not depend on the outputs
        found = torch.baddbmm(moved, maps.view(count, -1, 2), rows.held)
        parents, drafted, gap = found[:, :most], found[:, 1 : most + 1], found[:, length + 1 : length + 1 + most]
        output = tokens.outputs(parents, rows)
        gap = torch.addcmul(gap, weight[:, :most, None], output)  # from the draft's mean to the target's, in standard deviations
        score = (gap * torch.add(numbers[..., :width], gap, alpha=-0.5)).sum(-1)  # log p / q at the drafted state
        # a refused step ends the round, and so does the last one of the window or of the chain
        last = (score < own[2][:, :most]).view(torch.uint8).argmax(1)  # of equal values the first
        taken = last.tolist()
        judged = torch.cat([parents, output, drafted, gap, numbers, score[..., None]], -1)
        self._store(tokens.record, judged[..., : 2 * width], rows)
        ended = _picked(judged.flatten(0, 1), torch.add(last, torch.arange(count, device=last.device), alpha=most), _single(taken))
        columns = self._cached("columns", judged.dtype, self.tables.columns)
        rows.held = self._ended(ended, _picked(columns, rows.at[0] + last, rows.done[0] + taken[0] if count == 1 else None))
        rows.at, rows.done = rows.at + (last + 1), [done + more + 1 for done, more in zip(rows.done, taken, strict=True)]
        return [more + 1 for more in taken]

    def _ended(self, judged: Tensor, columns: Tensor) -> Tensor:
        """Return state and prediction [A, 2, d] behind the last committed step of a round, which is reflected where it was refused."""
        width = (judged.shape[1] - 2) // 5
        parent, output, after, gap, noise, level, score = judged.split([*[width] * 5, 1, 1], 1)
        c, e, std, response = columns.split([1, 1, 1, columns.shape[1] - 3], 1)
        far = gap.square().sum(1, keepdim=True).clamp_min(torch.finfo(gap.dtype).tiny)
        refused = (score / far).masked_fill(score >= level, 0)
        after = torch.addcmul(after, gap, refused * std, value=-2)
        held = torch.addcmul(c * parent, e, output)
        if response.shape[1]:  # to the step's noise around the target's mean
            drawn = torch.addcmul(noise - gap, gap, refused, value=-2)
            held = torch.baddbmm(held[:, None], drawn[:, None], response.view(-1, width, width))[:, 0]
        return torch.stack([after, held], 1)

    def _store(self, record: Tensor, values: Tensor, rows: _Rows) -> None:
        """Record states and outputs. Those behind the last committed step are overwritten by later rounds."""
        place = rows.only(self.tables.steps + LONGEST)
        if place is not None:
            record.narrow(0, place, values.shape[1]).copy_(values[0])
        else:
            at = rows.at[2][:, None] + torch.arange(values.shape[1], device=values.device)
            record.index_copy_(0, at.flatten(), values.flatten(0, 1))

    def _windows(self, tokens: _Tokens, length: int, most: int) -> tuple[WindowTables, Tensor]:
        """Return the tables of windows of `length` states, or of more states where `most`, those left, end the round anyway."""
        if length >= most:
            length = min((known for known in tokens.windows if known >= most), default=length)
        if length not in tokens.windows:
            window = self._cached(length, tokens.noise.dtype, lambda dtype: self.tables.window(length, dtype))
            tokens.windows[length] = window, window.by_token(tokens.noise, tokens.response, tokens.level)
        return tokens.windows[length]

    def _mean(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        schedule = self.tables.noise_schedule
        return schedule.keep.to(dtype), schedule.gain.to(dtype)

    def _cached(self, name: Any, dtype: torch.dtype, make: Callable[[torch.dtype], Any]) -> Any:
        """Return a table of this chain, made once for every dtype."""
        if (name, dtype) not in self._made:
            self._made[name, dtype] = make(dtype)
        return self._made[name, dtype]


def _single(places: list[int]) -> int | None:
    return places[0] if len(places) == 1 else None


def _picked(table: Tensor, at: Tensor, only: int | None, count: int = 1) -> Tensor:
    """Return `count` entries of a table from each of `at` [A] on [A * count, ...]; a view where `only` one is asked for."""
    if only is not None:
        return table.narrow(0, only, count)
    if count > 1:
        at = (at[:, None] + torch.arange(count, device=at.device)).clamp(max=len(table) - 1).flatten()
    return table.index_select(0, at)
