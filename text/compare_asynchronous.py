"""A drafter that drafts while the target verifies, in another process, beside the same drafter in turn with the target: a table.

    python text/compare_asynchronous.py                                        # the mini in front of deeper copies of itself
    python text/compare_asynchronous.py --ratios 4 8 --gains 0.05 --temperature 1
    python text/compare_asynchronous.py --model ./big --drafter ./small --prompts prompts.txt

Every process gets one thread; the synchronous loop leaves the other core idle. Without --drafter, the mini drafts for a target that has
--ratios times its layers: behind every layer stand copies of it whose outputs are multiplied by --gains, and the larger the gain, the less
both agree. Draft lengths, and how many draft tokens an asynchronous round waits for, are chosen on the first --choose prompts; the table is
of the others, contenders taking turns, at batch 1. "predicted" is what `mmspec plan` computes for PEARL and AMUSD over chains.
"""

import argparse
import copy
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import mmspec
from mmspec.bench.compare.run import Spread
from mmspec.bench.schedules.machine import PlannedMachine
from mmspec.bench.schedules.planning import plan_schedules
from mmspec.core.stats import Stats
from mmspec.drafters.model.asynchronous import Asynchronous
from mmspec.loading.text import load_pair
from mmspec.run.config import Config, DrafterSection, TargetSection
from mmspec.utils.files import read_prompts, write_json
from mmspec.utils.provenance import provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track

Contender = tuple[str, Any, int]  # name, drafter, draft length
Found = dict[str, tuple[list[float], Stats]]


def deepened(model: Any, ratio: int, gain: float) -> Any:
    """A copy of a model with `ratio` times its layers; the new ones add `gain` times what the layer before adds."""
    found = copy.deepcopy(model)
    layers = [copy.deepcopy(layer) if extra else layer for layer in found.model.layers for extra in range(ratio)]
    for index, layer in enumerate(layers):
        layer.self_attn.layer_idx = index
        for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
            part.weight.data.mul_(gain if index % ratio else 1)
    found.model.layers = torch.nn.ModuleList(layers)
    found.config.num_hidden_layers = len(layers)
    return found.eval()


def timed(contenders: list[Contender], target: Any, inputs: list[Any], args: argparse.Namespace, what: str) -> Found:
    """Seconds a token on every prompt, and statistics, of contenders that take turns."""
    found: Found = {name: ([], Stats()) for name, _, _ in contenders}
    settings = {"max_new_tokens": args.max_new_tokens, "temperature": args.temperature}
    for turn, prompt in enumerate(track(inputs, what)):
        texts = []
        for index in range(len(contenders)):
            name, drafter, length = contenders[(turn + index) % len(contenders)]
            (seconds, stats), begun = found[name], perf_counter()
            out = mmspec.text.generate(target, prompt, drafter, draft_length=length, seed=turn, on_step=stats.add, **settings)
            seconds.append((perf_counter() - begun) / int(out.lengths.sum()))
            texts.append(out.tokens.tolist())
        if any(text != texts[0] for text in texts):
            raise SystemExit(f"prompt {turn} ({what}): the contenders' tokens differ")
    return found


def compare(name: str, target: Any, drafter: Any, inputs: list[Any], args: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    plain: Contender = ("plain", None, 0)
    turns: list[Contender] = [(f"{length}", drafter, length) for length in args.lengths]
    pairs = {least: Asynchronous(drafter, least=least, ahead=args.ahead) for least in args.least}
    ahead: list[Contender] = [(f"{least} to {args.ahead}", pair, args.ahead) for least, pair in pairs.items()]
    timed(ahead, target, inputs[:1], args, f"start ({name})")
    found = timed([plain, *turns, *ahead], target, inputs[: args.choose], args, f"choose ({name})")
    turn, pair = (min(several, key=lambda each: median(found[each[0]][0])) for several in (turns, ahead))
    found = timed([plain, turn, pair], target, inputs[args.choose :], args, f"measure ({name})")
    (alone, plainly), (slow, stats), (quick, overlapped) = (found[each[0]] for each in (plain, turn, pair))
    call, wide = (each.seconds["score"] / max(1, each.target_calls) for each in (plainly, stats))
    step, rate = stats.seconds["draft"] / max(1, stats.drafted), stats.accepted / max(1, stats.judged)
    machine = PlannedMachine(target=call, draft=step, column=max(0.0, wide - call) / turn[2])
    speeds = {each.name: each.speed for each in plan_schedules(machine, rate).schedules}
    return {
        "pair": name,
        "target over drafter step": call / step,
        "acceptance": rate,
        "in turn": turn[0],
        "asynchronous": pair[0],
        "tokens a call": [stats.tokens_per_call, overlapped.tokens_per_call],
        "in turn x plain": ratios(alone, slow),
        "asynchronous x plain": ratios(alone, quick),
        "asynchronous x in turn": ratios(slow, quick),
        "predicted": {each: speeds[each] / max(speeds["chain"], speeds["plain"]) for each in ("pearl", "amusd")},
    }


def ratios(one: list[float], other: list[float]) -> dict[str, float]:
    return vars(Spread.of([a / b for a, b in zip(one, other, strict=True)]))


def markdown(rows: list[dict[str, Any]]) -> str:
    title = "| pair | T / d | acceptance | in turn: draft tokens | x plain | asynchronous: draft tokens | x plain | x in turn | predicted |"
    lines, keys = [title, "|---" * 9 + "|"], ("in turn x plain", "asynchronous x plain", "asynchronous x in turn")
    for row in rows:
        one, two, both = ("{median:.2f} ({low:.2f}-{high:.2f})".format(**row[key]) for key in keys)
        cells = [row["pair"], f"{row['target over drafter step']:.1f}", f"{row['acceptance']:.2f}", row["in turn"], one]
        cells += [row["asynchronous"], two, both, "{pearl:.2f}, {amusd:.2f}".format(**row["predicted"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--drafter", help="a model's folder, or `model` for the mini's own; default: the mini for deeper copies of itself")
    parser.add_argument("--ratios", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--gains", type=float, nargs="+", default=[0.02, 0.05])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 4, 6, 10], help="draft tokens a synchronous round")
    parser.add_argument(
        "--least", type=int, least=0, nargs="+", default=[0, 1, 3], help="draft tokens that an asynchronous round waits for"
    )
    parser.add_argument("--ahead", type=int, default=24, help="draft tokens that may wait")
    parser.add_argument("--prompts", type=Path, help="one prompt a line, or JSON lines; the mini's examples by default")
    parser.add_argument("--limit", type=int, default=8, help="prompts")
    parser.add_argument("--choose", type=int, default=2, help="prompts to choose lengths on")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="one pair, two prompts, a few tokens")
    args = parser.parse_args()
    if args.smoke:
        args.ratios, args.gains, args.lengths, args.least, args.limit, args.choose, args.max_new_tokens = [2], [0.05], [2], [1], 2, 1, 4
    torch.set_num_threads(1)
    try:
        kind, path = ("none", None) if args.drafter is None else ("model", None if args.drafter == "model" else args.drafter)
        pair = load_pair(Config(target=TargetSection(path=args.model), drafter=DrafterSection(kind=kind, path=path)))
        texts = [record["prompt"] for record in read_prompts(args.prompts)] if args.prompts else list(pair.examples)
        inputs = [pair.inputs([text]) for text in texts[: args.limit]]
        cases = [(ratio, gain) for ratio in args.ratios for gain in (args.gains if ratio > 1 else [0.0])]
        pairs = [(f"{r} x, gain {g:g}", deepened(pair.target, r, g), pair.target) for r, g in cases if args.drafter is None]
        pairs = pairs or [(f"{args.model}, {args.drafter}", pair.target, pair.drafter)]
        rows = [compare(*each, inputs, args) for each in pairs]
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    print(markdown(rows))
    if args.out is not None:
        write_json(args.out, {"rows": rows, "provenance": provenance(pair.target.device)})


if __name__ == "__main__":
    run_recipe(main)
