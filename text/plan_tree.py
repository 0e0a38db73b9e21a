"""Plan a static draft tree for a model, a drafter and a machine: calibrate, plan, measure, and write the template.

    python text/plan_tree.py --out tree.json                                   # the shipped mini on its examples
    python text/plan_tree.py prompts.txt --model ./big --drafter ./small --nodes 32 --depth 6 --temperature 0.8 --out tree.json
    mmspec text "Once upon a time" --tree tree.json

Calibration runs a broad tree and counts how often the rank-r draft token of each level is the one kept. From that two trees are planned:
`sparse`, the likeliest paths up to --nodes (Medusa), and `sequoia`, the tree of least predicted seconds a token at the costs of
drafting and verifying measured on this machine (Sequoia). Both then run, on prompts the calibration did not see where there are
two or more: expected against measured tokens a call. Few prompts make for promises that are too good: the plan then follows what
was lucky. --out gets the tree named by --plan, whole or not at all.
"""

import argparse
from pathlib import Path

from mmspec.core.rules.base import Accept
from mmspec.core.stats import Stats
from mmspec.drafters.trees.calibration import Calibration, Costs, broad, calibrate, measure_costs
from mmspec.drafters.trees.planners import expected_length, sequoia, sparse_tree
from mmspec.drafters.trees.static import Template
from mmspec.loading.text import Pair, load_pair
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.run.config import AcceptSection, Config, DrafterSection, RunSection, TargetSection
from mmspec.run.rules import distributions_for, rule_of
from mmspec.utils.files import read_prompts, write_json


def play(pair: Pair, prompts: list[str], tree: Template, batch_size: int, seed: int) -> tuple[Stats, Calibration]:
    """What `tree` brings over all prompts."""
    batches = (pair.inputs(prompts[first : first + batch_size]) for first in range(0, len(prompts), batch_size))
    return calibrate(pair.generate, batches, tree, seed)


def costs_of(pair: Pair, prompts: list[str], nodes: int) -> Costs:
    """Seconds of a drafter's level and of verify steps behind the first prompt."""
    run = pair.config.run
    rule = rule_of(pair.accept, run.temperature, run.top_k, run.top_p)
    distributions = distributions_for(rule, run.temperature, run.top_k, run.top_p, run.repetition_penalty, ())
    target, drafter = (HFTarget(model, family_of(model), distributions) for model in (pair.target, pair.model))
    sizes = sorted({0, 1, *(size for size in (2, 4, 8, 16, 32, 64, 128) if size < nodes), nodes})
    return measure_costs(target, drafter, pair.inputs(prompts[:1]), sizes)


def plan(pair: Pair, prompts: list[str], args: argparse.Namespace) -> list[dict]:
    """One row per planner."""
    seen, unseen = (prompts[::2], prompts[1::2]) if len(prompts) > 1 else (prompts, prompts)
    _, calibration = play(pair, seen, broad(args.nodes, args.depth, args.decay), args.batch_size, args.seed)
    accuracy, costs = calibration.accuracy(args.least), costs_of(pair, prompts, args.nodes)
    planned = {
        "sparse": sparse_tree(accuracy, args.nodes),
        "sequoia": sequoia(accuracy, args.nodes, args.depth, costs.draft_seconds, costs.verify_seconds)[0],
    }
    rows = []
    for name, tree in planned.items():
        stats, _ = play(pair, unseen, tree, args.batch_size, args.seed + len(prompts))
        rows.append({"plan": name, "tree": tree, "expected": expected_length(tree, accuracy), "measured": stats.tokens_per_call})
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
    """The pair and its prompts. ValueError where there is no drafter model, no tree rule or no prompt."""
    config = Config(
        target=TargetSection(path=args.model, dtype=args.dtype, device=args.device),
        drafter=DrafterSection(kind="model", path=args.drafter),
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, nargs="?", help="one prompt a line, or JSON lines; the mini's examples by default")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--drafter", help="a model's folder or hub name; the mini's own by default")
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="JSON for --tree: the list of the template's paths")
    parser.add_argument("--smoke", action="store_true", help="two prompts, a few tokens, a tree of six")
    args = parser.parse_args()
    if args.smoke:
        args.limit, args.max_new_tokens, args.nodes, args.depth, args.least = 2, 12, 6, 3, 1
    try:
        rows = plan(*load(args), args)
        if args.out is not None:
            write_json(args.out, next(row["tree"].to_json() for row in rows if row["plan"] == args.plan))
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    print(markdown(rows))


if __name__ == "__main__":
    main()
