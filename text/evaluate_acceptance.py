"""How much each drafter gets accepted under each rule, on prompts of your own: tokens per call, acceptance and drift as a table.

    python text/evaluate_acceptance.py                                     # the shipped mini on its examples
    python text/evaluate_acceptance.py prompts.txt --drafters model lookup suffix --rules coupled token block typical
    python text/evaluate_acceptance.py prompts.txt --model ./big --drafters ./small lookup --device cuda --dtype bfloat16

Counts only, so the table is the same on every machine. The draft length is fixed (--draft-length), the same for every drafter.
Drift is the total variation a lossy rule spent per token; exact rules spend none. Rows are Markdown; --out writes JSON too.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path

from mmspec.core.stats import Stats
from mmspec.loading.text import Pair, load_pair, named_drafter
from mmspec.run.config import AcceptSection, Config, DrafterSection, RunSection, TargetSection
from mmspec.utils.files import read_prompts, write_json
from mmspec.utils.provenance import provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track


def measure(pair: Pair, prompts: list[str], batch_size: int) -> Stats:
    """The statistics of one drafter under one rule over all prompts."""
    stats = Stats(exactness=pair.exactness)
    for first in range(0, len(prompts), batch_size):
        pair.generate(pair.inputs(prompts[first : first + batch_size]), seed=pair.config.run.seed + first, on_step=stats.add)
    return stats


def run(args: argparse.Namespace) -> list[dict]:
    """One row per drafter and rule."""
    base = Config(
        target=TargetSection(path=args.model, dtype=args.dtype, device=args.device),
        run=RunSection(max_new_tokens=args.max_new_tokens, temperature=args.temperature, seed=args.seed),
    )
    rows, given = [], None if args.prompts is None else [record["prompt"] for record in read_prompts(args.prompts)]
    for name, rule in track([(name, rule) for name in args.drafters for rule in args.rules], "drafters x rules"):
        kind, path = named_drafter(name)
        drafter = DrafterSection(kind=kind, path=path, length=args.draft_length)
        pair = load_pair(replace(base, drafter=drafter, accept=AcceptSection(kind=rule)))
        prompts = list(pair.examples) if given is None else given
        if not prompts:
            raise ValueError(f"no prompts: {pair.name} brings no examples, so name a file")
        stats = measure(pair, prompts[: args.limit], args.batch_size)
        rows.append({"drafter": name, "rule": rule, "prompts": len(prompts[: args.limit]), **stats.to_dict()})
    args.provenance = provenance(pair.target.device)
    args.settings = asdict(base)
    return rows


def markdown(rows: list[dict]) -> str:
    lines = [
        "| drafter | rule | exactness | tokens per call | accepted | first draft token accepted | drift per token |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        share = f"{row['accepted'] / row['drafted']:.0%}" if row["drafted"] else ""
        first = f"{row['acceptance_by_position'][0]:.0%}" if row["acceptance_by_position"] else ""
        drift = "" if row["drift"] is None else f"{row['drift'] / row['tokens']:.3f}"
        cells = (row["drafter"], row["rule"], row["exactness"], f"{row['tokens_per_call']:.2f}", share, first, drift)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("prompts", type=Path, nargs="?", help="one prompt a line, or JSON lines; the mini's examples by default")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--drafters", nargs="+", default=["model", "lookup", "suffix"])
    parser.add_argument("--rules", nargs="+", default=["coupled", "token", "block", "lenience"])
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--draft-length", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--limit", type=int, help="use the first N prompts only")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="two prompts, a few tokens, two drafters, two rules")
    args = parser.parse_args()
    if args.smoke:
        args.drafters, args.rules, args.limit, args.max_new_tokens = ["model", "lookup"], ["coupled", "lenience"], 2, 8
    try:
        rows = run(args)
        if args.out is not None:
            write_json(args.out, {"rows": rows, "settings": args.settings, "provenance": args.provenance})
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    print(markdown(rows))
    print(f"\n{rows[0]['prompts']} prompts, {args.draft_length} draft tokens a round, temperature {args.temperature:g}, seed {args.seed}")


if __name__ == "__main__":
    run_recipe(main)
