"""Make the targets and drafts of mini continuous: models of Fashion-MNIST's continuous tokens, by class.

    python vision/train_continuous.py --head diffusion         (25 minutes on one CPU core; mixture: 26, masked: 16)
    python vision/train_continuous.py --head diffusion --draft (20 minutes; mixture, masked: 10)
    python vision/train_continuous.py --target deep --begin diffusion --layers 12 --inner 288        (a deeper diffusion target)
    python vision/train_continuous.py --target deep --draft --kind state        (one layer that reads the target's last hidden states)

Data (MMSPEC_DATA, default ../shared/data): Fashion-MNIST (MIT), its official test pictures held out; all but shoes are mirrored too. The
autoencoder is read from OUT/autoencoder (vision/train_autoencoder.py). One picture in ten lacks its class, so that guidance has something
to lean on. Drafts learn from OUT/HEAD/target, behind contexts that are half pictures' and half its own, a quarter of their tokens drafted.
A stopped run goes on; delete the work folder to start again.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from mmspec.core.distributions.noise_schedule import NoiseSchedule
from mmspec.loading.vision_training import resolve_latent_options
from mmspec.minis import pictures
from mmspec.minis.card import latent_drafter_card
from mmspec.minis.latent_tables import fashion_table
from mmspec.train import Fit, fit
from mmspec.train.continuous.deeper import deepened
from mmspec.train.continuous.states import distillation
from mmspec.train.continuous.targets import ContinuousLoss, Table, drawn_table, dropped, noisy
from mmspec.train.held_out import apart, array_keys, hold_out
from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.recipe_files import recipe_command
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_loader
from mmspec.vision.checkpoints.latents import load_continuous_model, save_model
from mmspec.vision.continuous.ar import ContinuousAR, ContinuousARConfig, scheduler
from mmspec.vision.continuous.mar import MaskedAR, MaskedARConfig
from mmspec.vision.continuous.state_draft import StateDraft

SIZES = {
    "diffusion": {"hidden_size": 160, "num_hidden_layers": 5, "num_attention_heads": 5, "intermediate_size": 432, "head_width": 160},
    "mixture": {"hidden_size": 128, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 352, "components": 8},
    "masked": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 352, "head_width": 128}
    | {"iterations": 12},
}
SMALL = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 256, "head_width": 64, "head_blocks": 1}
STEPS, DRAFT_STEPS = {"diffusion": 3300, "mixture": 6000, "masked": 2200}, {"diffusion": 6200, "mixture": 5500, "masked": 1500}
KINDS = ("model", "state")
CHAINS, SIGMA, OWN = (8, 16, 16, 32, 64), 0.1, 0.25


def make(head: str, sizes: dict):
    """An untrained model."""
    sizes = {**sizes, "id2label": dict(enumerate(pictures.FASHION))}
    return MaskedAR(MaskedARConfig(**sizes)) if head == "masked" else ContinuousAR(ContinuousARConfig(head=head, **sizes))


def begun(args: argparse.Namespace, sizes: dict, folder: Path) -> tuple:
    """The model to be trained, and the target of a draft."""
    if args.begin is not None:
        return deepened(load_continuous_model(args.out / args.begin / "target"), args.layers, args.inner).train(), None
    target = load_continuous_model(folder / "target").requires_grad_(False) if args.draft else None
    if args.kind == "state":
        return StateDraft.beside(target, args.own_head, head_width=SMALL["head_width"], head_blocks=SMALL["head_blocks"]), target
    return make(args.head, {**sizes, "every": args.every} if args.draft else sizes), target


def parsed() -> argparse.Namespace:
    parser = RecipeParser(__doc__)
    parser.add_argument(
        "--head", choices=SIZES, default="diffusion", help="masked is a diffusion head behind a backbone that looks both ways"
    )
    parser.add_argument("--draft", action="store_true", help="distil a draft from the target instead")
    parser.add_argument("--kind", choices=KINDS, help="of the draft: a smaller model, or one layer over the target's states")
    parser.add_argument("--own-head", action="store_true", help="a state draft has a small head of its own, not the target's")
    parser.add_argument("--target", metavar="NAME", help="folder of the target in OUT; default HEAD")
    parser.add_argument("--begin", metavar="NAME", help="begin with the weights of OUT/NAME/target; further layers begin as the identity")
    parser.add_argument("--layers", type=int, help="of the target; default by head, or those of --begin")
    parser.add_argument("--inner", type=int, help="width of the feed-forward layers of a target made from --begin")
    parser.add_argument("--every", type=int, default=1, help="a draft's head runs at every so many states")
    parser.add_argument("--name", help="of the draft; default small, or state")
    parser.add_argument("--work", type=Path, help="default build/continuous-HEAD, or build/continuous-HEAD-NAME")
    parser.add_argument("--out", type=Path, default=Path("mmspec/minis/continuous"))
    parser.add_argument("--steps", type=int, help="default by head")
    parser.add_argument("--written", type=int, default=1024, help="pictures that the target draws for its draft to learn from")
    parser.add_argument("--rows", type=int, default=48, help="pictures a step")
    parser.add_argument("--levels", type=int, default=4, help="noise levels a token a step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny model on random tokens")
    args = parser.parse_args()
    resolve_latent_options(parser, args)
    args.work = args.work or Path(f"build/continuous-{args.target}" + (f"-{args.name}" if args.draft else ""))
    args.steps = args.steps or (DRAFT_STEPS if args.draft else STEPS)[args.head]
    return args


def main() -> None:
    args = parsed()
    refuse_several_processes()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    sizes, folder = SMALL if args.draft and args.kind == "model" else SIZES[args.head], args.out / args.target
    if args.smoke:
        sizes, args.rows, args.steps, folder = {**sizes, "num_hidden_layers": 1}, 2, 2, args.work / "mini" / args.target
        train, held = (Table(torch.randn(8, 49, 8), torch.full((8, 49, 8), 0.1), torch.arange(8)) for _ in range(2))
        if args.draft:
            save_model(make(args.head, sizes), folder / "target")
    else:
        train, held = (fashion_table(args.out / "autoencoder", args.work / f"{part}.pt", part) for part in ("train", "test"))
    model, target = begun(args, sizes, folder)
    noise_schedules = [NoiseSchedule.of(scheduler(), steps, SIGMA) for steps in CHAINS]
    own, example = train, ContinuousLoss(model, scheduler(), args.levels)
    split = apart(array_keys(train.mean), array_keys(held.mean), "pictures")
    judged = held = held.part(split.held)
    if target is not None:
        if args.head != "masked":
            chain = noise_schedules[1] if args.head == "diffusion" else None
            drawn = drawn_table(target, args.work / "own.pt", 4 if args.smoke else args.written, chain)
            split = hold_out(array_keys(drawn.mean), 64, "pictures that the target drew")
            own, judged = drawn.part(split.train), drawn.part(split.held)
        example = distillation(model, target, noise_schedules, args.every)

    def loss(example, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        tokens, classes = (own if step % 2 else train).some(args.rows, generator)
        seen, classes = noisy(tokens, generator), dropped(classes, model.config.classes, generator)
        return example(classes, seen, generator, OWN) if args.draft else example(classes, seen, tokens, generator)

    @torch.no_grad()
    def held_out(example, step: int) -> dict:
        count, generator = 4 if args.smoke else 128, torch.Generator().manual_seed(1)
        tokens, classes = held.some(count, torch.Generator().manual_seed(0))
        if not args.draft:
            facts = {"loss, held out": example(classes, tokens, tokens, generator).item()}
            facts["the same from nothing"] = example(torch.full_like(classes, model.config.classes), tokens, tokens, generator).item()
        else:
            few = 16 if args.kind == "state" else 64
            some, about = (tokens, classes) if args.head == "masked" else judged.some(few, torch.Generator().manual_seed(0))
            facts = example.facts(about, some, None if args.head == "mixture" else noise_schedules[1], generator)
        print(step, json.dumps(facts), flush=True)
        return facts

    plan = Fit(steps=args.steps, lr=args.lr, warmup=100, checkpoint_every=250, mixed_precision=args.precision)
    fit(example, loss, plan, args.work / "checkpoint.pt", title=args.head, validate=held_out, held=split)
    place = folder / ("drafters/" + args.name if args.draft else "target")
    save_model(model, place)
    parameters, facts = sum(p.numel() for p in model.parameters()), held_out(example, args.steps)
    if args.draft:
        command = recipe_command("vision/train_continuous.py", vars(args), leave_out=("work", "out", "smoke"))
        (place / "card.md").write_text(latent_drafter_card(args, command, parameters, facts), encoding="utf-8")
    known = {"parameters": parameters, "steps": args.steps, **facts}
    (args.work / "facts.json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    tell_loader(load_continuous_model, place)


if __name__ == "__main__":
    run_recipe(main)
