"""Plan a static draft tree for a model, a drafter and a machine: calibrate, plan, measure, and write the template.

    python text/plan_tree.py --out tree.json                                   # the shipped mini on its examples
    python text/plan_tree.py prompts.txt --model ./big --drafter ./small --nodes 32 --depth 6 --temperature 0.8 --out tree.json
    python text/plan_tree.py prompts.txt --model ./big --drafter ./big-eagle3       # a trained drafter: ./big-eagle3/tree.json
    mmspec text "Once upon a time" --tree tree.json --temperature 0.8

--drafter is a model, the folder of a trained drafter, or a name of the mini's own. Calibration runs a broad tree and counts how often the
rank-r draft token of each level is the one kept. From that two trees are planned: `sparse`, the likeliest paths up to --nodes (Medusa),
and `sequoia`, the tree of least predicted seconds a token at the costs of drafting and verifying measured on this machine (Sequoia). Both
then run, on prompts the calibration did not see where there are two or more: expected against measured tokens a call. Few prompts make for
promises that are too good: the plan then follows what was lucky. Of the tree named by --plan the acceptance of every node is printed, and
--out gets it, whole or not at all.
"""

import argparse
from pathlib import Path

from mmspec.bench.planned_trees import measure_tree, measure_tree_costs, most_levels, node_table
from mmspec.core.rules.base import Accept
from mmspec.drafters.trees.calibration import broad
from mmspec.drafters.trees.planners import expected_length, sequoia, sparse_tree
from mmspec.drafters.trees.static import Template
from mmspec.loading.text import Pair, load_pair, named_drafter, shaped
from mmspec.run.config import AcceptSection, Config, DrafterSection, RunSection, TargetSection
from mmspec.run.rules import rule_of
from mmspec.utils.files import read_prompts, write_json
from mmspec.utils.recipe_options import RecipeParser, run_recipe


def plan(pair: Pair, prompts: list[str], args: argparse.Namespace) -> list[dict]:
    """One row per planner."""
    seen, unseen = (prompts[::2], prompts[1::2]) if len(prompts) > 1 else (prompts, prompts)
    depth = most_levels(pair, args.depth)
    _, calibration, _ = measure_tree(pair, seen, broad(args.nodes, depth, args.decay), batch_size=args.batch_size, seed=args.seed)
    accuracy, costs = calibration.accuracy(args.least), measure_tree_costs(pair, prompts[0], args.nodes)
    planned = {
        "sparse": sparse_tree(accuracy, args.nodes),
        "sequoia": sequoia(accuracy, args.nodes, depth, costs.draft_seconds, costs.verify_seconds)[0],
    }
    rows = []
    for name, tree in planned.items():
        stats, _, nodes = measure_tree(pair, unseen, tree, batch_size=args.batch_size, seed=args.seed + len(prompts))
        facts = {"expected": expected_length(tree, accuracy), "measured": stats.tokens_per_call, "nodes": nodes}
        rows.append({"plan": name, "tree": tree, **facts})
    verify = ", ".join(f"{size}: {1000 * seconds:.2f}" for size, seconds in costs.verify_seconds.items())
    print(f"Costs: a drafter's level {1000 * costs.draft_seconds:.2f} ms; verifying by draft tokens, ms: {verify}")
    print(f"Calibrated on {len(seen)} prompts, {calibration.tries[0][0]} rounds; measured on {len(unseen)}\n")
    return rows


def markdown(rows: list[dict]) -> str:
    lines = ["| plan | nodes | levels | nodes by level | expected tokens a call | measured |", "|---|---|---|---|---|---|"]
    for row in rows:
        tree: Template = row["tree"]
        levels = " ".join(str(len(level.rank)) for level in tree.levels)
        lines.append(f"| {row['plan']} | {tree.size} | {tree.depth} | {levels} | {row['expected']:.2f} | {row['measured']:.2f} |")
    return "\n".join(lines)


def load(args: argparse.Namespace) -> tuple[Pair, list[str]]:
    """The pair and its prompts. ValueError where there is no drafter of trees, no tree rule or no prompt."""
    kind, path = ("model", None) if args.drafter is None else named_drafter(args.drafter)
    if not shaped(kind):
        raise ValueError(f"drafter {args.drafter!r} grows no trees: give a model or a trained drafter")
    if kind == "trained" and args.out is None:
        args.out = Path(args.drafter) / "tree.json"
    config = Config(
        target=TargetSection(path=args.model, dtype=args.dtype, device=args.device),
        drafter=DrafterSection(kind=kind, path=path),
        accept=AcceptSection(kind=args.accept),
        run=RunSection(max_new_tokens=args.max_new_tokens, temperature=args.temperature, seed=args.seed),
    )
    pair = load_pair(config)
    rule: Accept = rule_of(pair.accept, args.temperature)
    if not rule.trees:
        raise ValueError(f"accept rule {args.accept!r} judges chains only: plan trees for exact, coupled, match or without-replacement")
    if pair.own_tokenizer is not None:
        raise ValueError(
            f"{args.drafter} has another vocabulary than {args.model}: its draft tokens form a chain, there is no tree to plan"
        )
    prompts = list(pair.examples) if args.prompts is None else [record["prompt"] for record in read_prompts(args.prompts)]
    if not prompts:
        raise ValueError(f"no prompts: {pair.name} brings no examples, so name a file")
    return pair, prompts[: args.limit]


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("prompts", type=Path, nargs="?", help="one prompt a line, or JSON lines; the mini's examples by default")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--drafter", help="a model's folder or hub name, a trained drafter's folder, or a name; the mini's own by default")
    parser.add_argument("--accept", default="exact")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--nodes", type=int, default=24, help="the most draft tokens a round")
    parser.add_argument("--depth", type=int, default=6, help="the most levels")
    parser.add_argument("--decay", type=float, default=0.4, help="calibrate for a drafter whose ranks fall off so; flat distributions: 0.8")
    parser.add_argument("--least", type=int, default=10, help="draft tokens judged before a rank at a level is planned on")
    parser.add_argument("--plan", choices=("sequoia", "sparse"), default="sequoia", help="which of the two --out gets")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--limit", type=int, help="use the first N prompts only")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="JSON for --tree: the template's paths; for a trained drafter by default FOLDER/tree.json")
    parser.add_argument("--smoke", action="store_true", help="two prompts, a few tokens, a tree of six")
    args = parser.parse_args()
    if args.smoke:
        args.limit, args.max_new_tokens, args.nodes, args.depth, args.least = 2, 12, 6, 3, 1
    try:
        rows = plan(*load(args), args)
        chosen = next(row for row in rows if row["plan"] == args.plan)
        if args.out is not None:
            write_json(args.out, chosen["tree"].to_json())
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    print(f"{markdown(rows)}\n\nThe nodes of {args.plan}, by ranks:\n\n{node_table(chosen['nodes'])}")
    if args.out is not None:
        print(f"\ngenerate(..., tree={str(args.out)!r})")


if __name__ == "__main__":
    run_recipe(main)
