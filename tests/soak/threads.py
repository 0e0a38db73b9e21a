"""Several threads with different drafters on one model: every output, and the model afterwards, must be as if each ran alone."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.drafters.features.eagle import Eagle1
from mmspec.drafters.heads.medusa import Medusa
from mmspec.drafters.self_drafting.adapter import Adapter
from mmspec.drafters.self_drafting.early_exit import EarlyExit
from mmspec.drafters.self_drafting.layer_skip import SimilarLayers, SkipLayers
from mmspec.drafters.self_drafting.mask_tokens import MaskTokens
from mmspec.drafters.self_drafting.swift import Swift
from mmspec.drafters.self_drafting.windowed import Windowed
from tests.conftest import llama
from tests.drafters.runs import random_prompt
from tests.families import FAMILIES, build, inputs_for
from tests.seeing import SIGHTS, seen
from tests.snapshots import differences, model_state

NEW = 12


@dataclass
class World:
    """One model, what drafts for it (a drafter, or a drafter with its options), and requests with the right outputs."""

    model: Any
    drafters: Mapping[str, Any]
    requests: Sequence[tuple[Mapping[str, Tensor], dict[str, Any]]]
    expected: list[list[list[int]]] = field(default_factory=list)

    def __post_init__(self):
        self.expected = [mmspec.text.generate(self.model, inputs, **options).sequences.tolist() for inputs, options in self.requests]

    def generated(self) -> list[Tensor]:
        """What transformers' own `generate` makes of the greedy requests."""
        return [self.model.generate(**inputs, do_sample=False, max_new_tokens=NEW) for inputs, _ in self.requests[:2]]


def options_of(temperature: float, seed: int) -> dict[str, Any]:
    return {"max_new_tokens": NEW, "temperature": temperature, "seed": seed}


OPTIONS = (options_of(0.0, 0), options_of(1.0, 3))


def llama_world() -> World:
    torch.manual_seed(0)
    model, small = llama(3, seed=0), llama(1, seed=1)
    sizes = model.config
    drafters = {
        "layer skip": SkipLayers(layers=(1,)),
        "early exit": EarlyExit(2),
        "swift": Swift(every=1, window=8, trials=12, guided=3),
        "parts": SkipLayers(attention=(0, 2), mlp=(1,)),
        "similar layers": SimilarLayers(window=6),
        "features": Eagle1(**Eagle1.fit(sizes)).eval(),
        "adapter": Adapter(**Adapter.fit(sizes) | {"layer": 2}).eval(),
        "windowed": Windowed(1, 3),
        "masks": MaskTokens(sizes.hidden_size, 3),
        "heads": Medusa(**Medusa.fit(sizes)).eval(),
        "model": small,
        "lookup": "suffix",
        "itself": model,
    }
    requests = [(inputs, options) for options in OPTIONS for inputs in (random_prompt(9), random_prompt(5, 9, 7, seed=1))]
    return World(model, drafters, requests)


def family_world(name: str) -> World:
    """An encoder-decoder model with the drafters that need no training."""
    model = build(FAMILIES[name])
    drafters = {
        "layer skip": SkipLayers(layers=(1,)),
        "early exit": EarlyExit(1),
        "similar layers": SimilarLayers(window=6),
        "windowed": Windowed(1, 3),
        "swift": Swift(every=1, window=8, trials=6, guided=3),
        "itself": model,
        "lookup": "suffix",
    }
    requests = [(inputs, options) for options in OPTIONS for inputs in (inputs_for(name, 1), inputs_for(name, 3))]
    return World(model, drafters, requests)


def sight_world() -> World:
    """A model that reads pictures; its drafters see them as it does, pooled, pruned by its attention, or not at all."""
    case = SIGHTS["LLaVA"].case
    model = build(case)
    drafters: dict[str, Any] = {view: {"drafter": build(case, seed=1), "view": view} for view in ("own", "drop", "pooled", "pruned")}
    drafters |= {"layer skip": SkipLayers(layers=(1,)), "itself": model, "lookup": "lookup"}
    requests = [(inputs, options) for options in OPTIONS for inputs in (seen("LLaVA", (1,)), seen("LLaVA", (1, 2, 1)))]
    return World(model, drafters, requests)


def run_threads(world: World, threads: int, calls: int, told: Callable[[str], None] = lambda line: None) -> list[str]:
    """What was wrong: outputs of any of `threads` x `calls` calls, changes to the model, or another output of its own `generate`."""
    generated, wrong = world.generated(), []  # transformers hooks vision towers at their first forward, for good
    before = model_state(world.model)
    start = threading.Barrier(threads)

    def work(number: int) -> None:
        start.wait()
        names = list(world.drafters)
        for call in range(calls):
            name, which = names[(number * 5 + call) % len(names)], (number + call) % len(world.requests)
            try:
                inputs, options = world.requests[which]
                drafter = world.drafters[name]
                chosen = drafter if isinstance(drafter, Mapping) else {"drafter": drafter}
                out = mmspec.text.generate(world.model, inputs, draft_length=3, **chosen, **options)
                if out.sequences.tolist() != world.expected[which]:
                    wrong.append(f"thread {number}, call {call}, {name}, request {which}: another output")
            except Exception as error:  # told with its place, and the run goes on
                wrong.append(f"thread {number}, call {call}, {name}, request {which}: {type(error).__name__}: {error}")
        told(f"thread {number}: {calls} calls")

    pool = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    wrong += [f"the model: {line}" for line in differences(before, model_state(world.model))]
    after = world.generated()
    wrong += [f"generate, request {i}" for i, pair in enumerate(zip(generated, after, strict=True)) if not torch.equal(*pair)]
    return wrong
