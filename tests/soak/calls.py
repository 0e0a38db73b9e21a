"""Public calls of every modality on the shipped minis, with drafters, rules and trees in turn: what long runs and snapshots go through."""

from collections.abc import Callable
from itertools import product
from typing import Any

import mmspec
from mmspec.loading.text import MINIS
from mmspec.minis import vlm_model as sights

Call = Callable[[int], Any]
"""A public call with the settings of turn n; returns its result."""


def text() -> Call:
    mini = mmspec.load("text")
    drafters = [*mini.drafters.values(), "suffix", "layer-skip", "early-exit", "swift", "windowed", "similar-layers", None]
    trained = list(mini.drafters.values())
    turns = [{"drafter": drafter, "draft_length": 3} for drafter in drafters]
    turns += [{"drafter": drafter, "tree": tree} for drafter, tree in product(trained[:3], ("opt", "dynamic", "comb"))]
    turns += [{"drafter": trained[0], "accept": rule, "temperature": 1.0} for rule in ("exact", "token", "block")]

    def call(turn: int) -> Any:
        rows = slice(0, 1 + (turn % 4 == 0))
        inputs = {key: value[rows] for key, value in mini.examples.items()}
        options = {"temperature": float(turn % 3 == 0), "seed": turn, **turns[turn % len(turns)]}
        return mmspec.text.generate(mini.target, inputs, max_new_tokens=4, **options)

    return call


def pictures() -> Call:
    minis = {name: mmspec.load(name) for name in ("vision", "vision-fashion", "continuous", "continuous-mixture", "continuous-masked")}
    turns = [("vision-fashion", method) for method in ("jacobi", "eagle", "lantern", "zipar")]
    turns += [("vision", "jacobi"), ("continuous", "path"), ("continuous-mixture", "density"), ("continuous-masked", "plain")]

    def call(turn: int) -> Any:
        name, method = turns[turn % len(turns)]
        mini = minis[name]
        return mmspec.vision.generate(mini.target, mini.examples[:1], method=method, seed=turn)

    return call


def speech() -> Call:
    mini = mmspec.load("speech")
    drafters = [*mini.drafters.values(), "suffix", None]

    def call(turn: int) -> Any:
        options = {"drafter": drafters[turn % len(drafters)], "seed": turn, "max_seconds": 0.2}
        return mmspec.speech.synthesize(mini.target, ["six"], voice=mini.target.voices[turn % 3], **options)

    return call


def recommendations() -> Call:
    mini = mmspec.load("recsys")
    turns = [("plain", None), *product(("strict", "coupled", "sample"), [*mini.drafters.values()])]

    def call(turn: int) -> Any:
        mode, drafter = turns[turn % len(turns)]
        first = turn % (len(mini.examples) - 2)
        return mmspec.recsys.recommend(
            mini.target, mini.examples[first : first + 2], k=5, catalogue=mini.catalogue, drafter=drafter, method=mode, seed=turn
        )

    return call


def seeing() -> Call:
    mini = mmspec.load(MINIS["vlm"])
    inputs = sights.inputs_of(mini.processor, sights.asked(5, 2, "describe"))
    turns = [{"drafter": drafter} for drafter in (*mini.drafters.values(), "suffix", "layer-skip", "early-exit", None)]
    turns += [{"drafter": mini.drafters["vlm"], "view": view} for view in ("own", "pruned", ("own", "drop"))]

    def call(turn: int) -> Any:
        return mmspec.text.generate(mini.target, inputs, max_new_tokens=6, draft_length=3, **turns[turn % len(turns)])

    return call


CALLS = {"text": text, "pictures": pictures, "speech": speech, "recommendations": recommendations, "seeing": seeing}
COUNTS = {"text": 25, "pictures": 8, "speech": 5, "recommendations": 10, "seeing": 14}
"""How many turns there are before they come round again, at least."""
