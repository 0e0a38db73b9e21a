"""From which width and depth on drafting pays: the cost of a forward by columns, and strict beside plain search, one user at a time.

    python recsys/measure_drafting.py                                        (random targets of several widths and depths; 2 minutes)
    python recsys/measure_drafting.py --target recsys-deep --users 60                         (3 minutes)
    python recsys/measure_drafting.py --target build/narrow/mini/target --layers 24 48        (5 minutes)

A forward of n columns behind a prompt of 81 tokens costs a + b n: medians of CPU time, fitted to relative errors. With --target, a mini or
a folder with a model of the simulated shop, plain search and strict search by drafters run in turns on the same users. With --layers the
model gets layers that pass their input on, so that its items stay the same. Times are CPU seconds of this process, with one thread.
"""

import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.core.records import CONTEXT, Draft
from mmspec.minis.shop import Shop
from mmspec.minis.weights import llama
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.recsys import recommend
from mmspec.train.deeper import deepened_model
from mmspec.utils.provenance import machine, provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe

MINIS = ("recsys", "recsys-deep")
COLUMNS, PROMPT = (1, 10, 20, 40, 70, 130), 81


@torch.inference_mode()
def forward_cost(width: int, layers: int, rounds: int) -> tuple[float, float]:
    """Seconds of a forward, and of one more column of it."""
    heads = max(2, width // 32)
    sizes: Any = {"hidden_size": width, "intermediate_size": width * 11 // 4, "num_hidden_layers": layers, "num_attention_heads": heads}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=260, num_key_value_heads=heads // 2, max_position_embeddings=256)).eval()
    session, root = HFTarget(model, family_of(model), reserve=256).begin({"input_ids": torch.randint(2, 250, (1, PROMPT))})
    session.score(root)
    session.commit(torch.zeros(1, 1, dtype=torch.long), 1)
    seen: dict[int, list[float]] = {count: [] for count in COLUMNS}
    for _ in range(rounds):
        for count in COLUMNS:
            nodes, parents = torch.randint(2, 250, (1, count)), torch.full((1, count), CONTEXT)
            session.scored, session.slots = 0, None  # the same columns again: nothing is committed
            began = time.process_time()
            session.score(Draft(nodes, parents, torch.zeros(1, dtype=torch.long), roots=count, linear=False))
            seen[count].append(time.process_time() - began)
    medians = np.array([statistics.median(values) for values in seen.values()])
    slope, fixed = np.polyfit(COLUMNS, medians, 1, w=1 / medians)
    return fixed, slope


def compare(target: LlamaForCausalLM, k: int, users: list, drafters: dict, catalogue: object) -> None:
    """Print calls, equal lists and the ratio of plain to strict seconds, by drafter and width."""
    ways: dict[str, dict] = {"plain": {"method": "plain"}, "no drafter (looks ahead)": {}}
    ways |= {f"{name}, width {n}K": {"drafter": drafter, "width": n * k} for name, drafter in drafters.items() for n in (1, 2, 4)}
    seconds, calls, same = ({name: [] for name in ways} for _ in range(3))
    for user in users:
        lists = {}
        for name, options in ways.items():
            began = time.process_time()
            out = recommend(target, [user], k=k, catalogue=catalogue, **options)  # pyright: ignore[reportArgumentType]
            seconds[name].append(time.process_time() - began)
            lists[name] = out.items
            calls[name].append(out.stats.row_calls)
            same[name].append(out.items == lists["plain"])
    for name in ways:
        ratios = [a / b for a, b in zip(seconds["plain"][3:], seconds[name][3:], strict=True)]  # the first three warm up
        low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
        told = f"{statistics.mean(calls[name]):.2f} calls, same items {sum(same[name])} of {len(users)}"
        print(f"k {k}, {name}: {told}, {middle:.2f} ({low:.2f}-{high:.2f}) x plain in CPU time", flush=True)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 96, 128, 192])
    parser.add_argument("--layers", type=int, nargs="+", help="default 4 and 24; those of --target")
    parser.add_argument("--rounds", type=int, default=14, help="forwards of each number of columns")
    parser.add_argument("--target", help="compare searches: recsys, recsys-deep or a folder, which is drafted for by recsys' drafters")
    parser.add_argument("--k", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--users", type=int, default=24)
    parser.add_argument("--smoke", action="store_true", help="one small size")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.smoke:
        args.widths, args.layers, args.rounds = [64], [1], 2
    if args.target is None:
        for width in args.widths:
            for layers in args.layers or (4, 24):
                fixed, slope = forward_cost(width, layers, args.rounds)
                told = f"a {fixed * 1e3:.2f} ms, b {slope * 1e6:.1f} us, a / b {fixed / slope:.0f} columns"
                print(f"width {width}, {layers} layers: {told}", flush=True)
        return
    mini = mmspec.load(args.target if args.target in MINIS else "recsys")
    small = mini.target if args.target in MINIS else llama(Path(args.target)).float().eval()
    users = [user[:-1] for user in Shop.of().histories(args.users, seed=2)]
    for layers in args.layers or (small.config.num_hidden_layers,):
        shape = LlamaForCausalLM(LlamaConfig(**{**small.config.to_dict(), "num_hidden_layers": layers}))
        target = small if layers == small.config.num_hidden_layers else deepened_model(small, shape).eval()
        print(f"{layers} layers of {small.config.hidden_size}, by {machine(provenance(target.device))}, {date.today()}")
        for k in args.k:
            compare(target, k, users, {name: mini.drafters[name] for name in ("model", "retriever")}, mini.catalogue)


if __name__ == "__main__":
    run_recipe(main)
