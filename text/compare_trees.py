"""Sampled draft trees of equal numbers of nodes: fixed, searched (EAGLE-2), best-first (SpecExec) and in DySpec's order, a table of counts.

    python text/compare_trees.py                                            # the shipped mini and its drafter
    python text/compare_trees.py --model ./big --drafter ./small --prompts 4 --sizes 16 64
    python text/compare_trees.py --smoke

Rules: "exact" is the coupled rule, for which target and drafter draw with the same noise; "without-replacement" draws siblings from the
drafter and judges them by recursive rejection, for which DySpec's order is made (agreement 0). The mini runs its examples as one batch, by
several seeds; other models Spec-Bench's prompts from MMSPEC_DATA one by one, with an int8 copy of the target as the drafter unless one is
given. Nothing depends on the machine. "accepted a call" is the mean over rows (prompts by seeds) with its standard error.
"""

import argparse
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Any

import torch

import mmspec
from mmspec.bench.suites.prompts import prompts_of, spread_out
from mmspec.drafters.trees.best_first import BestFirst
from mmspec.drafters.trees.planners import sparse_tree
from mmspec.drafters.trees.search import ExpandRerank
from mmspec.drafters.trees.static import StaticTree
from mmspec.loading.transformers import load_model
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import provenance

HEAD = "| tree | nodes | accept | temperature | accepted a call | draft tokens a call | drafter calls a round |"
DEPTH = 8
KINDS = ("conversation", "translation", "summarization", "qa", "math", "rag")


def trees(nodes: int) -> list[tuple[str, str, Any, int]]:
    """What is compared at one size: a name, the accept rule, the shape, and the draft length that asks for all of it."""
    fixed = StaticTree(sparse_tree([[0.6 * 0.4**rank for rank in range(8)]] * DEPTH, nodes))
    searched = ExpandRerank(width=max(4, isqrt(nodes)), depth=DEPTH, nodes=nodes)
    return [
        ("fixed", "without-replacement", fixed, fixed.depth),
        ("best-first, agreement 0 (DySpec)", "without-replacement", BestFirst(nodes, drawn=True, agreement=0), nodes),
        ("best-first, agreement 0.5", "without-replacement", BestFirst(nodes, drawn=True), nodes),
        ("fixed", "exact", fixed, fixed.depth),
        ("expand", "exact", searched, DEPTH),
        ("best-first", "exact", BestFirst(nodes), nodes),
    ]


class Counts:
    """Counts of one row of the table: by prompt and seed, and drafter calls in all."""

    def __init__(self):
        self.rows: list[tuple[int, int, int]] = []  # accepted, drafted, calls
        self.drafts = self.rounds = 0

    def add(self, stats: Any, rows: list[list[int]]) -> None:
        """Add one generation of a batch."""
        self.rows += [(accepted, drafted, calls) for accepted, drafted, calls in rows if calls]
        self.rounds += stats.target_calls

    def figures(self) -> dict[str, float]:
        """Means over rows, and the standard error of the first."""
        accepted, drafted, calls = torch.tensor(self.rows, dtype=torch.float64).unbind(1)
        share = accepted / calls
        error = share.std() / len(share) ** 0.5 if len(share) > 1 else share.new_zeros(())
        facts = {"accepted": share.mean(), "error": error, "drafted": (drafted / calls).mean()}
        return {name: float(value) for name, value in facts.items()} | {"drafter_calls": self.drafts / max(1, self.rounds)}


def measured(args: argparse.Namespace, temperature: float, drafter: Any, shape: Any, accept: str, length: int) -> dict[str, float]:
    """One row of the table."""
    counts = Counts()
    hook = drafter.target.target.model.register_forward_pre_hook(lambda *_: setattr(counts, "drafts", counts.drafts + 1))
    shaped = replace(drafter, shape=shape)
    for seed in range(args.seeds):
        for number, inputs in enumerate(args.inputs):
            rows = [[0, 0, 0] for _ in inputs["input_ids"]]

            def note(step: Any, rows: list[list[int]] = rows) -> None:
                for row, values in zip(
                    rows, zip(step.committed.accepted, step.committed.drafted, step.committed.values, strict=True), strict=True
                ):
                    row[:] = [row[0] + values[0], row[1] + values[1], row[2] + bool(values[2])]

            settings = {"temperature": temperature, "accept": accept, "seed": 1000 * seed + 100 * number, "on_step": note}
            out = mmspec.text.generate(args.target, inputs, shaped, draft_length=length, max_new_tokens=args.max_new_tokens, **settings)
            counts.add(out.stats, rows)
    hook.remove()
    return counts.figures()


def load(args: argparse.Namespace) -> Any:
    """Load models and prompts; return the function that makes the drafter for a temperature and a rule."""
    if args.model == "mini":
        mini = mmspec.load("text")
        args.target, tokenizer, own, its, int8 = mini.target, mini.processor, mini.drafters["model"], mini.processor, False
        args.inputs = [mini.examples]
    else:
        args.target, tokenizer = load_model(args.model, "float32", "cpu")
        own, its = load_model(args.drafter or args.model, "float32", "cpu")
        int8 = args.drafter is None
        texts = [spread_out(prompts_of(kind), 1)[0].text for kind in KINDS[: args.prompts]]
        args.inputs = [tokenizer([text], return_tensors="pt") for text in texts]
    return lambda temperature, accept: mmspec.text.aligned_drafter(
        args.target, tokenizer, own, its, temperature=temperature, accept=accept, int8=int8
    )


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--model", default="mini", help="the target: a folder; the mini by default")
    parser.add_argument("--drafter", help="a folder; the target's own int8 copy by default")
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256], help="nodes of the trees")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.6, 1.0])
    parser.add_argument("--prompts", type=int, default=3, help="one of each kind of Spec-Bench, the first ones")
    parser.add_argument("--seeds", type=int, default=2, help="generations of every prompt")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="the mini, one small size, few tokens")
    args = parser.parse_args()
    if args.smoke:
        args.model, args.sizes, args.temperatures, args.seeds, args.max_new_tokens = "mini", [6], [1.0], 1, 4
    make, found = load(args), []
    print(HEAD + "\n|" + "---|" * (HEAD.count("|") - 1))
    for temperature in args.temperatures:
        for nodes in args.sizes:
            for name, accept, shape, length in trees(nodes):
                row = measured(args, temperature, make(temperature, accept), shape, accept, length)
                found.append({"tree": name, "nodes": nodes, "accept": accept, "temperature": temperature} | row)
                figures = f"{row['accepted']:.2f} ± {row['error']:.2f} | {row['drafted']:.1f} | {row['drafter_calls']:.2f}"
                print(f"| {name} | {nodes} | {accept} | {temperature:g} | {figures} |", flush=True)
    if args.out is not None:
        write_json(args.out, {"rows": found, "provenance": provenance(torch.device("cpu"))})


if __name__ == "__main__":
    main()
