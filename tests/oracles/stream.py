"""A Markov model behind the real session, with samplers that look back: and the joint distribution of its outputs, path by path, in plain
Python.

The model is a table of logits, so that everything between logits and outputs is the engine's own: slots, masks, histories,
processors, drafts, commits. Distributions are computed in double.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmspec.core.control import Fixed
from mmspec.core.decode import decode
from mmspec.core.processors.history import History, Processor
from mmspec.core.processors.pipeline import Pipeline
from mmspec.core.protocols import Drafter
from mmspec.core.stopping import DefaultStopping
from mmspec.models.slot_cache import SlotCache
from mmspec.models.target import HFTarget
from tests.oracles.enumerate import Tape, TapeNoise, explore

END = 0
"""The value that ends an output, in all of these worlds."""


class MarkovFamily:
    """Logits of what follows a value are a row of the model, a table [V, V]."""

    def prompt(self, model, inputs):
        return inputs["input_ids"], inputs["attention_mask"].bool()

    def begin(self, model, inputs, capacity):
        return SlotCache(1, capacity), None

    def forward(self, model, layout, cache, state, keep, states=()):
        return model[layout.ids[:, -keep:]], None


@dataclass(frozen=True)
class Precise:
    """Distributions in double, whatever the model's dtype."""

    def __call__(self, scores: Tensor, history: History) -> Tensor:
        return scores.double()


def target(table: Tensor, *steps: Processor) -> HFTarget:
    return HFTarget(table, MarkovFamily(), Pipeline((Precise(), *steps)), reserve=8)


def tables(size: int, seed: int, knows: float = 0.6) -> tuple[Tensor, Tensor]:
    """Logits of a model and of a smaller one that knows something of it, [V, V]."""
    own, other = 1.5 * torch.randn(2, size, size, generator=torch.Generator().manual_seed(seed))
    return own, knows * own + (1 - knows) * other


def inputs(prompts: Sequence[Sequence[int]], left: bool = True) -> dict[str, Tensor]:
    """Prompts as a tokenizer hands them out, padded on either side."""
    longest = max(map(len, prompts))
    rows = [([0] * (longest - len(p)) + list(p)) if left else (list(p) + [0] * (longest - len(p))) for p in prompts]
    mask = [([0] * (longest - len(p)) + [1] * len(p)) if left else ([1] * len(p) + [0] * (longest - len(p))) for p in prompts]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(mask)}


# --- the distribution, without the engine --------------------------------------------------------------------------------------

Said = Callable[[list[float], list[int], int], list[float]]
"""(logits, the whole path, how many of it are outputs) -> logits or log-probabilities of the value that comes next."""


@dataclass(frozen=True)
class World:
    """A model and what is done to its logits, in plain Python."""

    table: Tensor
    says: Sequence[Said] = field(default_factory=tuple)

    def distribution(self, prompt: Sequence[int], outputs: Sequence[int]) -> list[float]:
        path = [*prompt, *outputs]
        scores = [float(x) for x in self.table[path[-1]]]
        for say in self.says:
            scores = say(scores, path, len(outputs))
        return softmax(scores)

    def joint(self, prompt: Sequence[int], most: int) -> Tensor:
        """Distribution of the outputs, as `encode` numbers them."""
        size = len(self.table)
        distribution = torch.zeros((size + 1) ** most, dtype=torch.float64)

        def go(outputs: list[int], chance: float) -> None:
            if len(outputs) == most or (outputs and outputs[-1] == END):
                distribution[int(encode([outputs], size, most)[0])] += chance
                return
            for value, probability in enumerate(self.distribution(prompt, outputs)):
                if probability > 0:
                    go([*outputs, value], chance * probability)

        go([], 1.0)
        return distribution


def softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return [weight / sum(weights) for weight in weights]


def log(distribution: Sequence[float]) -> list[float]:
    return [math.log(x) if x > 0 else -math.inf for x in distribution]


def encode(outputs: Sequence[Sequence[int]], size: int, most: int) -> Tensor:
    """One number for every output of up to `most` values."""
    codes = []
    for values in outputs:
        code = 0
        for value in [*values, *[size] * (most - len(values))]:
            code = code * (size + 1) + value
        codes.append(code)
    return torch.tensor(codes)


# --- the engine's -----------------------------------------------------------------------------------------------------


def run(
    own: HFTarget,
    drafter: Drafter,
    rule,
    prompts: Sequence[Sequence[int]],
    noise,
    *,
    most: int,
    length: int,
    left: bool = True,
    ends=(END,),
):
    """A whole `decode`: its outputs, and how many draft tokens were accepted and judged."""
    stopping, accepted, judged = DefaultStopping(len(prompts), most, ends), 0, 0
    for step in decode(own, drafter, rule, inputs(prompts, left), stopping=stopping, noise=noise, control=Fixed(length)):
        accepted, judged = accepted + sum(step.committed.accepted), judged + sum(step.committed.judged)
    return stopping.outputs, accepted, judged


def engine_distribution(
    own: HFTarget, drafter: Drafter, rule, prompt: Sequence[int], *, most: int, length: int, once: bool = True, ends: bool = True
) -> Tensor:
    """The exact distribution of whole runs after one prompt, by exploring every outcome.

    A row that has ended still draws while others go on, and a replay among others would draw less or more: where that happens the
    weights do not sum to 1. Without `ends` every run goes on to its last value, and outputs are cut where they would have ended.
    """
    size = len(own.model)

    def branch(tape: Tape) -> Tensor:
        noise, stop = TapeNoise(tape, most), (END,) if ends else ()
        outputs, _, _ = run(own, drafter, rule, [prompt] * tape.rows, noise, most=most, length=length, ends=stop)
        return encode([_cut(values) for values in outputs], size, most)

    outcomes = explore(branch, once=once)
    return outcomes.distribution(outcomes.values, (size + 1) ** most)


def _cut(values: list[int]) -> list[int]:
    return values[: values.index(END) + 1] if END in values else values
