"""Wrong arguments of every kind for every argument of every public call: (name, words one of which a refusal must hold, the call).

    python -m tests.fuzz.calls              # every call; --share 0.1 a part that is drawn with a fixed seed, --only NAME those of one call

The calls are found, not listed: functions and classes of `mmspec.__all__` and of the four packages' `__all__`, and their public methods.
`valid` holds a small valid value for each argument that a call requires; a call that requires another one fails the fuzz until it is there.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from dataclasses import is_dataclass
from functools import partial
from importlib import import_module
from math import inf, nan
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any

import numpy as np
import soundfile
import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor

import mmspec
from mmspec.core.result import Result
from mmspec.core.rules.coupled import Coupled
from mmspec.drafters.self_drafting.swift import search_parts
from mmspec.utils.strict import fits, parameters_of
from tests.fuzz.files import broken_files
from tests.fuzz.harness import Report, bounded_memory, main
from tests.fuzz.harness import call as outcome_of_call
from tests.speech.small_whisper import processor, sounds, whisper
from tests.vision.small_models import janus
from tests.vision.test_diffusion import mixture_pipeline

Case = tuple[str, tuple[str, ...], Callable[[], Any], bool]
"""Name, words, call, whether it must be refused."""
HUGE = 10**400
BEYOND = 10**5000  # longer than Python writes as a text


def _deep() -> Any:
    found: Any = []
    for _ in range(5000):
        found = [found]
    return found


EVERY: tuple[Any, ...] = (None, True, 0, -1, 3, 10**9, 1.5, nan, inf, HUGE, BEYOND, "", "nope", "[red]x[/nope]", "a\0b", "x" * 5000)
EVERY += (
    b"x",
    [],
    [None],
    ["nope"],
    [10**9],
    {},
    {"nope": 1},
    {1},
    object(),
    object,
    _deep(),
    Path("nowhere"),
    torch.zeros(0),
    nn.Linear(2, 2),
)
NAMES: tuple[Any, ...] = ("nope", "", "x" * 5000, "💥", "os:system", b"lookup", 3, 3.5, [], {}, object(), True)
SEEDS: tuple[Any, ...] = ("a", 1.5, [1, 2, 3], nan, [], ["a"], {}, [None])
DRAFT_LENGTHS: tuple[Any, ...] = (-1, "x", "", 1.5, nan, inf, 10**6, HUGE, [3], True, {})
TEMPERATURES: tuple[Any, ...] = (-1, nan, inf, "hot", [0.5, 0.5, 0.5], [], [None], {}, [nan])
TREES: tuple[Any, ...] = ("oak", "", [], [0], [-1], [1000, 1000, 1000], "nowhere.json", 3, [[0, 5]], {}, ["a"], [1.5], [10**9], [2] * 40)
MODELS: tuple[Any, ...] = (None, "mini", 3, object(), [], nn.Linear(2, 2))
WINDOWS: tuple[Any, ...] = (0, -1, 1.5, "x", "", nan, 10**9, HUGE, True, [3], {})


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


WRONG: dict[str, tuple[Any, ...]] = {
    "accept": (*NAMES, "couple", Coupled),
    "allow": (3, "x", [], [3], [["no such item"]]),
    "allowed": (3, "x", torch.ones(3), torch.zeros(9, 9, 9, dtype=torch.bool), [1]),
    "beams": (0, -1, 1.5, "x", nan, 10**9, True),
    "catalogue": (3, "x", {}),
    "couple": ("nope", 3),
    "deny": (3, "x", [None] * 9, ["x"], [[10**9]]),
    "draft_length": DRAFT_LENGTHS,
    "drafter": (3, 3.5, b"lookup", [], {}, object(), object, True),
    "drift_budget": (nan, -1, "x"),
    "guidance": (-1, nan, inf, "x", [1.0, 2.0, 3.0], {}),
    "histories": ([], None, 3, [[]], [["no such item"]], [[10**9]], [3], {}, "x", [None], {"input_ids": [[1.5]]}, {"input_ids": [[10**9]]}),
    "init": ("nope", 3, object()),
    "inputs": _inputs(),
    "k": (0, -1, 1.5, "x", nan, 10**6, True, [3]),
    "max_new_tokens": (0, -1, 1.5, "4", nan, inf, 10**9, True, [4]),
    "max_seconds": (0, -1, nan, inf, "x", 10**9, {}),
    "method": (*NAMES, "jacoby", "plane", "strickt"),
    "model": MODELS,
    "on_sound": (3,),
    "on_step": (3, "a"),
    "pipeline": MODELS,
    "processors": (3, ["a"], [None], "x", [SynthIDTextWatermarkLogitsProcessor(3, [1, 2], 8, 0, 8, torch.device("cpu"))]),
    "prompts": ([], None, 3, "", [None], [3.5], {}, [object()], {"input_ids": 3}),
    "repetition_penalty": (0, -1, nan, inf, "a", {}),
    "rules": (3, "x", {}),
    "samplers": (3, ["a"], [None]),
    "sampling": (3, "x"),
    "seed": SEEDS,
    "size": (0, -1, "big", (1,), 10**6, 1.5),
    "stateless": (3, "x"),
    "stop_below": (nan, -1, 2, "a", inf),
    "stops": (3, ["a"], [None], "x"),
    "streamer": (3, "a"),
    "temperature": TEMPERATURES,
    "texts": ([], None, 3, [""], [None], [3], {}, "", [b"two"]),
    "top_k": (-1, 1.5, "a", nan, inf, [1, 2, 3], {}, [None]),
    "top_p": (0, -1, 1.5, nan, "a", [0.5, 0.5, 0.5], {}),
    "tree": TREES,
    "unseen": ("yes", 3),
    "view": ("nope", 3),
    "voice": ("nope", 3, ["nope"], [], ["jackson"] * 3, {}, [None, None]),
    "width": (0, -1, 1.5, "x", nan, 10**9, True),
    "window": WINDOWS,
}
"""Argument -> values that each call refuses which has the argument; None is refused where the annotation has none."""
ALSO: dict[str, tuple[str, ...]] = {
    "accept": ("rule", "method", "head", "draft"),
    "allow": ("item",),
    "allowed": ("item", "mask"),
    "captions": ("caption", "view", "cannot be loaded"),
    "decoder": ("cannot be loaded",),
    "deny": ("item",),
    "codec": ("cannot be loaded",),
    "device": ("cannot be loaded",),
    "dtype": ("cannot be loaded",),
    "draft_length": ("levels",),
    "drafter": ("draft", "head", "method"),
    "drafter_tokenizer": ("tokenizer",),
    "history": ("item",),
    "histories": ("histor", "item", "prompt"),
    "inputs": ("input", "mask", "prompt", "ids", "rows"),
    "mode": ("method",),
    "model": ("model", "pipeline", "stage"),
    "name": ("mini", "view"),
    "path": ("config.json", "cannot be loaded"),
    "size": ("cannot be loaded",),
    "sounds": ("sound", "audio", "recording"),
    "torch_dtype": ("cannot be loaded",),
    "reference": ("model",),
    "target": ("model", "config.json"),
    "processors": ("processor",),
    "prompt": ("class", "text", "label"),
    "prompts": ("prompt", "class", "text"),
    "samplers": ("sampler", "processor"),
    "stops": ("stop",),
    "texts": ("text", "voice"),
    "top_k": ("head", "tokens"),
    "top_p": ("head", "tokens"),
    "tree": ("branching", "template", "level", "draft"),
    "view": ("drafter", "view"),
    "weights": ("ensemble", "view"),
    "window": ("draft",),
}
"""Argument -> other words by which a refusal may name it."""


UNCHECKED = {"path", "row", "shelf"}
"""Look-ups that a search calls for every beam."""
LATE = ("vision.accelerate", "vision.speculate", "recsys.rank_candidates", "text.aligned_drafter", "recsys.Catalogue.of_codes")
"""Calls that compare some arguments with a request that is not there yet, or take any number of items."""
MADE = ("ItemNGram", "PipelineOutput", "Retriever", "SpeechQuality", "Transcription")
"""Records that calls or alternative constructors make."""


def made_by_calls(kind: type) -> bool:
    """True for classes whose objects calls return or that users extend: their constructors are no requests."""
    returned = is_dataclass(kind) and kind.__name__ in MADE
    network = issubclass(kind, nn.Module | PreTrainedConfig)  # constructors of transformers' own kind
    return issubclass(kind, Result | Iterator) or returned or network or inspect.isabstract(kind)


def public_calls() -> dict[str, Callable[..., Any]]:
    """Every public function, constructor and alternative constructor, by its name."""
    found: dict[str, Callable[..., Any]] = {"search_parts": search_parts}
    for package in ("mmspec", "mmspec.text", "mmspec.vision", "mmspec.speech", "mmspec.recsys"):
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            where = f"{package.partition('.')[2]}.{name}".removeprefix(".")
            if inspect.isclass(value) and value is not mmspec.vision.Prompt:  # what families make of prompts
                found |= {} if made_by_calls(value) else {where: value}
                made = [each for each, kind in vars(value).items() if isinstance(kind, classmethod | staticmethod)]
                found |= {f"{where}.{each}": getattr(value, each) for each in made if each[0] != "_" and each != "restored"}
            elif isinstance(value, FunctionType):
                found[where] = value
    return found


REST: dict[str, Callable[..., Any]] = {
    "Engine.submit": mmspec.text.generate,
    "explain": mmspec.text.generate,
    "recsys.Catalogue.of": mmspec.recsys.Catalogue,
    "recsys.Catalogue.of_codes": mmspec.recsys.Catalogue,
    "speech.stream": mmspec.speech.synthesize,
    "vision.accelerate": mmspec.vision.speculate,
}
"""A call that passes further keywords on -> the call whose they are."""
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("text.generate", "top_k"): {"temperature": 0.8},
    ("text.generate", "top_p"): {"temperature": 0.8},
    ("vision.generate", "drift_budget"): {"method": "lantern"},
    ("recsys.recommend", "seed"): {"method": "coupled"},
    ("recsys.recommend", "temperature"): {"method": "coupled"},
}
"""(Call, argument) -> what else is given, so that the argument is read."""


def valid_arguments(minis: Mapping[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """A small valid request of every public call that has required arguments, by its name."""
    text, vision, speech, recsys = (minis[name] for name in ("text", "vision", "speech", "recsys"))
    catalogue, histories = recsys.catalogue, [recsys.examples[0][:3]]
    tokens, items = {"max_new_tokens": 2}, {"model": recsys.target, "histories": histories, "catalogue": catalogue}
    return {
        "Engine": {"target": text.target},
        "Engine.submit": {"inputs": _ids([5, 6, 7]), **tokens},
        "explain": {"model": text.target, "inputs": _ids([5, 6, 7]), "drafter": "lookup", **tokens},
        "load": {"name": "text"},
        "load_drafter": {"path": folder / "drafter"},
        "recsys.Catalogue": {"items": ["a", "b"], "paths": torch.tensor([[1, 2], [1, 3]])},
        "recsys.Catalogue.inputs": {"histories": histories},
        "recsys.Catalogue.mask": {"items": list(catalogue.items[:3])},
        "recsys.Catalogue.name": {"item": catalogue.items[0]},
        "recsys.Catalogue.of": {"paths": {"a": [1, 2], "b": [1, 3]}},
        "recsys.Catalogue.of_codes": {"items": ["a", "b"], "codes": torch.tensor([[0, 1], [0, 2]])},
        "recsys.Catalogue.only": {"mask": catalogue.mask(catalogue.items[:3])},
        "recsys.Catalogue.read": {"path": folder / "junk.parquet"},
        "recsys.Catalogue.shown": {"histories": histories},
        "recsys.Catalogue.tokens": {"history": histories[0]},
        "recsys.Catalogue.write": {"path": folder / "written.parquet"},
        "recsys.GroupRules": {"groups": {"a": "b"}},
        "recsys.ItemNGram.load": {"path": folder / "junk.safetensors", "catalogue": catalogue},
        "recsys.ItemNGram.of": {"catalogue": catalogue, "histories": histories},
        "recsys.Retriever.of": {"catalogue": catalogue, "histories": histories},
        "recsys.rank_candidates": {**items, "candidates": [list(catalogue.items[:3])]},
        "recsys.recommend": {**items, "k": 2, "drafter": recsys.drafters["model"]},
        "search_parts": {"target": text.target, "prompt": _ids([5, 6, 7]), "trials": 1, "new": 2},
        "speech.VoiceSample": {"samples": torch.zeros(8), "rate": 8000},
        "speech.VoiceSample.read": {"path": folder / "good.wav"},
        "speech.assess_quality": {"waveforms": [torch.zeros(800)], "sample_rate": 8000},
        "speech.load": {"name": folder / "model"},
        "speech.stream": {"model": speech.target, "text": "two", "max_seconds": 0.1},
        "speech.synthesize": {"model": speech.target, "texts": ["two"], "drafter": speech.drafters["model"], "max_seconds": 0.1},
        "speech.transcribe": {"model": whisper(), "processor": processor(), "sounds": sounds(0.2), "max_new_tokens": 2},
        "speech.whole_sentences": {"chunks": ["a."]},
        "text.StopStrings": {"strings": ("a",), "decode": str},
        "text.aligned_drafter": {"model": text.target, "drafter": text.drafters["model"]}
        | dict.fromkeys(("tokenizer", "drafter_tokenizer"), text.processor),
        "text.generate": {"model": text.target, "inputs": _ids([5, 6, 7]), "drafter": text.drafters["model"], **tokens},
        "text.speculate": {"drafter": text.drafters["model"]},
        "text.view": {"name": "drop"},
        "vision.ContinuousPictures": {"model": minis["continuous"].target.model},
        "vision.ImagePrompt": {"text": "a"},
        "vision.Pipeline": {"model": vision.target},
        "vision.Pipeline.__call__": {"prompt": "a large red star top left"},
        "vision.Pipeline.from_pretrained": {"path": folder / "model"},
        "vision.Pipeline.save_pretrained": {"folder": folder / "saved"},
        "vision.Pipeline.to": {"device": "cpu"},
        "vision.accelerate": {"model": janus()},
        "vision.denoise": {"pipeline": mixture_pipeline(), "steps": 4},
        "vision.generate": {"model": vision.target, "prompts": ["a large red star top left"]},
        "vision.image_model": {"model": vision.target},
    }


def requests(minis: Mapping[str, Any], engine: Any) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Every public call and every method of an object that users hold, by name: (what has the signature, what is called)."""
    target = minis["text"].target
    pipeline = mmspec.vision.Pipeline(minis["vision"].target)
    held = {"Engine": engine, "vision.Pipeline": pipeline, "recsys.Catalogue": minis["recsys"].catalogue}
    found = {name: (call, call) for name, call in public_calls().items()}
    for name, value in held.items():
        kinds = [vars(kind) for kind in type(value).__mro__ if kind.__module__.startswith("mmspec")]
        names = {each for kind in kinds for each, part in kind.items() if isinstance(part, FunctionType)}
        methods = {each: getattr(value, each) for each in sorted(names - UNCHECKED) if each == "__call__" or each[0] != "_"}
        found |= {f"{name}.{each}": (method, method) for each, method in methods.items() if inspect.signature(method).parameters}

    def speculated(**options: Any) -> Any:
        ids = torch.tensor([[5, 6, 7]])
        made = mmspec.text.speculate(**options)
        return target.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=made, max_new_tokens=2, do_sample=False)

    found["text.speculate"] = (mmspec.text.speculate, speculated)
    found["Engine"] = (mmspec.Engine, lambda **options: mmspec.Engine(**options).close())
    found["Engine.submit"] = (engine.submit, lambda **options: engine.submit(**options).result(timeout=3))
    del found["Engine.close"]
    return found


def _run(call: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    found = call(**arguments)
    if isinstance(found, Iterator):
        for _ in zip(range(8), found, strict=False):
            pass


def _is_right(argument: str, value: Any, hint: Any) -> bool:
    """True for values that a caller may give: their failures are a function's of the caller, or they take a minute to compile."""
    return (value is object and "Callable" in str(hint)) or (argument == "capture" and value is True)


def _must_fail(name: str, argument: str, value: Any, hint: Any, default: Any) -> bool:
    """True where the value is wrong in every call that has the argument, or is no value of the annotation."""
    if value is None and default is None:
        return False
    if name in LATE:
        return not fits(value, hint)
    return any(value is each for each in WRONG.get(argument, ())) or not fits(value, hint)


def cases(minis: Mapping[str, Any], folder: Path, engine: Any) -> Iterator[Case]:
    """Every argument of every public call with every wrong value, and unknown arguments; `folder` holds broken files."""
    valid = valid_arguments(minis, folder)
    for name, (signed, call) in requests(minis, engine).items():
        base, parameters = valid.get(name, {}), dict(parameters_of(signed)[0].parameters)
        hints = parameters_of(signed)[1]
        missing = [each.name for each in parameters.values() if each.default is each.empty and each.kind < each.VAR_KEYWORD]
        assert set(missing) - {"parts"} <= set(base), f"{name} requires {missing}: give valid ones in valid_arguments"
        if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            own = REST.get(name)
            parameters |= {} if own is None else parameters_of(own)[0].parameters
            hints = ({} if own is None else parameters_of(own)[1]) | hints
        for argument, parameter in parameters.items():
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            words = (argument, *argument.split("_"), *ALSO.get(argument, ()))
            given = base | NEEDED.get((name, argument), {})
            for value in (*EVERY, *WRONG.get(argument, ())):
                if _is_right(argument, value, hints.get(argument)):
                    continue
                wrong = _must_fail(name, argument, value, hints.get(argument, Any), parameter.default)
                named = (*words, value[:20]) if isinstance(value, str) and value else words
                yield f"{name}({argument}={_shown(value)})", named, partial(_run, call, given | {argument: value}), wrong
        for argument in ("drafterr", "temprature", "seeds", "verbose"):
            yield f"{name}({argument}=1)", (argument,), partial(_run, call, base | {argument: 1}), True


def _shown(value: Any) -> str:
    try:
        return repr(value)[:40]
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} too large to show"


def run(folder: Path, share: float = 1.0, only: str = "") -> Report:
    """Run the calls whose names begin with `only`, or a `share` of them drawn with a fixed seed; `folder` is for broken files."""
    report, random = Report(), Random(0)
    torch.manual_seed(0)
    minis = {name: mmspec.load(name) for name in ("text", "vision", "continuous", "speech", "recsys")}
    soundfile.write(folder / "good.wav", np.zeros(800), 8000)
    with chdir(folder), bounded_memory(), mmspec.Engine(minis["text"].target) as engine:
        for name, words, function, wrong in cases(minis, broken_files(folder), engine):
            if random.random() < share and name.startswith(only):
                report.add(*outcome_of_call(function, words, wrong), request=name)
    return report


if __name__ == "__main__":
    main("calls", run)
