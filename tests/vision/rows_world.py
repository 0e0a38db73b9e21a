"""A picture model one can see through, and ZipAR written down a second time: cell by cell, without lanes, masks or caches."""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import Generation, generate
from mmspec.core.distributions.categorical import Categorical
from mmspec.core.noise import Noise
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import Pipeline, pipeline
from mmspec.core.processors.raster import FREE, Grammar, Raster
from mmspec.core.rules.match import Match
from mmspec.core.stopping import DefaultStopping
from mmspec.drafters.none import NoDraft
from mmspec.models.guidance import Guided, Pairs
from mmspec.models.target import HFTarget
from mmspec.vision.codes.rows import generate_rows
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.prompts import Prompt

WIDE = 6  # of an embedding


class Blur(ImageModel):
    """One layer that takes the mean of all values in sight, each weighted by how far before it stands, and counts them: an unwritten
    slot, all zeros, does not go unnoticed. With a `reach` nothing counts but the value before and so many of the row above: the one
    above the cell to come and those to the right of it."""

    layers = 1

    def __init__(self, raster: Raster, reach: int | None = None, seed: int = 0, sharp: float = 6.0):
        draw = torch.Generator().manual_seed(seed)
        self.raster, self.sharp = raster, sharp
        self.model = SimpleNamespace(name="blur")
        self.table = torch.randn(raster.values, WIDE, generator=draw)
        self.head = torch.randn(WIDE, raster.values, generator=draw)
        self.decay = torch.randn(400, WIDE, generator=draw)
        self.counts = torch.arange(1.0, WIDE + 1)
        self.seen: list = []  # every forward's layout
        if reach is not None:
            step = raster.cells[raster.width] - raster.cells[0]
            far = [distance for distance in range(400) if distance and not 0 <= step - 1 - distance < reach]
            self.decay[far] = 0
        self.mean = reach is None

    def encode(self, prompts, guided):
        raise NotImplementedError

    def embed(self, values: Tensor) -> Tensor:
        return self.table[values]

    def hidden(self, embeds, layout, cache, prompt) -> Tensor:
        self.seen.append(layout)
        keys, _ = cache.update(embeds[:, None], embeds[:, None], 0)
        return self.blur(keys[:, 0], layout.visible, layout.positions)

    def blur(self, values: Tensor, visible: Tensor, own: Tensor) -> Tensor:
        """[R, M, D] of stored `values` [R, S, D] of which columns at slots `own` [R, M] see `visible` [R, M, S]."""
        distance = (own[..., None] - torch.arange(values.shape[1])).clamp(0, 399)
        mixed = (visible[..., None] * self.decay[distance] * values[:, None]).sum(2)
        count = visible.sum(-1, keepdim=True)
        return mixed / count.clamp_min(1) ** 0.5 + 1.5 * torch.cos(count * self.counts) if self.mean else mixed

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.head * self.sharp

    def decode(self, codes):
        raise NotImplementedError


def prompts(rows: int, longest: int = 4, seed: int = 5) -> Prompt:
    """Ragged ones."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([1 + (row * 2) % longest for row in range(rows)])
    return Prompt.of(torch.randn(rows, longest, WIDE, generator=draw), torch.arange(longest) >= longest - lengths[:, None])


def steps_of(raster: Raster, **options) -> Pipeline:
    return pipeline(first=(Grammar(raster),), **options)


def plainly(model: ImageModel, prompt: Prompt, processors: Pipeline, noise: Noise, guidance=None) -> Generation:
    """Plain decoding by the engine."""
    processors = processors if guidance is None else Guided(processors.steps, guidance)
    target = HFTarget(model.model, model, processors)
    target = target if guidance is None else Pairs(target)
    stopping = DefaultStopping(len(noise.seeds), model.raster.length)
    return generate(target, NoDraft(), Match(), prompt, stopping=stopping, noise=noise, control=Fixed(0))


def by_rows(model, prompt, plan, processors=None, *, seeds=0, guidance=None, on_step=lambda step: None) -> Generation:
    pictures = len(prompt.mask) // (1 if guidance is None else 2)
    processors = steps_of(model.raster) if processors is None else processors
    noise = Noise.from_seed(seeds, pictures)
    return generate_rows(model, prompt, plan=plan, processors=processors, guidance=guidance, noise=noise, on_step=on_step)


class Scribe:
    """ZipAR and PJD on one picture of a `Blur`, from the papers' words: a board of values, and distributions asked for cell by cell.

    A way is a function (row, first output position it has not committed, how many values it may commit, value before it) -> values.
    """

    def __init__(self, model: Blur, prompts: list[Tensor], processors: Pipeline, noise: Noise, guidance: float | None = None):
        self.model, self.prompts, self.processors, self.noise, self.guidance = model, prompts, processors, noise, guidance
        raster = self.raster = model.raster
        self.width, self.height, self.head = raster.width, raster.height, raster.cells[0]
        self.starts = [0, *raster.cells[raster.width :: raster.width]]
        self.lengths = [self.head + raster.width] + [raster.width] * (raster.height - 1)
        self.written: dict[int, int] = {}  # values that have been run, by output position; stand-ins too
        self.committed: dict[int, int] = {}
        self.done = [0] * raster.height
        self.forwards = 0

    def cells(self, row: int) -> int:
        """Cells committed in a row; there is no row above the first, and nothing of it is missing."""
        return self.width if row < 0 else self.done[row] - (self.head if row == 0 else 0)

    def distribution(self, position: int, before: int, chain: dict[int, int] | None = None) -> Categorical:
        """The distribution [1, 1] at output `position` after value `before`; besides what is written it sees its own row's `chain`."""
        logits = []
        for prompt in self.prompts:  # [P, D]
            size = len(prompt)
            seen = {size + place: value for place, value in (self.written | (chain or {})).items() if place < position - 1}
            values = {slot: self.model.table[value] for slot, value in seen.items()} | dict(enumerate(prompt))
            if position:
                values[size + position - 1] = self.model.table[before]
            slots = torch.tensor(sorted(values))
            stored = torch.zeros(1, int(slots.max()) + 1, WIDE)
            stored[0, slots] = torch.stack([values[int(slot)] for slot in slots])
            visible = torch.zeros(1, 1, stored.shape[1], dtype=torch.bool)
            visible[..., slots] = True
            logits.append(self.model.logits(self.model.blur(stored, visible, torch.tensor([[size + position - 1]]))))
        scores = logits[0] if self.guidance is None else logits[1] + self.guidance * (logits[0] - logits[1])
        nothing = torch.zeros(1, 0, dtype=torch.long)
        return Categorical(self.processors(scores, History(nothing, torch.zeros(1, 1, 0, dtype=torch.bool), at(position))))

    def run(self, least: int, window: int, lanes: int, way: Callable) -> tuple[list[int], int]:
        """The whole output and the number of forwards."""
        rerun, raster = set(), self.raster  # rows whose last token is run behind the row, over a stand-in or before a control
        while self.done != self.lengths:
            most, before = {}, {}
            for row in range(self.height):
                free = row < lanes or (self.done[row - lanes] == self.lengths[row - lanes] and row - lanes not in rerun)
                ready = row == 0 or self.done[row] or self.cells(row - 1) >= min(least, self.width)
                if not (free and ready) or self.done[row] == self.lengths[row]:
                    continue
                gap = self.cells(row - 1) - self.cells(row) if row else window
                most[row] = min(window, gap, self.lengths[row] - self.done[row])
                place = self.starts[row] + self.done[row] - 1
                before[row] = self.committed.get(place, raster.forced[place])
                if before[row] == FREE and place >= 0:
                    before[row] = self.committed[self.starts[row - 1] + self.done[row - 1] - 1]
            for row in rerun:
                place = self.starts[row] + self.lengths[row] - 1
                self.written[place] = self.committed[place]
            self.written |= {self.starts[row] + self.done[row] - 1: before[row] for row in most if row or self.done[row]}
            found = {row: way(self, row, self.starts[row] + self.done[row], most[row], before[row]) for row in most}
            rerun = set()
            for row, (values, run) in found.items():
                first = self.starts[row] + self.done[row]
                self.committed |= {first + step: value for step, value in enumerate(values)}
                self.written |= {first + step: value for step, value in enumerate(values[:run])}
                self.done[row] += len(values)
            for row in found:
                if self.done[row] == self.lengths[row] and row + 1 < self.height:  # found out just now
                    control = raster.forced[self.starts[row + 1] - 1] != FREE
                    if control or self.done[row + 1]:
                        rerun.add(row)
            self.forwards += 1
        return [self.committed.get(place, raster.forced[place]) for place in range(raster.length)], self.forwards


def at(*numbers: int) -> Tensor:
    return torch.tensor([numbers])


def fixed(scribe: Scribe, row: int, position: int, most: int, before: int) -> tuple[list[int], int]:
    """ZipAR: one draw. The way returns the values and how many of them have been run."""
    return [int(scribe.distribution(position, before).sample(scribe.noise.value(at(position))))], 0


def widening() -> Callable:
    """Adaptive ZipAR."""
    waiting: dict[int, tuple[Tensor, Categorical]] = {}

    def way(scribe: Scribe, row: int, position: int, most: int, before: int) -> tuple[list[int], int]:
        distribution, above = scribe.distribution(position, before), scribe.cells(row - 1)
        value, kept = distribution.sample(scribe.noise.value(at(position))), False
        if row in waiting:
            old, q = waiting[row]
            chance = float(distribution.probs()[0, 0, int(old)] / q.probs()[0, 0, int(old)])
            kept = float(scribe.noise.accept(at(position), torch.tensor([above])).uniform()) < chance
            value = old if kept else distribution.residual(q, old).sample(scribe.noise.residual(at(position), torch.tensor([above])))
        if row and not scribe.done[row] and not kept and above < scribe.width:
            waiting[row] = value, distribution
            return [], 0
        waiting.pop(row, None)
        return [int(value)], 0

    return way


def jacobi() -> Callable:
    """PJD with fresh draft tokens that are first the value above, and in the first row the value before."""
    distributions: dict[int, dict[int, Categorical]] = {}

    def way(scribe: Scribe, row: int, position: int, most: int, before: int) -> tuple[list[int], int]:
        raster, size = scribe.raster, scribe.raster.values
        began = torch.tensor([position + (scribe.forwards << 32)])
        draft_tokens, q, known = [], [], distributions.get(row, {})  # what the round before said of places not committed
        for place in range(position, position + most - 1):
            if place in known:
                q.append(known[place])
                draft_tokens.append(int(q[-1].sample(scribe.noise.draft_token(at(place), began))))
                continue
            near, edge = place, position + len(known)
            while near >= edge:  # the nearest value there is a distribution for, or that is committed
                near = raster.up[near] if raster.up[near] != FREE else raster.left[near]
            if near == FREE:  # the picture's first cell: any code
                q.append(Categorical(Grammar(raster).at(torch.zeros(1, 1, size), at(place))))
                draft_tokens.append(int(q[-1].sample(scribe.noise.draft_token(at(place), began))))
                continue
            draft_tokens.append(draft_tokens[near - position] if near >= position else scribe.committed[near])
            q.append(Categorical.point(torch.tensor([[draft_tokens[-1]]]), size))
        chain = {position + step: value for step, value in enumerate(draft_tokens)}
        p = [scribe.distribution(position + step, [before, *draft_tokens][step], chain) for step in range(len(draft_tokens) + 1)]
        passed = 0
        for step, draft_token in enumerate(draft_tokens):
            chance = float(p[step].probs()[0, 0, draft_token] / q[step].probs()[0, 0, draft_token])
            if not float(scribe.noise.accept(at(position + step), began).uniform()) < chance:
                break
            passed += 1
        failed, whole = passed < len(draft_tokens), scribe.cells(row - 1) == scribe.width
        committed = draft_tokens[:passed]
        if most and not (failed and not whole):
            place, distribution = at(position + passed), p[passed]
            draft_token = torch.tensor([[draft_tokens[passed]]]) if failed else None
            keys = scribe.noise.residual(place, began) if failed else scribe.noise.value(place)
            committed = [*committed, int((distribution.residual(q[passed], draft_token) if failed else distribution).sample(keys))]
        distributions[row] = {position + step: p[step] for step in range(len(committed), len(p))}
        return committed, passed

    return way


def scribes(model: Blur, prompt: Prompt, processors: Pipeline, noise: Noise, run: Callable, guidance=None) -> tuple[Tensor, list[int]]:
    """`run(scribe)` for every picture alone: outputs [B, T] and forwards."""
    lists = [embeds[mask] for embeds, mask in zip(prompt.embeds, prompt.mask, strict=True)]
    pictures = len(noise.seeds)
    outputs, forwards = [], []
    for picture in range(pictures):
        own = [lists[picture]] if guidance is None else [lists[picture], lists[pictures + picture]]
        output, count = run(Scribe(model, own, processors, Noise(noise.seeds[picture : picture + 1]), guidance))
        outputs.append(output)
        forwards.append(count)
    return torch.tensor(outputs), forwards
