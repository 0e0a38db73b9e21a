"""Train a drafter of an image model on pictures that the model drew itself: an EAGLE-type net, or a smaller image model.

    python vision/train_drafter.py --set fashion        (15 minutes on one CPU core)
    python vision/train_drafter.py --pictures FOLDER --out OUT        (the target of your own pictures in OUT)
    python vision/train_drafter.py --pictures FOLDER --out OUT --kind model        (a smaller image model, for "assisted")
    torchrun --nproc-per-node 2 vision/train_drafter.py --set fashion

The target draws its pictures from classes or captions under guidance; the drafter learns the target's distributions over them, a net its
last hidden states too, with the class or caption and, for the unconditional rows that guidance needs, without. Drawn pictures are kept in
the work folder, and a stopped run goes on; delete the folder to start again. The drafter is written to OUT/drafters/KIND with its card.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from torch import Tensor, nn

import mmspec
from mmspec.drafters.checkpoints.load import save_drafter
from mmspec.drafters.checkpoints.nets import new_net
from mmspec.minis.card import picture_drafter_card
from mmspec.minis.images import load_images
from mmspec.minis.picture_sets.options import add_set_options, resolve_picture_options
from mmspec.minis.picture_sets.sets import training_captions
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss, RecordedWindow, acceptance_text
from mmspec.train.parallel import join_processes, own_share
from mmspec.train.small_model.images import SmallImageLoss, small_llamagen, written_pictures
from mmspec.utils.recipe_files import recipe_command
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.llamagen import LlamaGenPictures
from mmspec.vision.families.llamagen_layers import LlamaGenConfig
from mmspec.vision.families.llamagen_network import LlamaGen


def prompts_of(model: ImageModel, args: argparse.Namespace) -> list:
    """Classes in turn, or captions that the target was trained on."""
    config = model.model.config
    if config.condition == "class":
        return [number % config.classes for number in range(args.drawn)]
    return random.Random(0).choices(training_captions(args.set if args.pictures is None else args.pictures), k=args.drawn)


def drawn(model: ImageModel, prompts: list, guidance: float, batch: int, path: Path) -> Tensor:
    """Codes [N, T] the target draws from `prompts`; made once and kept."""
    if not path.exists():
        table = []
        for first in range(0, len(prompts), batch):
            out = mmspec.vision.generate(model, prompts[first : first + batch], method="jacobi", guidance=guidance, seed=first)
            table.append(out.sequences.to(torch.int16))
            print(f"{first + len(table[-1])} of {len(prompts)} pictures drawn", flush=True)
        torch.save(torch.cat(table), path)
    return torch.load(path).long()


@torch.no_grad()
def window(model: ImageModel, prompts: list, codes: Tensor, rows: list[int], conditional: bool) -> RecordedWindow:
    """Drawn pictures as lessons: the value before the first code is the prompt's last position, which no net embeds."""
    prompt = model.encode([prompts[row] for row in rows], guided=True)
    half = slice(0, len(rows)) if conditional else slice(len(rows), None)
    states = model.model.states(prompt.embeds[half], codes[rows], prompt.mask[half])
    ids = torch.cat([torch.zeros_like(codes[rows, :1]), codes[rows, :-1]], 1)
    own = torch.ones_like(ids, dtype=torch.bool)
    own[:, 0] = False
    return RecordedWindow(ids, states, states, own)


def tiny() -> ImageModel:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    return LlamaGenPictures(LlamaGen(LlamaGenConfig(vocab_size=32, grid=4, classes=3, **sizes)).eval())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_set_options(parser, "drafter")
    parser.add_argument("--kind", default="eagle1", help="a feature drafter: eagle1; or model, a smaller image model")
    parser.add_argument("--layers", type=int, help="of a smaller image model; default 2")
    parser.add_argument("--drawn", type=int, default=768, help="pictures that the target draws to learn from")
    parser.add_argument("--guidance", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rows", type=int, default=16, help="pictures a step")
    parser.add_argument("--depth", type=int, default=3, help="levels unrolled in training")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--precision", default="bf16", help="bf16 or no")
    parser.add_argument("--smoke", action="store_true", help="two steps on a few pictures, of a tiny random target where none is given")
    args, here = parser.parse_args(), join_processes("cpu")
    resolve_picture_options(parser, args, "drafter")
    own, small = args.set == "own", args.kind == "model"
    if args.layers is not None and not small:
        parser.error("--layers is for --kind model: leave it out")
    args.layers = (args.layers or (1 if args.smoke else 2)) if small else None
    if args.smoke:
        args.drawn, args.steps, args.rows, args.out = 12, 2, 2, args.out if own else args.work / "mini"
    if args.rows < here.num_processes:
        parser.error(f"--rows is {args.rows} for {here.num_processes} processes: give every process a picture")
    model = tiny() if args.smoke and not own else load_images(args.out)["target"]
    target = model.model.requires_grad_(False)
    prompts = prompts_of(model, args)
    with here.main_process_first():
        codes = drawn(model, prompts, args.guidance, 64, args.work / "drawn.pt")
    torch.manual_seed(0)
    net, held = small_llamagen(target, args.layers) if small else new_net(args.kind, target, {}), max(args.rows, args.drawn // 16)
    if not small and net.reads != (-1,):
        raise SystemExit(f"{args.kind} reads states {net.reads}: this recipe records the last one only, so train eagle1")
    example = SmallImageLoss(net, target) if small else DistillationLoss(net, target, Aim(depth=args.depth, states=0.1))
    lesson = written_pictures if small else window

    def loss(module: nn.Module, turn: int) -> Tensor:
        step = turn // here.num_processes
        pick = random.Random(step)
        rows = [pick.randrange(held, args.drawn) if not args.smoke else pick.randrange(args.drawn) for _ in range(args.rows)]
        return module(lesson(model, prompts, codes, list(own_share(rows)), conditional=step % 3 != 0))

    def validate(module: nn.Module, step: int) -> list:
        levels = module.acceptance(lesson(model, prompts, codes, list(range(held)), conditional=True))
        print(f"step {step}: held-out acceptance {acceptance_text(levels)}", flush=True)
        return levels

    plan = Fit(steps=args.steps, lr=args.lr, checkpoint_every=min(100, args.steps), mixed_precision=args.precision)
    fit(example, loss, plan, args.work / f"{args.kind}.pt", title=args.kind, validate=validate)
    if not here.is_main_process:
        return
    levels = validate(example, args.steps)
    folder = args.out / "drafters" / args.kind
    net.half().save_pretrained(folder) if small else save_drafter(net, folder, torch.float16)
    unwritten = ("work", "name", "set" if own else "pictures")
    command = recipe_command("vision/train_drafter.py", vars(args), leave_out=unwritten, processes=here.num_processes)
    card = picture_drafter_card(args, command, sum(p.numel() for p in net.parameters()), held, levels)
    (folder / "card.md").write_text(card, encoding="utf-8")
    (args.work / "facts.json").write_text(json.dumps({"levels": levels}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
