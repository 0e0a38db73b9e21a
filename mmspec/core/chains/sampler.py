"""Speculative sampling of one denoising chain (De Bortoli et al. 2025, arXiv 2501.05370), for the head of an autoregressive model.

A round holds a prediction of the clean token, writes K states ahead with it, runs the head on the state and all drafted states but the
last in one call, and judges them from left to right by reflection. A step is kept with probability 2 Phi(-|m_p - m_q| / (2 std)); the first
that is not is reflected, which draws it from what is left of the target's step. The last step of a window ends the round either way, so a
round with K = 1 is a step of plain sampling. A last step without noise is always the target's own mean. No second model is needed, and
every row of a batch is at a step of its own.

The next round holds the prediction made at the parent of the last committed state, moved by that step's noise. It depends on no noise that
a later step uses, so the numbers of every step are drawn once, and used whenever that step is judged.

R rows, T steps, K states a round, d numbers of a state, D the width of the conditioning.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from mmspec.core.chains.heads import Conditioned
from mmspec.core.chains.tables import StepTables, WindowTables

LONGEST = 32
"""Largest number of states in a round."""


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

    index: Tensor  # [A] row numbers
    step: Tensor  # [A] steps done
    done: list[int]  # the same, on the host
    held: Tensor  # [A, 2, d] state, and prediction of the clean token

    def open(self, steps: int) -> "_Rows":
        """Drop rows that have finished."""
        if max(self.done, default=0) < steps:
            return self
        keep = torch.tensor([row for row, done in enumerate(self.done) if done < steps], dtype=torch.long, device=self.step.device)
        return _Rows(self.index[keep], self.step[keep], [done for done in self.done if done < steps], self.held[keep])


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
        self._windows: dict[tuple[int, torch.dtype], WindowTables] = {}

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
        (count, _, width), steps = normal.shape, self.tables.steps
        numbers = self._numbers(normal[:, 1:], uniform)
        states = normal.new_empty(count, steps + LONGEST, 2 * width)  # after every step: the state and its mean
        start, begin = normal[:, 0], normal.new_zeros(count, dtype=torch.long)
        if path is not None and first is not None:
            begin = (first - 1).clamp(min=0)
            states[:, :steps, :width] = path[:, 1:]
            start = torch.where((first < 1)[:, None], start, path[:, 0])
        rows = self._begin(z, start, states, begin)
        conditioned, flat = Conditioned.of(self.net, self.tables.noise_schedule.timesteps, z), states.flatten(0, 1)
        while len(rows.done):
            began, left = perf_counter(), [steps - done for done in rows.done]
            length = min(self.control.length(len(left), max(left)), max(left), LONGEST)
            kept = self._round(rows, length, conditioned, numbers, flat)
            self.control.observe(length, left, kept, perf_counter() - began)
            rows = rows.open(steps)
        found, means = states[:, :steps].split(width, -1)
        return SampledChains(torch.cat([start[:, None], found], 1), means)

    def _numbers(self, noise: Tensor, uniform: Tensor) -> Tensor:
        """Return every step's noise, response to it, and log of its uniform number, [R * (T + LONGEST), 2 d + 1].

        A last step without noise has noise 0 and a number that refuses every draft: its state is then moved to the target's mean.
        """
        table = self.tables.response
        if self.tables.ends_bare:
            noise = torch.cat([noise[:, :-1], torch.zeros_like(noise[:, -1:])], 1)
            uniform = torch.cat([uniform[:, :-1], torch.full_like(uniform[:, -1:], torch.inf)], 1)
        response = torch.zeros_like(noise) if table is None else torch.einsum("rti,tij->rtj", noise, table.to(noise.dtype))
        numbers = torch.cat([noise, response, uniform.log().to(noise.dtype)[..., None]], -1)
        return torch.nn.functional.pad(numbers, (0, 0, 0, LONGEST)).flatten(0, 1)

    def _begin(self, z: Tensor, start: Tensor, states: Tensor, begin: Tensor) -> _Rows:
        """Open the rows, each at its first step."""
        done, index = begin.tolist(), torch.arange(len(begin), device=begin.device)
        if any(done):
            start = torch.where((begin > 0)[:, None], states[index, (begin - 1).clamp(min=0), : start.shape[-1]], start)
        held = torch.zeros_like(start) if self.first is None else self.first(z).to(start.dtype)
        return _Rows(index, begin, done, torch.stack([start, held], 1)).open(self.tables.steps)

    def _round(self, rows: _Rows, length: int, conditioned: Conditioned, numbers: Tensor, states: Tensor) -> list[int]:
        """Draft `length` states a row, judge them, and write them behind the committed ones. Return the number of committed steps."""
        window, width, most = self._window(length, rows.held.dtype), rows.held.shape[-1], self.tables.steps
        draft, columns = window.draft.index_select(0, rows.step), window.columns.index_select(0, rows.step)
        weight, state, output, std = columns.split(1, -1)
        steps = rows.step[:, None] + torch.arange(length, device=rows.step.device)
        at = torch.add(steps, rows.index[:, None], alpha=most + LONGEST).flatten()
        noise, response, level = numbers.index_select(0, at).view(*steps.shape, -1).split([width, width, 1], -1)
        ahead, held = torch.bmm(draft, torch.cat([rows.held, noise, response], 1)).chunk(2, 1)
        parents = torch.cat([rows.held[:, :1], ahead[:, :-1]], 1)
        prediction = torch.addcmul(state * parents, output, conditioned.run(parents, rows.index, steps))
        gap = weight * (prediction - held)  # from the draft's mean to the target's, in standard deviations
        along, far = (gap * noise).sum(-1, keepdim=True), gap.square().sum(-1, keepdim=True)
        keep = level <= torch.add(along, far, alpha=-0.5)
        mirror = (1 - 2 * along / far.clamp_min(torch.finfo(far.dtype).tiny)).masked_fill(keep, 0) * gap
        after, moved = torch.addcmul(ahead, std, mirror), mirror - gap  # the state, and how its noise around the target's mean changed
        mean = torch.addcmul(after, std, noise + moved, value=-1)
        states.index_copy_(0, at, torch.cat([after, mean], -1).flatten(0, 1))
        # a refused step ends the round, and so does the last one of the window or of the chain
        ends = ~keep[..., 0] | (steps == most - 1)
        ends[:, -1] = True
        last = ends.int().argmax(1)  # of equal values the first
        taken = torch.arange(len(last), device=last.device) * length + last
        tables = torch.cat([after, prediction + response, moved], -1).flatten(0, 1).index_select(0, taken)
        rows.held = tables[:, : 2 * width].unflatten(-1, (2, width))
        if self.tables.response is not None:
            table = self.tables.response.index_select(0, rows.step + last)
            rows.held[:, 1:] += tables[:, None, 2 * width :] @ table.to(rows.held.dtype)
        rows.step = rows.step + last + 1
        before, rows.done = rows.done, rows.step.tolist()
        return [done - had for had, done in zip(before, rows.done, strict=True)]

    def _window(self, length: int, dtype: torch.dtype) -> WindowTables:
        if (length, dtype) not in self._windows:
            window = self.tables.window(length)
            self._windows[length, dtype] = WindowTables(window.draft.to(dtype), window.columns.to(dtype))
        return self._windows[length, dtype]
