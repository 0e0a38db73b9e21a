"""A target on disk, drafted for by best-first trees of rising size: what a token costs in loads of layers, a table.

    python text/fetch_model.py && python text/measure_offload.py          # Gemma 3 270M; half an hour on 2 cores
    python text/measure_offload.py --model ./big --drafter ./small --sizes 64 256 1024 --temperatures 0
    python text/measure_offload.py --smoke

accelerate keeps the target's weights on disk and brings in each module for its forward. The drafter stays in memory: another model, or by
default a copy of the target with int8 linear layers (its embedding stays float32). Rows differ in the draft tokens a round; "lookup"
copies earlier text and needs no memory. Every row's tokens are compared with plain decoding of the same prompts and seeds. Prompts are
Spec-Bench's, from MMSPEC_DATA. Loads, bytes and calls are counts; CPU seconds are the process's and hold both models' work and the copies
from disk.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import torch
from accelerate import disk_offload

import mmspec
from mmspec.bench.suites.prompts import own_prompts, prompts_of, spread_out
from mmspec.core.stats import Stats
from mmspec.drafters.trees.best_first import BestFirst
from mmspec.loading.transformers import load_model
from mmspec.loading.wheels import model_folder
from mmspec.utils.files import write_json
from mmspec.utils.provenance import provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe

HEAD = "| drafter | nodes | temperature | tokens a call | layer loads a token | MB a token | drafter calls a token | columns a token |"
HEAD += " CPU s a token | s a token | plain's tokens |"
KINDS = ("conversation", "translation", "summarization", "qa", "math", "rag")


def watched(target: Any, drafters: list[Any]) -> Counter[str]:
    """Counts of forwards of the drafters, and of what forwards of the target bring in from disk, from now on."""
    counts: Counter[str] = Counter()
    layers = set(target.model.layers)
    for module in target.modules():
        size = sum(part.numel() * part.element_size() for part in module.parameters(recurse=False) if part.is_meta)
        if size:
            module.register_forward_pre_hook(lambda *_, size=size: counts.update(bytes=size))
        if module in layers:
            module.register_forward_pre_hook(lambda *_: counts.update(layers=1))
    for drafter in drafters:
        drafter.target.target.model.register_forward_pre_hook(lambda *_: counts.update(drafts=1))
    return counts


def rows(drafter: Any, args: argparse.Namespace) -> Iterator[tuple[str, Any, int | str]]:
    """What is compared: a name, the drafter and the draft tokens a round."""
    yield "plain", None, 0
    yield "lookup", "lookup", args.lookup
    shaped = replace(drafter, shape=BestFirst(width=args.width))
    for size in args.sizes:
        yield "best-first", shaped, size


def measured(
    name: str, drafter: Any, length: Any, target: Any, inputs: list[Any], temperature: float, counts: Counter[str], new: int
) -> dict:
    """One row of the table."""
    stats, texts = Stats(), []
    counts.clear()
    cpu, clock = process_time(), perf_counter()
    for seed, prompt in enumerate(inputs):
        settings = {"max_new_tokens": new, "temperature": temperature, "seed": seed, "on_step": stats.add}
        texts.append(mmspec.text.generate(target, prompt, drafter, draft_length=length, **settings).tokens.tolist())
    tokens = max(1, stats.tokens)
    return {
        "drafter": name,
        "nodes": length,
        "temperature": temperature,
        "tokens_per_call": stats.tokens_per_call,
        "layer_loads": counts["layers"] / tokens,
        "megabytes": counts["bytes"] / tokens / 1e6,
        "drafter_calls": counts["drafts"] / tokens,
        "columns": (stats.drafted + stats.row_calls) / tokens,
        "cpu_seconds": (process_time() - cpu) / tokens,
        "seconds": (perf_counter() - clock) / tokens,
        "tokens": stats.tokens,
        "texts": texts,
    }


def measure(args: argparse.Namespace, folder: str) -> list[dict]:
    """Every row, and whether its tokens are those of plain decoding."""
    model, tokenizer = load_model(args.model, "float32", "cpu")
    own, its = load_model(args.drafter or args.model, "float32", "cpu")
    inputs = [tokenizer([text], return_tensors="pt") for text in args.texts]
    make = partial(mmspec.text.aligned_drafter, model, tokenizer, own, its, int8=args.drafter is None)
    drafters = [make(temperature) for temperature in args.temperatures]
    disk_offload(model, folder, execution_device=torch.device("cpu"))
    mmspec.text.generate(model, inputs[0], drafters[0], draft_length=1, max_new_tokens=2)  # the self-test
    counts, found = watched(model, drafters), []
    print(HEAD + "\n|" + "---|" * (HEAD.count("|") - 1))
    for temperature, drafter in zip(args.temperatures, drafters, strict=True):
        plain = None
        for each in rows(drafter, args):
            row = measured(*each, model, inputs, temperature, counts, args.max_new_tokens)
            plain = plain or row["texts"]
            found.append(row | {"equal": row["texts"] == plain})
            print(shown(found[-1]), flush=True)
    return found


def shown(row: dict) -> str:
    """A row of the table."""
    figures = [f"{row['temperature']:g}", f"{row['tokens_per_call']:.2f}", f"{row['layer_loads']:.1f}", f"{row['megabytes']:,.0f}"]
    figures += [f"{row['drafter_calls']:.2f}", f"{row['columns']:,.1f}", f"{row['cpu_seconds']:.2f}", f"{row['seconds']:.2f}"]
    return " | ".join(["", row["drafter"], str(row["nodes"]), *figures, "yes" if row["equal"] else "NO", ""]).strip()


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--model", default=str(model_folder("gemma-3-270m")), help="the target: a folder")
    parser.add_argument("--drafter", help="a folder; the target's own int8 copy by default")
    sizes = {"type": lambda text: text if text == "auto" else int(text), "default": [1, 4, 16, 64, 256, 1024], "nargs": "+"}
    parser.add_argument("--sizes", **sizes, help="nodes of the trees; auto chooses by measured seconds")
    parser.add_argument("--width", type=int, default=32, help="nodes that a drafter call expands")
    parser.add_argument("--lookup", type=int, default=8, help="draft tokens a round of the lookup drafter")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--prompts", type=int, default=3, help="one of each kind of Spec-Bench, the first ones")
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="the mini, small trees, few tokens")
    args = parser.parse_args()
    args.texts = [spread_out(prompts_of(kind), 1)[0].text for kind in KINDS[: args.prompts]]
    with TemporaryDirectory() as folder:
        if args.smoke:
            mini = mmspec.load("text")
            mini.target.save_pretrained(f"{folder}/mini")
            mini.processor.save_pretrained(f"{folder}/mini")
            args.model, args.sizes, args.max_new_tokens = f"{folder}/mini", [16, "auto"], 4
            args.texts = [own_prompts("qa")[0].text]
        found = measure(args, f"{folder}/disk")
    if args.out is not None:
        write_json(args.out, {"rows": found, "provenance": provenance(torch.device("cpu"))})
    if not all(row["equal"] for row in found):
        raise SystemExit("tokens differ from plain decoding")


if __name__ == "__main__":
    run_recipe(main)
