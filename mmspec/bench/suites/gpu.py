"""`mmspec bench --suite gpu`: every figure that waits for a GPU, on random weights of real sizes, in one call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch

from mmspec import recsys, text, vision
from mmspec.bench.suites.verify_step import SEVEN_B, TINY, random_llama, timed, verify_steps
from mmspec.core.noise import Noise
from mmspec.core.processors.history import History
from mmspec.core.processors.pipeline import pipeline
from mmspec.core.processors.truncation import distribution_of
from mmspec.utils.devices import device_of
from mmspec.utils.provenance import machine, provenance
from mmspec.vision import LlamaGen, LlamaGenConfig


@dataclass(frozen=True)
class SuiteSizes:
    """Sizes of a run: those of a GPU, or tiny ones that show that everything runs.

    Args:
        target: shape of the language model.
        drafter: shape of its drafter.
        picture: sizes of the image model.
        vocabulary: columns of the sampling line.
        items: items of the catalogue.
        new: tokens a text.
        context: cached positions of a verify step, and tokens of a prompt.
        dtypes: dtypes of the verify step; the first one is that of the other lines.
        compile: options of `torch.compile`.
    """

    target: Mapping[str, int]
    drafter: Mapping[str, int]
    picture: Mapping[str, int]
    vocabulary: int
    items: int
    new: int
    context: int
    dtypes: Sequence[torch.dtype]
    compile: Mapping[str, Any]


REAL = SuiteSizes(
    target=SEVEN_B,
    drafter=SEVEN_B | {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_hidden_layers": 8},
    picture={"vocab_size": 16384, "grid": 24, "hidden_size": 1280, "num_hidden_layers": 36, "num_attention_heads": 20}
    | {"intermediate_size": 3456},
    vocabulary=262_144,
    items=20_000,
    new=128,
    context=512,
    dtypes=(torch.bfloat16, torch.float16),
    compile={},
)
SMALL = SuiteSizes(
    target=TINY,
    drafter=TINY | {"num_hidden_layers": 1},
    picture={"vocab_size": 32, "grid": 3, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48},
    vocabulary=1024,
    items=60,
    new=8,
    context=16,
    dtypes=(torch.float32,),
    compile={"backend": "eager", "mode": None},
)

Row = dict[str, Any]
"""`line`, `run`, `ms` with quartiles `low` and `high`, and `ratio`: how many times as fast as the line's first run."""


def measure(budget_seconds: float = 600.0, device: str | None = None, repeats: int = 5, note: Callable[[str], None] | None = None) -> dict:
    """Run every line; those that the budget leaves no time for are listed.

    Args:
        budget_seconds: no line begins after this many seconds.
        device: name of a device; by default the first CUDA device. On others the models are tiny, and the figures mean nothing.
        repeats: timed runs of each contender, at least 2.
        note: called with the name of every line as it begins.

    Returns:
        `rows`, `skipped` (names of lines that were not run), `failed` (by name, the error), `budget_seconds` and `provenance`.

    Raises:
        ValueError: without a CUDA device where none is named, and for fewer than 2 repeats.
    """
    if device is None and not torch.cuda.is_available():
        raise ValueError("--suite gpu needs a CUDA device and torch sees none: run it on a machine with a GPU")
    if repeats < 2:
        raise ValueError(f"repeats is {repeats}: quartiles need at least 2")
    place, begun = device_of(device or "cuda"), perf_counter()
    scale = REAL if place.type == "cuda" else SMALL
    rows, skipped, failed = [], [], {}
    for name, line in LINES.items():
        if perf_counter() - begun > budget_seconds:
            skipped.append(name)
            continue
        if note is not None:
            note(name)
        try:
            rows += [{"line": name} | row for row in line(scale, place, repeats)]
        except (RuntimeError, ValueError) as error:  # a line that does not fit the device leaves the others
            failed[name] = str(error).splitlines()[0]
    return {"rows": rows, "skipped": skipped, "failed": failed, "budget_seconds": budget_seconds, "provenance": provenance(place)}


def render(found: Mapping[str, Any]) -> str:
    """Write the table of a `measure` as Markdown, with its provenance."""
    lines = [f"Machine: {machine(found['provenance'])}; {found['provenance']['date']}; medians with quartiles; random weights.", ""]
    lines += ["| line | run | ms (quartiles) | times the line's first |", "|---|---|---|---|"]
    for row in found["rows"]:
        lines.append(f"| {row['line']} | {row['run']} | {row['ms']:.2f} ({row['low']:.2f}-{row['high']:.2f}) | {row['ratio']:.2f} |")
    if found["skipped"]:
        lines.append(f"\nNot run, the budget of {found['budget_seconds']:.0f} s was spent: {', '.join(found['skipped'])}.")
    lines += [f"\n{name} failed: {error}" for name, error in found["failed"].items()]
    return "\n".join(lines) + "\n"


def _compared(runs: Mapping[str, Callable[[], object]], device: torch.device, repeats: int) -> list[Row]:
    """Time contenders in turn, so that a change of the device's clock meets all of them."""
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()  # compiles, and allocates
    for _ in range(repeats):
        for name, run in runs.items():
            seen[name].append(timed(run, device, 2, warm=0)[0])
    found = [(name, *torch.tensor(times).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()) for name, times in seen.items()]
    return [{"run": name, "ms": middle, "low": low, "high": high, "ratio": found[0][2] / middle} for name, low, middle, high in found]


# --- the lines --------------------------------------------------------------------------------------------------------


def _verify(scale: SuiteSizes, device: torch.device, repeats: int, dtype: torch.dtype) -> list[Row]:
    """A verify step of 1, 8 and 16 tokens against the floor of memory bandwidth."""
    model = random_llama(scale.target, device, dtype)
    rows, floor = verify_steps(model, (1, 8, 16), scale.context, 6 * repeats, scale.compile)
    bound = {"run": "floor", "ms": floor["floor_ms"], "low": floor["floor_ms"], "high": floor["floor_ms"], "ratio": 1.0}
    steps = [row | {"run": f"{row['run']}, {row['tokens']} tokens", "ratio": 1 / row["times_floor"]} for row in rows]
    return [bound, *steps]


def _verify_in(number: int, scale: SuiteSizes, device: torch.device, repeats: int) -> list[Row]:
    return _verify(scale, device, repeats, scale.dtypes[number]) if number < len(scale.dtypes) else []


def _text(scale: SuiteSizes, device: torch.device, repeats: int) -> list[Row]:
    """A text: transformers' generate, mmspec plain, by lookup and with a drafter model, and captured."""
    model: Any = random_llama(scale.target, device, scale.dtypes[0])
    small = random_llama(scale.drafter, device, scale.dtypes[0])
    ids = torch.randint(3, scale.target["vocab_size"], (1, scale.context), generator=torch.Generator().manual_seed(1)).to(device)
    own = {"max_new_tokens": scale.new, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    write = partial(text.generate, model, {"input_ids": ids}, max_new_tokens=scale.new)
    return _compared(
        {
            "transformers generate": lambda: model.generate(ids, **own),
            "transformers prompt lookup": lambda: model.generate(ids, prompt_lookup_num_tokens=8, **own),
            "plain": write,
            "lookup": lambda: write("lookup"),
            "model, 4 draft tokens": lambda: write(small, draft_length=4),
            "plain, captured": lambda: write(capture=True),
            "model, 4 draft tokens, captured": lambda: write(small, draft_length=4, capture=True),
            "model, tree": lambda: write(small, tree=(3, 2, 1)),
        },
        device,
        repeats,
    )


def _pictures(scale: SuiteSizes, device: torch.device, repeats: int) -> list[Row]:
    """A guided picture: plain and by a Jacobi window, and both captured."""
    torch.manual_seed(0)
    with device:
        model = LlamaGen(LlamaGenConfig(classes=3, **scale.picture)).to(scale.dtypes[0]).eval()  # pyright: ignore[reportArgumentType]
    draw = partial(vision.generate, model, [0], guidance=4.0, seed=1)
    window = min(32, scale.picture["grid"] ** 2)
    return _compared(
        {
            "plain": lambda: draw(method="plain"),
            f"jacobi, window {window}": lambda: draw(method="jacobi", window=window),
            "plain, captured": lambda: draw(method="plain", capture=True),
            f"jacobi, window {window}, captured": lambda: draw(method="jacobi", window=window, capture=True),
        },
        device,
        repeats,
    )


def _items(scale: SuiteSizes, device: torch.device, repeats: int) -> list[Row]:
    """Ten items for 32 users: plain beam search, and drafted by a smaller model."""
    levels, size = 4, 256
    codes = torch.randint(0, size, (scale.items, levels), generator=torch.Generator().manual_seed(0))
    shop = recsys.Catalogue.of_codes(list(range(scale.items)), codes, size, 2, before=(1,))
    words = {"vocab_size": 2 + levels * size}
    model, small = (random_llama({**shape, **words}, device, scale.dtypes[0]) for shape in (scale.drafter, TINY))
    histories = [[(13 * user + 7 * place) % scale.items for place in range(10)] for user in range(32)]
    find = partial(recsys.recommend, model, histories, k=10, catalogue=shop)
    return _compared(
        {
            "plain": lambda: find(method="plain"),
            "strict, small model": lambda: find(drafter=small),
            "plain, captured": lambda: find(method="plain", capture=True),
        },
        device,
        repeats,
    )


def _sampling(scale: SuiteSizes, device: torch.device, repeats: int) -> list[Row]:
    """Making distributions of 8 columns and drawing from them, without a network: truncated and not."""
    scores = 4 * torch.randn(1, 8, scale.vocabulary, generator=torch.Generator().manual_seed(0)).to(device)
    position = torch.arange(8, device=device)[None]
    history = History(position, torch.ones(1, 8, 8, dtype=torch.bool, device=device).tril(), position)
    noise = Noise.from_seed(0, 1, device)

    def draw(**settings: Any) -> Callable[[], object]:
        steps = pipeline(temperature=0.7, **settings)
        return lambda: distribution_of(steps, scores, history).sample(noise.value(position))

    runs = {"untruncated": draw(), "top-p 0.9": draw(top_p=0.9), "top-k 50, top-p 0.9": draw(top_k=50, top_p=0.9)}
    return _compared(runs, device, 6 * repeats)


LINES: dict[str, Callable[[SuiteSizes, torch.device, int], list[Row]]] = {
    "verify step": partial(_verify_in, 0),
    "text": _text,
    "pictures": _pictures,
    "items": _items,
    "sampling": _sampling,
    "verify step, second dtype": partial(_verify_in, 1),
}
"""The lines by name, in the order in which they are run."""
