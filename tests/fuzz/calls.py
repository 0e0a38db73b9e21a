"""Wrong arguments of every kind for the public calls: (name, words one of which a refusal must hold, the call)."""

from collections.abc import Callable, Iterator
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import torch

import mmspec
from mmspec.core.rules.coupled import Coupled
from mmspec.drafters.retrieval.lookup import Lookup

Case = tuple[str, tuple[str, ...], Callable[[], Any]]
HUGE = 10**30
NAMES: tuple[Any, ...] = ("nope", "", "x" * 5000, "💥", "os:system", b"lookup", 3, 3.5, [], {}, object(), True)
SEEDS: tuple[Any, ...] = ("a", 1.5, None, [1, 2, 3], nan, [], ["a"], {}, [None])
DRAFT_LENGTHS: tuple[Any, ...] = (-1, "x", "", 1.5, None, nan, inf, 10**6, HUGE, [3], True, {})
TEMPERATURES: tuple[Any, ...] = (-1, nan, inf, "hot", [0.5, 0.5, 0.5], [], [None], {}, [nan])
TREES: tuple[Any, ...] = ("oak", "", [], [0], [-1], [1000, 1000, 1000], "nowhere.json", 3, [[0, 5]], {}, ["a"], [1.5], [10**9], [2] * 40)
_MODELS: tuple[Any, ...] = (None, "mini", 3, object(), [], torch.nn.Linear(2, 2))


def cases(minis: dict[str, Any], folder: Path) -> Iterator[Case]:
    """Every call; `folder` holds broken files."""
    yield from _text(minis["text"])
    yield from _speculate(minis["text"])
    yield from _vision(minis["vision"], minis["continuous"])
    yield from _speech(minis["speech"])
    yield from _recsys(minis["recsys"])
    yield from _loading(folder)


def _table(where: str, function: Callable[..., Any], base: dict[str, Any], wrong: dict[str, tuple[Any, ...]]) -> Iterator[Case]:
    """`function` with `base` and one wrong argument at a time; a refusal must name the argument."""
    for name, values in wrong.items():
        for value in values:
            words = (name, *name.split("_"), *_ALSO.get(name, ()))
            yield f"{where}({name}={str(value)[:40]!r})", words, partial(function, **(base | {name: value}))
    for name in ("drafterr", "temprature", "seeds", "verbose"):
        yield f"{where}({name}=1)", (name,), partial(function, **(base | {name: 1}))


_ALSO = {
    "inputs": ("input", "mask", "prompt", "ids", "rows"),
    "tree": ("branching", "template", "level"),
    "texts": ("text", "voice"),
    "prompts": ("prompt", "class", "text"),
    "histories": ("histor", "item", "prompt"),
    "view": ("drafter",),
    "accept": ("rule",),
    "stops": ("stop",),
    "processors": ("processor",),
    "samplers": ("sampler", "processor"),
}


def _ids(*rows: Any, **rest: Any) -> dict[str, Any]:
    return {"input_ids": torch.tensor(rows) if rows else torch.zeros(0, 4, dtype=torch.long), **rest}


def _inputs() -> tuple[Any, ...]:
    good = _ids([5, 6, 7])
    masks = ([[1, 1]], [[1, 2, 1]], [[nan, 1.0, 1.0]], [[0, 0, 0]], "x", [1, 1, 1], [[[1, 1, 1]]], [["a", "b", "c"]], 3)
    ids = ("x", [[1.5, 2.0]], [[-1, 2]], [[10**9, 1]], 3, [5, 6], [[[5]]], [[]], [[1, 2], [3]], [["a"]], [[True, False]], [[nan]], object())
    return (
        *(None, [], "text", {}, 3, {"ids": [[1]]}, {"input_ids": None}, {3: [[1]]}, _ids()),
        *({"input_ids": value} for value in ids),
        *({**good, "attention_mask": value} for value in masks),
        {**good, "pixel_values": torch.zeros(1)},
        {**good, "unheard_of": 1},
    )


_DRAWING: dict[str, tuple[Any, ...]] = {
    "temperature": TEMPERATURES,
    "top_k": (-1, 1.5, "a", nan, inf, [1, 2, 3], {}, [None]),
    "seed": SEEDS,
}
_DRAWING_TOKENS: dict[str, tuple[Any, ...]] = _DRAWING | {
    "top_p": (0, -1, 1.5, nan, "a", [0.5, 0.5, 0.5], {}),
    "repetition_penalty": (0, -1, nan, inf, "a", {}),
}


def _text(mini: Any) -> Iterator[Case]:
    base = {"model": mini.target, "inputs": _ids([5, 6, 7]), "max_new_tokens": 3}
    wrong = {
        "model": _MODELS,
        "inputs": _inputs(),
        "drafter": (*NAMES, "lookp", "cascade:x", "relay:lookup,x,suffix", "relay:", "builtins:print", Lookup, torch.nn.Linear(2, 2)),
        "accept": (*NAMES, "couple", None, Coupled),
        "max_new_tokens": (0, -1, 1.5, "4", None, nan, inf, 10**9, True, [4]),
        "stop_below": (nan, -1, 2, "a", inf),
        "view": ("drop", "nope", 3),
        "processors": (3, ["a"], [None], "x"),
        "stops": (3, ["a"], [None], "x"),
        "on_step": (3, "a"),
        "streamer": (3, "a"),
    }
    yield from _table("text.generate", mmspec.text.generate, base, wrong)
    sampled = base | {"temperature": 0.8}
    yield from _table("text.generate", mmspec.text.generate, sampled, _DRAWING_TOKENS)
    drafted = base | {"drafter": mini.drafters["model"]}
    yield from _table(
        "text.generate", mmspec.text.generate, drafted, {"draft_length": DRAFT_LENGTHS, "tree": TREES, "stop_below": (nan, -1, 2)}
    )
    yield from _table(
        "text.generate", mmspec.text.generate, base | {"drafter": "lookup"}, {"draft_length": DRAFT_LENGTHS, "tree": ([2, 1],)}
    )


def _speculate(mini: Any) -> Iterator[Case]:
    def run(**options: Any) -> Any:
        ids = torch.tensor([[5, 6, 7]])
        made = mmspec.text.speculate(**options)
        return mini.target.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=made, max_new_tokens=3, do_sample=False)

    wrong = {"drafter": NAMES, "accept": (*NAMES, None), "draft_length": DRAFT_LENGTHS, "tree": TREES, "stateless": (3, "x")}
    yield from _table("text.speculate", run, {"drafter": mini.drafters["model"]}, wrong)
    yield from _table("text.speculate", run, {"drafter": "lookup"}, {"seed": SEEDS[:2] + SEEDS[4:]})


def _vision(codes: Any, continuous: Any) -> Iterator[Case]:
    windows = (0, -1, 1.5, "x", "", nan, 10**9, HUGE, True, [3], {})
    base = {"model": codes.target, "prompts": ["a large red star top left"], "method": "plain"}
    wrong = {
        "model": _MODELS,
        "prompts": ([], None, 3, "", [""], [None], [3.5], {}, [object()], {"input_ids": 3}),
        "method": (*NAMES, "jacoby", "plane"),
        "guidance": (-1, nan, inf, "x", [1.0, 2.0, 3.0], {}),
        "size": (0, -1, "big", (1,), 10**6, 1.5),
        "init": ("nope", 3, object()),
        "couple": ("nope", 3),
        "accept": ("nope", 3),
        "drift_budget": (nan, -1, "x"),
        "sampling": (3, "x"),
        "on_step": (3, "a"),
        "drafter": ("any string at all", 3, object()),
        **_DRAWING,
    }
    yield from _table("vision.generate", mmspec.vision.generate, base, wrong)
    yield from _table(
        "vision.generate", mmspec.vision.generate, base | {"method": "jacobi"}, {"window": windows, "drafter": ("any string",)}
    )
    yield from _table("vision.generate", mmspec.vision.generate, base | {"method": "lantern"}, {"drift_budget": (nan, -1, "x")})
    tokens = {"model": continuous.target, "prompts": ["coat"]}
    others = {"method": ("nope", 3, "jacobi"), "window": windows, "top_k": (3,), "drafter": ("any string", 3), "guidance": (-1, nan, "x")}
    others |= {"temperature": (*TEMPERATURES, 0), "prompts": (["no such class"], [99], [], [None]), "accept": ("nope", 3), "seed": SEEDS}
    yield from _table("vision.generate", mmspec.vision.generate, tokens, others)
    wrong = {"pipeline": _MODELS}
    yield from _table("vision.denoise", mmspec.vision.denoise, {"pipeline": None}, wrong)


def _speech(mini: Any) -> Iterator[Case]:
    base = {"model": mini.target, "texts": ["two"], "max_seconds": 0.2}
    wrong = {
        "model": _MODELS,
        "texts": ([], None, 3, [""], [None], [3], {}, "", ["💥"], ["x" * 5000], [b"two"]),
        "drafter": (*NAMES, Lookup),
        "accept": (*NAMES, None),
        "voice": ("nope", 3, ["nope"], [], ["jackson"] * 3, {}, [None, None]),
        "max_seconds": (0, -1, nan, inf, "x", 10**9, {}),
        "guidance": (-1, nan, inf, "x"),
        "draft_length": DRAFT_LENGTHS,
        "samplers": (3, ["a"], [None]),
        "on_sound": (3,),
        "on_step": (3,),
        **_DRAWING_TOKENS,
    }
    wrong["temperature"] = tuple(value for value in TEMPERATURES if value is not None)
    yield from _table("speech.synthesize", mmspec.speech.synthesize, base | {"drafter": mini.drafters["model"]}, wrong)
    yield from _table("speech.synthesize", mmspec.speech.synthesize, base | {"drafter": mini.drafters["model"]}, {"tree": TREES})

    def stream(**options: Any) -> Any:
        return list(mmspec.speech.stream(**options))

    wrong = {
        "text": (None, 3, "", [], "💥"),
        "voice": ("nope",),
        "max_seconds": (nan, -1, "x"),
        "draft_length": (-1, 10**6),
        "seed": ("a",),
    }
    yield from _table("speech.stream", stream, {"model": mini.target, "text": "two", "max_seconds": 0.2}, wrong)


def _recsys(mini: Any) -> Iterator[Case]:
    base = {
        "model": mini.target,
        "histories": [mini.examples[0][:3]],
        "catalogue": mini.catalogue,
        "k": 2,
        "drafter": mini.drafters["model"],
    }
    size = len(mini.catalogue)
    wrong = {
        "model": _MODELS,
        "histories": (
            [],
            None,
            3,
            [[]],
            [["no such item"]],
            [[10**9]],
            [3],
            {},
            "x",
            [None],
            {"input_ids": [[1.5]]},
            {"input_ids": [[10**9]]},
        ),
        "k": (0, -1, 1.5, "x", None, nan, 10**6, True, [3]),
        "catalogue": (None, 3, "x", {}),
        "drafter": ("any string", 3, object(), []),
        "method": (*NAMES, "strickt"),
        "width": (0, -1, 1.5, "x", nan, 10**9, 1, True),
        "draft_length": DRAFT_LENGTHS,
        "allowed": (3, "x", torch.ones(3), torch.ones(size), torch.zeros(size, dtype=torch.bool)[None, None], [1]),
        "unseen": ("yes", 3),
        "allow": (3, "x", [], [3], [["no such item"]]),
        "deny": (3, "x", [None] * 9, ["x"], [[10**9]]),
        "beams": (0, -1, 1.5, "x", nan, 10**9, 1, True),
        "rules": (3, "x", {}),
        "on_step": (3,),
    }
    yield from _table("recsys.recommend", mmspec.recsys.recommend, base, wrong)
    drawn = {"temperature": (*TEMPERATURES, 0), "seed": SEEDS}
    yield from _table("recsys.recommend", mmspec.recsys.recommend, base | {"method": "coupled"}, drawn)


def _loading(folder: Path) -> Iterator[Case]:
    for name in (*NAMES, None, "txt", "../text", ["text"]):
        yield f"load({str(name)[:40]!r})", ("mini", "name"), partial(mmspec.load, name)
    files = ("junk.bin", "empty.bin", "", "drafter", "a/b", "loop", "model", "list.json")
    paths = [None, 3, "", "nowhere", b"x", "x" * 5000, *(folder / name for name in files)]
    for path in paths:
        yield f"load_drafter({str(path)[-30:]!r})", ("config.json", "path", "folder", str(path)[:20]), partial(mmspec.load_drafter, path)
    yield "load_drafter(options)", ("nope",), partial(mmspec.load_drafter, folder, nope=1)
