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
from dataclasses import dataclass, field, replace
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
    at: Tensor  # [3, A] steps done; places in tables of T entries a row, and of T + LONGEST entries a row. Not kept up for one row
    held: Tensor  # [A, 2, d] state, and prediction of the clean token

    def places(self, steps: int) -> tuple[Any, Any, Any]:
        """Return the three places: tensors [A], or numbers if one row is open."""
        if len(self.done) > 1:
            return self.at.unbind(0)  # type: ignore[return-value]
        row, done = self.index[0], self.done[0]
        return done, row * steps + done, row * (steps + LONGEST) + done

    def move(self, last: Tensor, taken: list[int], held: Tensor) -> None:
        """Commit steps up to the `last` ones of a window [A], numbered `taken` on the host."""
        self.held, self.done = held, [done + more + 1 for done, more in zip(self.done, taken, strict=True)]
        if len(taken) > 1:
            self.at = (self.at + last).add_(1)


@dataclass
class _Tokens:
    """The tokens of one call, with all that depends on them alone."""

    outputs: Callable[[Tensor, Any], Tensor]  # (states [A, K, d], places in tables of T entries a row) -> outputs [A, K, d]
    noise: Tensor  # [R, T, d]
    response: Tensor | None  # [R, T, d]
    level: Tensor  # [R, T]
    record: Tensor  # [R * (T + LONGEST), 5 d + 2] every state, the output at it, and what it was judged by
    final: Tensor  # [R, d] clean tokens
    windows: dict[int, tuple[WindowTables, Tensor]] = field(default_factory=dict)  # by K, with their tables by token

    def close(self, rows: _Rows, steps: int) -> _Rows:
        """Store the tokens of rows that have finished, and drop these rows."""
        if max(rows.done, default=0) < steps:
            return rows
        if len(rows.done) == 1:
            self.final[rows.index[0]] = rows.held[0, 0]
            return replace(rows, index=[], done=[])
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
        states, outputs = tokens.record.view(len(z), steps + LONGEST, -1)[:, :steps, : 2 * width].split(width, -1)
        keep, gain = (table[:, None] for table in self._cached("mean", normal.dtype, self._mean))
        return SampledChains(torch.cat([states, tokens.final[:, None]], 1), torch.addcmul(keep * states, gain, outputs))

    def _begin(self, z: Tensor, normal: Tensor, level: Tensor, path: Tensor | None, first: Tensor | None) -> tuple[_Tokens, _Rows]:
        """Open the rows, each at its first step."""
        (count, _, width), steps, stride = normal.shape, self.tables.steps, self.tables.steps + LONGEST
        noise, start, index = normal[:, 1:], normal[:, 0], self._numbers(count, normal)
        record, begin, done = normal.new_empty(count, stride, 5 * width + 2), torch.zeros_like(index), [0] * count
        if self.tables.ends_bare:  # no noise, and a level that refuses every draft: the state is moved to the target's mean
            noise = torch.cat([noise[:, :-1], torch.zeros_like(noise[:, -1:])], 1)
            level = torch.cat([level[:, :-1], torch.full_like(level[:, -1:], torch.inf)], 1)
        if path is not None and first is not None:
            begin = (first - 1).clamp(min=0)
            start, done = torch.where((first < 1)[:, None], start, path[index, begin]), begin.tolist()
            record[:, :steps, :width] = path[:, :steps]
        table = None if self.tables.response is None else self._cached("response", normal.dtype, self.tables.response.to)
        response = None if table is None else torch.bmm(noise.transpose(0, 1), table).transpose(0, 1)
        tokens = _Tokens(self._outputs(z), noise, response, level, record.flatten(0, 1), start.clone())
        held = torch.zeros_like(start) if self.first is None else self.first(z).to(start.dtype)
        at = index if count == 1 else torch.stack([begin, torch.add(begin, index, alpha=steps), torch.add(begin, index, alpha=stride)])
        return tokens, tokens.close(_Rows(list(range(count)), done, at, torch.stack([start, held], 1)), steps)

    def _outputs(self, z: Tensor) -> Callable[[Tensor, _Rows], Tensor]:
        """Condition the head."""
        times, steps, net = self.tables.noise_schedule.timesteps, self.tables.steps, self.net
        ready: Any = conditioned(net, times, z)
        if ready is not None:
            head, table = self.net, ready.flatten(0, 1)
            return lambda x, place: head.denoise(x.flatten(0, 1), _picked(table, place, x.shape[1])).view(x.shape)  # pyright: ignore[reportFunctionMemberAccess]

        def outputs(x: Tensor, place: Any) -> Tensor:
            at = torch.as_tensor(place, device=x.device).reshape(-1)
            step = (at[:, None] % steps + torch.arange(x.shape[1], device=x.device)).clamp(max=steps - 1)
            given = z.index_select(0, at // steps).repeat_interleave(x.shape[1], 0)
            return net(x.flatten(0, 1), times[step].flatten(), given).view(x.shape)

        return outputs

    def _round(self, rows: _Rows, tokens: _Tokens, length: int, most: int) -> list[int]:
        """Draft `most` states a row, by the tables of windows of `length`, and judge them. Return the number of committed steps."""
        (count, _, width), (step, place, stored) = rows.held.shape, rows.places(self.tables.steps)
        window, table = self._windows(tokens, length, most)
        length = window.length
        maps, weight = _picked(window.by_step, step).split([4 * length + 2, length], 1)
        moved, numbers, limit = _picked(table, place).split([(2 * length + 1) * width, length * (width + 1), length], 1)
        numbers = numbers.view(count, length, width + 1)
        # the state, the drafted states, and the parts of the gaps that do not depend on the outputs
        found = torch.baddbmm(moved.view(count, -1, width), maps.view(count, -1, 2), rows.held)
        gap = found[:, length + 1 :]
        if most < length:
            gap, weight, numbers, limit = gap[:, :most], weight[:, :most], numbers[:, :most], limit[:, :most]
        parents, drafted = found[:, :most], found[:, 1 : most + 1]
        output = tokens.outputs(parents, place)
        gap = torch.addcmul(gap, weight[..., None], output)  # from the draft's mean to the target's, in standard deviations
        score = torch.add(numbers[..., :width], gap, alpha=-0.5).mul_(gap).sum(-1)  # log p / q at the drafted state
        # a refused step ends the round, and so does the last one of the window or of the chain
        last = (score < limit).view(torch.uint8).argmax(1)  # of equal values the first
        taken, parts = last.tolist(), [parents, output, drafted, gap, numbers, score[..., None]]
        if count == 1:
            torch.cat(parts, -1, out=tokens.record.narrow(0, stored, most)[None])
            ended, end = tokens.record.narrow(0, stored + taken[0], 1), step + taken[0]
        else:
            judged = torch.cat(parts, -1).flatten(0, 1)
            tokens.record.index_copy_(0, (stored[:, None] + self._numbers(most, last)).flatten(), judged)
            ended, end = judged.index_select(0, torch.add(last, self._numbers(count, last), alpha=most)), step + last
        ends = self._cached("ends", rows.held.dtype, lambda dtype: self.tables.ends(width, dtype))
        rows.move(last, taken, self._ended(ended, _picked(ends, end)))
        return [more + 1 for more in taken]

    def _ended(self, judged: Tensor, maps: Tensor) -> Tensor:
        """Return state and prediction [A, 2, d] behind the last committed step of a round, which is reflected where it was refused.

        Args:
            judged: parent, output, drafted state, gap, noise, level and score [A, 5 d + 2].
            maps: those of `StepTables.ends` for its step [A, 6 d, 2 d].
        """
        known, level, score = judged.split([judged.shape[1] - 2, 1, 1], 1)
        width = known.shape[1] // 5
        gap = known.narrow(1, 3 * width, width)
        far = gap.square().sum(1, keepdim=True).clamp_min_(torch.finfo(gap.dtype).tiny)
        refused = gap * score.div(far).masked_fill_(score >= level, 0)
        return torch.bmm(torch.cat([known, refused], 1)[:, None], maps).view(-1, 2, width)

    def _numbers(self, count: int, like: Tensor) -> Tensor:
        """Return 0, 1, .., `count` - 1, made once."""
        return self._cached(("numbers", count, like.device), torch.long, lambda dtype: torch.arange(count, dtype=dtype, device=like.device))

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


def _picked(table: Tensor, at: Any, count: int = 1) -> Tensor:
    """Return `count` entries of a table from each of `at` [A] on [A * count, ...]; a view of it where `at` is a number."""
    if isinstance(at, int):
        return table.narrow(0, at, count)
    if count > 1:
        at = (at[:, None] + torch.arange(count, device=at.device)).clamp_(max=len(table) - 1).flatten()
    return table.index_select(0, at)
