"""Train SpecDec++'s acceptance head for a drafter: it ends a round's draft tokens where the target will likely reject the next one.

    python text/train_acceptance_head.py --drafter model --out build/acceptance                    # the shipped mini
    python text/train_acceptance_head.py --model ./big --drafter ./small --prompts prompts.txt --temperature 0.8 --out ./small-head

The target judges chains of --draft-length draft tokens on the prompts; the head learns which it accepts. The judgements of a tenth of the
prompts are held out. Use it as drafts end: Chain(stop=Learned(AcceptanceHead.load(folder))), from mmspec.drafters.shapes and
mmspec.drafters.stops.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

import torch

from mmspec.drafters.shapes import Chain
from mmspec.drafters.stops import AcceptanceHead
from mmspec.loading.text import load_pair, named_drafter, shaped
from mmspec.minis.corpus import documents, openings
from mmspec.models.families.registry import family_of
from mmspec.models.target import HFTarget
from mmspec.run.config import Config, DrafterSection, RunSection, TargetSection
from mmspec.run.drafters import drafter_of
from mmspec.run.rules import distributions_for, rule_of
from mmspec.run.shapes import draw_for
from mmspec.train import Fit, fit
from mmspec.train.acceptance import Judgements, head_loss, separation
from mmspec.train.held_out import HeldOut, hold_out
from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.files import read_prompts
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_loader


def prompts_of(args: argparse.Namespace, examples: tuple[str, ...]) -> list[str]:
    if args.prompts is not None:
        return [record["prompt"] for record in read_prompts(args.prompts)]
    if args.smoke:
        return list(examples[:2])
    texts = documents(Path(os.environ.get("MMSPEC_DATA", "../shared/data")))
    return [prompt for turn in range(1, 9) for prompt in openings([text for index, text in enumerate(texts) if index % 20 == turn])]


def judge(args: argparse.Namespace) -> tuple[Judgements, HeldOut]:
    """What the target thinks of the drafter's chains on the prompts, and which judgements are held out: those of some prompts."""
    kind, path = named_drafter(args.drafter)
    if not shaped(kind):
        raise ValueError(f"drafter {args.drafter!r} has no hidden states: train a head for a model or a trained drafter")
    run = RunSection(max_new_tokens=args.max_new_tokens, temperature=args.temperature, seed=args.seed)
    pair = load_pair(
        Config(target=TargetSection(path=args.model, device=args.device), drafter=DrafterSection(kind=kind, path=path), run=run)
    )
    rule, judgements = rule_of("exact", args.temperature), Judgements()
    distributions = distributions_for(rule, args.temperature, None, None, None, ())
    drafter = drafter_of(pair.drafter, HFTarget(pair.target, family_of(pair.target), distributions), rule, None)
    drafter = replace(drafter, shape=Chain(draw_for(rule), stop=judgements))
    prompts = prompts_of(args, pair.examples)
    hold_out(prompts, 1, "prompts")  # before they are answered
    for first in range(0, len(prompts), args.batch_size):
        judgements.first = first
        inputs = pair.inputs(prompts[first : first + args.batch_size])
        pair.generate(inputs, drafter=drafter, draft_length=args.draft_length, on_step=judgements, seed=args.seed + first)
    return judgements, hold_out([prompts[row] for row in judgements.rows], len(judgements) // 10, "judgements")


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--drafter", default="model", help="a name, or the folder of a model or a trained drafter")
    parser.add_argument("--prompts", type=Path, help="one prompt a line, or JSON lines; the mini: openings of training documents")
    parser.add_argument("--out", type=Path, default=Path("build/acceptance"))
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--draft-length", type=int, default=6)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rejected-weight", type=float, default=6.0, help="how many accepted draft tokens a rejected one counts for")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--smoke", action="store_true", help="two prompts, two steps")
    args = parser.parse_args()
    refuse_several_processes()
    if args.smoke:
        args.max_new_tokens, args.steps = 16, 2
    judged, split = judge(args)
    torch.manual_seed(args.seed)
    head = AcceptanceHead(len(judged.hidden[0]))
    plan = Fit(steps=args.steps, lr=1e-3, checkpoint_every=max(1, args.steps // 4))

    def validate(module: AcceptanceHead, step: int) -> None:
        print(f"step {step}: held-out area under the curve {separation(module, judged.at(split.held)):.3f}", flush=True)

    def loss(module: AcceptanceHead, turn: int) -> torch.Tensor:
        return head_loss(module, judged.draw(turn, 256, split.train), args.rejected_weight)

    args.out.mkdir(parents=True, exist_ok=True)
    fit(head, loss, plan, args.out / "training.pt", title="acceptance head", validate=validate, held=split)
    head.save(args.out)
    print(f"{len(judged)} judgements, {sum(judged.accepted) / len(judged):.0%} accepted; the head is in {args.out}")
    tell_loader(AcceptanceHead.load, args.out)


if __name__ == "__main__":
    run_recipe(main)
