"""What mmspec costs beside transformers where nothing is gained: operations, batches of ragged rows, long prompts, the output head.

    python text/measure_plain.py operations                              # aten operations a token, mini and --model
    python text/measure_plain.py rows --repeats 5                        # CPU seconds of 32 rows of different lengths
    python text/measure_plain.py prompts --model FOLDER --lengths 1024 4096 16384
    python text/measure_plain.py head                                    # milliseconds of both products, by rows

`prompts` runs every contender in a process of its own: CPU seconds of 16 tokens, and peak memory beyond the loaded model. transformers
uses its prompt lookup with 10 tokens, mmspec its lookup with `--draft-length`.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

import mmspec
from mmspec.bench.compare.run import Spread
from mmspec.bench.operations import operations_a_step
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import machine, provenance

GREEDY, DRAWN = {"do_sample": False, "top_k": None, "top_p": None}, {"temperature": 0.7, "top_p": 0.9}
HEADS = ((262_144, 640), (151_936, 896), (32_000, 2_048))


def target(path: Path | None) -> Any:
    return mmspec.load("text").target if path is None else AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def given(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def written(model: Any, inputs: dict, new: int, ours: bool, **options: Any) -> int:
    """Generate `new` tokens, or up to an end, and return how many."""
    if ours:
        return mmspec.text.generate(model, inputs, max_new_tokens=new, **options).tokens.shape[1]
    return model.generate(**inputs, max_new_tokens=new, **(GREEDY | options)).shape[1] - inputs["input_ids"].shape[1]


def cpu(work: Callable[[], Any]) -> float:
    start = process_time()
    work()
    return process_time() - start


def operations(args: argparse.Namespace) -> list[dict]:
    """Operations a token, greedy and sampled, and their ratio to those of `generate`."""
    rows = []
    for name, path in (("mini", None), *([("model", args.model)] if args.model else [])):
        model, inputs = target(path), given(torch.arange(20, 40)[None])
        for setting, own, theirs in (("greedy", {}, {}), ("T = 0.7, top-p 0.9", DRAWN, {"do_sample": True, "top_k": 0} | DRAWN)):
            ours = operations_a_step(lambda new, m=model, i=inputs, o=own: written(m, i, new, True, **o))
            reference = operations_a_step(lambda new, m=model, i=inputs, o=theirs: written(m, i, new, False, **o))
            rows.append({"model": name, "setting": setting, "ours": ours, "generate": reference, "ratio": round(ours / reference, 3)})
    return rows


def rows_of_a_batch(args: argparse.Namespace) -> list[dict]:
    """CPU seconds of 32 rows of 12 to 74 tokens relative to `generate`, in turns."""
    model, size = target(args.model), 32
    lengths = torch.arange(12, 12 + 2 * size, 2)
    ids = torch.randint(20, 90, (size, int(lengths.max())), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) >= ids.shape[1] - lengths[:, None]).long()}
    runs = {"plain": {}, 'lookup, "auto"': {"drafter": "lookup"}}
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(args.repeats + 1):
        reference = cpu(lambda: written(model, inputs, args.new, False))
        for name, options in runs.items():
            ratio = cpu(lambda o=options: written(model, inputs, args.new, True, **o)) / reference
            ratios[name] += [ratio] if turn else []  # the first turn allocates and tests the architecture
    return [{"run": name, "cpu_to_generate": vars(Spread.of(found))} for name, found in ratios.items()]


def prompts(args: argparse.Namespace) -> list[dict]:
    """CPU seconds and peak memory of long prompts, each contender in a process of its own."""
    rows = []
    for length in args.lengths:
        for who in ("mmspec", "transformers"):
            model = [] if args.model is None else ["--model", str(args.model)]
            command = [sys.executable, __file__, *model, "--lengths", str(length), "--draft-length", args.draft_length, "--who", who]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append({"tokens": length, "run": who} | json.loads(done.stdout.splitlines()[-1]))
    return rows


def one(args: argparse.Namespace) -> dict:
    """A contender of `prompts`: a random prompt whose end repeats its beginning."""
    model, ours, length = target(args.model), args.who == "mmspec", args.lengths[0]
    ids = torch.randint(20, 90, (1, length), generator=torch.Generator().manual_seed(0))
    ids[:, -length // 4 :] = ids[:, : length // 4]
    draft: Any = int(args.draft_length) if args.draft_length.isdecimal() else args.draft_length
    options: dict[str, Any] = {"drafter": "lookup", "draft_length": draft} if ours else {"prompt_lookup_num_tokens": 10}
    written(model, given(ids[:, :20]), 4, ours, **options)  # self-tests and allocations are not counted
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = cpu(lambda: written(model, given(ids), 16, ours, **options))
    return {"cpu_seconds": round(seconds, 2), "peak_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024}


def head(args: argparse.Namespace) -> list[dict]:
    """Milliseconds of CPU time of x W^T by `F.linear` and of (W x^T)^T, the best of several."""
    rows = []
    for values, width in ((512, 16),) if args.smoke else HEADS:
        weight = torch.randn(values, width)
        for count in (1, 2, 3, 4, 5, 6, 8, 9):
            x = torch.randn(count, width)
            padded = x.repeat(2, 1) if count == 1 else x
            products = {"linear": lambda a=x, w=weight: F.linear(a, w), "transposed": lambda a=padded, w=weight: (w @ a.T).T.contiguous()}
            found = {name: round(1000 * min(cpu(product) for _ in range(6)), 1) for name, product in products.items()}
            rows.append({"shape": [values, width], "rows": count} | found)
    return rows


def main() -> None:
    parts = {"operations": operations, "rows": rows_of_a_batch, "prompts": prompts, "head": head}
    parser = RecipeParser(__doc__)
    parser.add_argument("part", nargs="?", choices=list(parts), default="operations", help="what to measure")
    parser.add_argument("--model", type=Path, help="folder of a causal language model; the mini without it")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096], help="tokens of the prompts")
    parser.add_argument("--draft-length", default="10", help="of mmspec's lookup on long prompts: a number or auto")
    parser.add_argument("--new", type=int, default=32, help="new tokens of ragged rows")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="small sizes that show that everything runs")
    parser.add_argument("--who", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.who:  # a process that `prompts` started
        print(json.dumps(one(args)))
        return
    args.lengths, args.new, args.repeats = ([16], 3, 1) if args.smoke else (args.lengths, args.new, args.repeats)
    found = {"rows": parts[args.part](args), "provenance": provenance(torch.device("cpu"))}
    print("\n".join(json.dumps(row) for row in found["rows"]))
    print(f"{machine(found['provenance'])}; torch {torch.__version__}")
    if args.out is not None:
        write_json(args.out, found)


if __name__ == "__main__":
    main()
