"""Train a drafter of an image model on pictures that the model drew itself: an EAGLE-type net, or a smaller image model.

    python vision/train_drafter.py --set fashion        (15 minutes on one CPU core)
    python vision/train_drafter.py --pictures FOLDER --out OUT        (the target of your own pictures in OUT)
    python vision/train_drafter.py --pictures FOLDER --out OUT --kind model        (a smaller image model, for "assisted")
    python vision/train_drafter.py --model ./anole --prompts prompts.txt --guidance 3 --negative blurry --out ./anole-eagle
    torchrun --nproc-per-node 2 vision/train_drafter.py --set fashion

The target draws its pictures from classes or captions under guidance; the drafter learns the target's distributions over them, a net its
hidden states too, with the class or caption and, for the unconditional rows that guidance needs, without. Drawn pictures are kept in the
work folder, and a stopped run goes on; delete the folder to start again. The drafter is written with its card to OUT/drafters/KIND, of
--model to OUT: mmspec.vision.generate(drafter=FOLDER) and mmspec image --drafter FOLDER read it.
"""

import argparse
import json
import random

import torch
from accelerate import PartialState
from torch import nn

from mmspec.loading.vision_training import add_model_options, prompts_to_draw, published_target, resolve_model_options
from mmspec.minis.card import picture_drafter_card
from mmspec.minis.images import load_images
from mmspec.minis.picture_sets.options import add_set_options, resolve_picture_options
from mmspec.minis.picture_sets.sets import training_captions
from mmspec.train import Fit, fit
from mmspec.train.distillation import acceptance_text
from mmspec.train.held_out import array_keys, hold_out
from mmspec.train.parallel import join_processes, own_share
from mmspec.train.pictures.drawn import draw_pictures
from mmspec.train.pictures.learners import NETS, SmallImageLoss, WrittenPictures, picture_net, picture_net_loss
from mmspec.train.small_model.images import small_llamagen
from mmspec.utils.recipe_files import recipe_command
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command, tell_loader
from mmspec.vision.checkpoints.drafters import is_image_drafter, save_image_drafter
from mmspec.vision.codes.shared_layers import SharedLayers
from mmspec.vision.families.base import ImageModel
from mmspec.vision.families.llamagen import LlamaGenPictures
from mmspec.vision.families.llamagen_layers import LlamaGenConfig
from mmspec.vision.families.llamagen_network import LlamaGen


def own_prompts(model: ImageModel, args: argparse.Namespace) -> list:
    """Classes in turn, or captions that the target was trained on."""
    config = model.model.config
    if config.condition == "class":
        return [number % config.classes for number in range(args.drawn)]
    return random.Random(0).choices(training_captions(args.pictures or args.set), k=args.drawn)


def tiny() -> ImageModel:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    return LlamaGenPictures(LlamaGen(LlamaGenConfig(vocab_size=32, grid=4, classes=3, **sizes)).eval())


def target_of(args: argparse.Namespace) -> tuple[ImageModel, list]:
    """The target, and one prompt a picture."""
    if args.model is not None:
        loaded = published_target(args)
        return loaded.model, prompts_to_draw(loaded, args.prompts, args.drawn)
    model = tiny() if args.smoke and args.set != "own" else load_images(args.out)["target"]
    return model, own_prompts(model, args)


def parsed() -> argparse.Namespace:
    parser = RecipeParser(__doc__)
    add_set_options(parser, "drafter")
    add_model_options(parser)
    parser.add_argument("--kind", default="eagle1", choices=(*NETS, "model"), help="a feature drafter, or a smaller image model")
    parser.add_argument("--layers", type=int, help="of a smaller image model; default 2")
    parser.add_argument("--drawn", type=int, default=768, help="pictures that the target draws to learn from")
    parser.add_argument("--batch", type=int, default=64, help="pictures drawn at once")
    parser.add_argument("--guidance", type=float, help="default 2; of --model 1, which is none")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float, most=1)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rows", type=int, default=16, help="pictures a step")
    parser.add_argument("--depth", type=int, default=3, help="levels unrolled in training")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--smoke", action="store_true", help="two steps on a few pictures, of a tiny random target where none is given")
    args = parser.parse_args()
    resolve_model_options(parser, args)
    if args.model is None:
        resolve_picture_options(parser, args, "drafter")
    small = args.kind == "model"
    if args.layers is not None and not small:
        parser.error("--layers is for --kind model: leave it out")
    args.layers = (args.layers or (1 if args.smoke else 2)) if small else None
    args.guidance = args.guidance if args.guidance is not None else 2.0 if args.model is None else 1.0
    if args.smoke:
        args.drawn, args.steps, args.rows, args.batch = 12, 2, 2, 12
        args.out = args.work / "mini" if args.set not in ("own", "model") else args.out
    return args


def run(args: argparse.Namespace, here: PartialState) -> None:
    if args.rows < here.num_processes:
        raise ValueError(f"--rows is {args.rows} for {here.num_processes} processes: give every process a picture")
    torch.manual_seed(0)
    target, prompts = target_of(args)
    target.model.requires_grad_(False)
    sampling = {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p}
    drawn = draw_pictures(target, prompts, args.work, batch=args.batch, guidance=args.guidance, **sampling)
    torch.manual_seed(0)
    small, alone = args.kind == "model", args.model is None
    texts = {prompt for prompt in prompts if isinstance(prompt, str)}  # numbers and None are classes, whose pictures differ
    by_text = len(texts) > 1 and getattr(target.model.config, "condition", None) != "class"
    keys = prompts if by_text else array_keys(drawn.sequences.cpu())
    split = hold_out(keys, max(args.rows, args.drawn // 16), "pictures to learn from")
    judged = list(split.held[: max(args.rows, args.drawn // 16)])
    if small:
        net: nn.Module = small_llamagen(target.model, args.layers) if alone else SharedLayers.spread(target, args.layers).float()
        example: nn.Module = SmallImageLoss(net, target, LlamaGenPictures(net) if isinstance(net, LlamaGen) else None)
    else:
        net = picture_net(args.kind, target)
        example = picture_net_loss(net, target, args.depth)
    lesson = (lambda *part: WrittenPictures.of(drawn, *part)) if small else (lambda *part: drawn.window(*part, net.reads))

    def loss(module: nn.Module, turn: int) -> torch.Tensor:
        step = turn // here.num_processes
        pick = random.Random(step)
        rows = [pick.choice(split.train) for _ in range(args.rows)]
        return module(lesson(list(own_share(rows)), not drawn.guided or step % 3 != 0))

    def validate(module: nn.Module, step: int) -> list:
        levels = module.acceptance(lesson(judged, True))
        print(f"step {step}: held-out acceptance {acceptance_text(levels)}", flush=True)
        return levels

    plan = Fit(steps=args.steps, lr=args.lr, checkpoint_every=min(100, args.steps), mixed_precision=args.precision)
    fit(example, loss, plan, args.work / f"{args.kind}.pt", title=args.kind, validate=validate, held=split)
    if not here.is_main_process:
        return
    levels, folder = validate(example, args.steps), args.out / "drafters" / args.kind if alone else args.out
    save_image_drafter(net, target, folder, torch.float16 if alone else None)
    unwritten = ("work", "name", "pictures" if args.pictures is None else "set")
    command = recipe_command("vision/train_drafter.py", vars(args), leave_out=unwritten, processes=here.num_processes)
    card = picture_drafter_card(args, command, sum(p.numel() for p in net.parameters()), len(judged), levels)
    (folder / "card.md").write_text(card, encoding="utf-8")
    (args.work / "facts.json").write_text(json.dumps({"levels": levels}) + "\n", encoding="utf-8")
    if args.smoke and args.set not in ("own", "model"):  # there is no folder of the random target
        tell_loader(is_image_drafter, folder)
    else:
        place = args.out if alone else args.model
        first = prompts[0]
        prompt = [] if first is None else [target.labels[first] if isinstance(first, int) and target.labels else first]
        tell_command("mmspec", "image", *prompt, "--model", place, "--drafter", folder, "--out", args.work / "first.png")


def main() -> None:
    args = parsed()
    run(args, join_processes(args.device or "cpu"))


if __name__ == "__main__":
    run_recipe(main)
