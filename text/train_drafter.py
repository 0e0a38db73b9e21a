"""Train a drafter that reads its target: heads, feature drafters, multi-token prediction, adapters (docs/drafters.md lists the kinds).

    python text/train_drafter.py eagle3 --model ./big --prompts prompts.txt --out ./big-eagle3
    python text/train_drafter.py dflash                       # for the shipped mini, on openings from its training corpus
    torchrun --nproc-per-node 2 text/train_drafter.py eagle3 ...          # or accelerate launch --num_processes 2: the same weights

Three stages, resumed where they stopped (delete --work to start again): the target writes text under the sampling settings it will be used
with, its hidden states there are recorded, and the drafter learns the target's distributions on them. Checkpoints print held-out acceptance
per draft token, sampled/greedy. mmspec.load_drafter reads the result; its card has the command again. Of vocabularies above 65,536 values
eagle3 and dflash draft the 32,768 that the target writes most, by the target's rows for them.
"""

import argparse
import json
import os
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState

from mmspec.drafters.checkpoints.load import check_drafter_folder, load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import NETS, begin_training, net_to_train
from mmspec.loading.text import load_pair
from mmspec.loading.transformers import DTYPES
from mmspec.minis.card import drafter_card
from mmspec.minis.corpus import training_documents
from mmspec.run.config import Config, TargetSection
from mmspec.train import Fit, fit
from mmspec.train.distillation import DistillationLoss, acceptance_text, aim_for
from mmspec.train.on_policy_text import Writing, held_windows, write_own_text
from mmspec.train.parallel import join_processes
from mmspec.train.record import record
from mmspec.train.states.disk import STATE_DTYPES
from mmspec.train.states.memory import TrainingSize, training_memory
from mmspec.utils.files import read_prompts
from mmspec.utils.recipe_files import recipe_command
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command


def openings(args: argparse.Namespace, pair) -> list[list[int]]:
    """The ids the target goes on from: given prompts, or the beginnings of the mini's training documents."""
    if args.prompts is not None:
        texts = [record["prompt"] for record in read_prompts(args.prompts)]
    elif args.smoke:
        texts = [f"Question: what is {i} and {i}?\nAnswer:" for i in range(40)]
    else:
        texts = [text for text in training_documents(Path(os.environ.get("MMSPEC_DATA", "../shared/data"))) if len(text) > 200]
    random.Random(0).shuffle(texts)
    ids = [pair.tokenizer(pair.wrapped(text), add_special_tokens=not args.chat)["input_ids"] for text in texts[: args.windows]]
    if args.chat:  # a template that is cut off is none
        ids = [each for each in ids if len(each) <= args.opening]
        if not ids:
            raise ValueError(f"in its chat template every prompt is longer than {args.opening} tokens: raise --opening")
    return [ids[i % len(ids)] for i in range(args.windows)]


def parsed() -> argparse.Namespace:
    parser = RecipeParser(__doc__)
    parser.add_argument("kind", nargs="?", default="eagle3", choices=sorted(NETS))
    parser.add_argument("--model", default="mini")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the target")
    parser.add_argument("--device-map", help="where from_pretrained puts the target, such as auto or cuda:1")
    parser.add_argument("--prompts", type=Path, help="one prompt a line, or JSON lines")
    parser.add_argument("--chat", action="store_true", help="wrap prompts in the target's chat template")
    parser.add_argument("--work", type=Path, default=Path("build/drafters"), help="text and recordings, shared by all kinds")
    parser.add_argument("--out", type=Path, help="default: WORK/KIND")
    parser.add_argument("--options", type=dict, default={}, help='of the drafter class, as JSON, such as {"heads": 3}')
    parser.add_argument("--vocabulary", type=int, least=0, help="draft only the N values the target writes most; 0: all")
    parser.add_argument("--loss", type=dict, help='such as {"kl": 1, "tv": 1, "top-k": 0.1}; default {"kl": 1}')
    parser.add_argument("--depth", type=int, help="levels unrolled in training")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="taken in turn, chunk by chunk")
    parser.add_argument("--top-p", type=float, most=1)
    parser.add_argument("--windows", type=int, default=1280)
    parser.add_argument("--opening", type=int, default=48, help="most prompt tokens of a window")
    parser.add_argument("--new", type=int, default=208, help="most tokens the target adds")
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--states", choices=STATE_DTYPES, default="bfloat16", help="dtype of the target's states on disk")
    parser.add_argument("--force-memory", action="store_true", help="begin even if the memory or disk space may not suffice")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rows", type=int, default=8, help="windows a step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--precision", choices=("no", "bf16", "fp16"), default="bf16")
    parser.add_argument("--half", action="store_true", help="write the weights in half precision")
    parser.add_argument("--bytes", action="store_true", help="write matrices as bytes with a scale a row, as the shipped drafters are")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--smoke", action="store_true", help="a few windows, two steps")
    args = parser.parse_args()
    if args.smoke:
        args.windows, args.opening, args.new, args.chunk, args.steps, args.rows, args.checkpoint_every = 40, 8, 12, 20, 2, 2, 1
    return args


def main() -> None:
    args = parsed()
    run(args, join_processes(args.device))


def run(args: argparse.Namespace, here: PartialState) -> None:
    device = str(here.device) if args.device == "auto" else args.device
    pair = load_pair(Config(target=TargetSection(path=args.model, device=device, dtype=args.dtype)), args.device_map)
    target, pair = pair.target.requires_grad_(False), replace(pair, chat=args.chat)
    torch.manual_seed(0)
    net = net_to_train(args.kind, target, args.options, args.vocabulary)
    aim, length, out = aim_for(net, args.depth, args.loss), args.opening + args.new, args.out or args.work / args.kind
    check_drafter_folder(out)
    size = TrainingSize(windows=args.windows, length=length, rows=args.rows, levels=aim.depth, states=args.states)
    training_memory(net, target, size, args.work).announce(here, args.force_memory)
    plan = Writing(temperatures=args.temperature, top_p=args.top_p, opening=args.opening, new=args.new, chunk=args.chunk)
    split = held_windows(prompts := openings(args, pair), plan, max(args.rows, args.windows // 16))
    ids, own = (each[split.order] for each in write_own_text(target, pair.tokenizer, prompts, plan, args.work))
    first = len(split.held)
    begin_training(net, target, ids[first:][own[first:]])
    data = record(target, ids, own, net.reads, args.work / f"states-{'-'.join(map(str, net.reads))}", dtype=args.states)
    held, device = min(first, max(args.rows, len(data) // 16)), target.device
    example, log = DistillationLoss(net, target, aim).to(device), args.work / f"{args.kind}.jsonl"

    def validate(module: torch.nn.Module, step: int) -> None:
        levels = module.acceptance(data.window(range(held), device))
        print(f"step {step}: held-out acceptance {acceptance_text(levels)}", flush=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "acceptance": levels}) + "\n")

    fitting = Fit(steps=args.steps, lr=args.lr, checkpoint_every=args.checkpoint_every, mixed_precision=args.precision)
    draw = partial(data.draw, rows=args.rows, first=first, device=device, processes=here.num_processes)
    fit(example, lambda m, turn: m(draw(turn)), fitting, args.work / f"{args.kind}.pt", title=args.kind, validate=validate, held=split)
    if here.is_main_process:
        save_drafter(example.net, out, torch.int8 if args.bytes else torch.float16 if args.half else None)
        example.net.load_state_dict(load_drafter(out).state_dict())  # the card tells of what was written
        levels = example.acceptance(data.window(range(held), device))
        command = recipe_command("text/train_drafter.py", vars(args), ("kind",), leave_out=("work", "out"), processes=here.num_processes)
        (out / "card.md").write_text(drafter_card(args, command, aim, net, held, levels), encoding="utf-8")
        tell_command("mmspec", "text", "Once upon a time", "--model", args.model, "--drafter", out)


if __name__ == "__main__":
    run_recipe(main)
