"""Every drafter beside plain decoding, in chains, static trees and planned trees of one size, greedy and sampled: a table.

    python text/compare_drafters.py                                                    # the shipped mini, all it has
    python text/compare_drafters.py --model ./big --drafters none lookup ./big-eagle3 ./big-medusa --prompts prompts.txt

Counts are exact and the same on every machine; ratios are seconds against plain transformers `generate`, prompt by prompt at batch 1,
contenders taking turns in one process, medians with quartiles. A chain and the trees take the same number of drafter calls a round,
and both trees have --nodes draft tokens: the static one has the form that suits chances falling by 0.4 a rank, the planned one is made from
acceptance counted on --calibrate prompts (the mini: openings of training documents), which the table's prompts do not share.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from mmspec.bench.compare.peers import run_transformers
from mmspec.bench.compare.run import Spread
from mmspec.core.stats import Stats
from mmspec.drafters.trees.calibration import Calibration
from mmspec.drafters.trees.planners import sparse_tree
from mmspec.drafters.trees.static import Template
from mmspec.loading.text import Pair, load_pair, named_drafter, shaped
from mmspec.minis import shipped_drafters
from mmspec.minis.corpus import documents, openings
from mmspec.run.config import Config, DrafterSection, RunSection, TargetSection
from mmspec.utils.files import read_prompts, write_json
from mmspec.utils.provenance import provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track

FREE = ("none", "lookup", "suffix", "recycling", "lookahead", "layer-skip", "model")


def contenders(args: argparse.Namespace, temperature: float) -> list[tuple[str, str, Pair, Template | None]]:
    """(drafter, form, pair, tree) of every row of the table."""
    base = Config(
        target=TargetSection(path=args.model, device=args.device),
        run=RunSection(max_new_tokens=args.max_new_tokens, temperature=temperature, seed=args.seed),
    )
    broad = sparse_tree([[0.6 * 0.4**rank for rank in range(8)]] * args.depth, 3 * args.nodes)
    static = sparse_tree([[0.6 * 0.4**rank for rank in range(8)]] * args.depth, args.nodes)
    found = []
    for name in track(args.drafters, f"calibrate at {temperature:g}"):
        kind, path = named_drafter(name)
        pair = load_pair(replace(base, drafter=DrafterSection(kind=kind, path=path, length=args.depth)))
        if not shaped(kind):
            found.append((name, "own tree" if kind in ("recycling", "lookahead") else "chain", pair, None))
            continue
        planned = sparse_tree(calibrate(pair, args, broad).accuracy(args.least), args.nodes)
        found += [(name, "chain", pair, None), (name, "static tree", pair, static), (name, "planned tree", pair, planned)]
    return found


def calibrate(pair: Pair, args: argparse.Namespace, tree: Template) -> Calibration:
    counts = Calibration()
    for first in range(0, len(args.calibration), 8):
        pair.generate(
            pair.inputs(args.calibration[first : first + 8]), tree=tree, draft_length=tree.depth, on_step=counts, seed=1000 + first
        )
    return counts


def measure(args: argparse.Namespace, temperature: float) -> list[dict]:
    """Rows of the table at one temperature."""
    rows = contenders(args, temperature)
    prompts = args.given or list(rows[0][2].examples)[: args.limit]
    stats = [Stats() for _ in rows]
    ratios: list[list[float]] = [[] for _ in rows]
    for turn, prompt in enumerate(track(prompts, f"measure at {temperature:g}")):
        inputs = rows[0][2].inputs([prompt])
        plain = run_transformers(rows[0][2], inputs, args.seed + turn, {})
        order = [(turn + index) % len(rows) for index in range(len(rows))]
        for index in order:
            _, _, pair, tree = rows[index]
            length = args.depth if tree is None else tree.depth
            begun = perf_counter()
            out = pair.generate(inputs, tree=tree, draft_length=length, on_step=stats[index].add, seed=args.seed + turn)
            ratios[index].append(int(out.lengths.sum()) / (perf_counter() - begun) * plain.seconds / plain.count)
    return [
        {
            "drafter": name,
            "form": form,
            "temperature": temperature,
            "nodes": args.depth if tree is None else tree.size,
            "tokens_per_call": found.tokens_per_call,
            "ratio": vars(Spread.of(ratio)) if ratio else None,
        }
        for (name, form, _, tree), found, ratio in zip(rows, stats, ratios, strict=True)
    ]


def markdown(rows: list[dict]) -> str:
    """Drafters down, forms and temperatures across: tokens a call, then the ratio to plain decoding."""
    temperatures = sorted({row["temperature"] for row in rows})
    title = "| drafter | form |" + "".join(f" T={temperature:g}: tokens a call | x plain |" for temperature in temperatures)
    lines = [title, "|---" * (2 + 2 * len(temperatures)) + "|"]
    for key in dict.fromkeys((row["drafter"], row["form"]) for row in rows):
        cells = []
        for temperature in temperatures:
            row = next(row for row in rows if (row["drafter"], row["form"], row["temperature"]) == (*key, temperature))
            spread = row["ratio"]
            cells += [f"{row['tokens_per_call']:.2f}", f"{spread['median']:.2f} ({spread['low']:.2f}-{spread['high']:.2f})"]
        lines.append("| " + " | ".join((*key, *cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--drafters", nargs="+", help="names, or folders of models and trained drafters; default: all the mini has")
    parser.add_argument("--prompts", type=Path, help="one prompt a line, or JSON lines; the mini's examples by default")
    parser.add_argument("--calibrate", type=Path, help="other prompts, to plan trees on")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--depth", type=int, default=5, help="drafter calls a round")
    parser.add_argument("--nodes", type=int, default=16, help="draft tokens in a tree")
    parser.add_argument("--least", type=int, default=20, help="draft tokens judged before a rank at a level is planned on")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--limit", type=int, help="use the first N prompts only")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="two drafters, one prompt, a few tokens")
    args = parser.parse_args()
    args.drafters = args.drafters or [*FREE, *shipped_drafters()]
    if args.smoke:
        args.drafters, args.temperatures, args.limit, args.max_new_tokens, args.depth, args.least = ["none", "model"], [0.0], 1, 6, 3, 1
    try:
        args.given = [record["prompt"] for record in read_prompts(args.prompts)][: args.limit] if args.prompts else None
        args.calibration = calibration_prompts(args)
        rows = [row for temperature in args.temperatures for row in measure(args, temperature)]
        if args.out is not None:
            write_json(args.out, {"rows": rows, "provenance": provenance(load_pair(Config()).target.device)})
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    print(markdown(rows))


def calibration_prompts(args: argparse.Namespace) -> list[str]:
    if args.calibrate is not None:
        return [record["prompt"] for record in read_prompts(args.calibrate)]
    if args.smoke:
        return [f"Question: what is {i} and {i}?\nAnswer:" for i in range(2)]
    texts = documents(Path(os.environ.get("MMSPEC_DATA", "../shared/data")))
    return openings([text for index, text in enumerate(texts) if index % 20 == 7])[:16]


if __name__ == "__main__":
    run_recipe(main)
