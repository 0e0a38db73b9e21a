"""Train a drafter that reads its target: heads, feature drafters, multi-token prediction, adapters (docs/drafters.md lists the kinds).

    python text/train_drafter.py eagle3 --model ./big --prompts prompts.txt --out ./big-eagle3
    python text/train_drafter.py medusa                       # for the shipped mini, on openings from its training corpus
    torchrun --nproc-per-node 2 text/train_drafter.py eagle3 ...          # or accelerate launch --num_processes 2: the same weights

Three stages, each resumed where it was stopped (delete --work to start again): the target writes text under the sampling settings it
will be used with, its hidden states there are recorded once, and the drafter learns the target's distributions on them. Several processes
share every stage: chunks of text, batches of states, and the windows of a step. Every checkpoint prints held-out acceptance per draft
token, when sampling and (after the slash) greedily. mmspec.load_drafter reads what is written; its card has the command again.
"""

import argparse
import json
import os
import random
from pathlib import Path

import torch
from accelerate import PartialState

from mmspec.drafters.checkpoints.load import load_drafter, save_drafter
from mmspec.drafters.checkpoints.nets import NETS, new_net
from mmspec.loading.text import load_pair
from mmspec.minis.card import drafter_card
from mmspec.minis.corpus import documents
from mmspec.run.config import Config, TargetSection
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss, acceptance_text
from mmspec.train.on_policy_text import Writing, write_own_text
from mmspec.train.parallel import join_processes
from mmspec.train.record import record
from mmspec.utils.files import read_prompts
from mmspec.utils.recipe_files import recipe_command

AIMS = {"eagle1": Aim(depth=2, states=1.0), "eagle3": Aim(depth=4)}  # heads: every level they have


def openings(args: argparse.Namespace, tokenizer) -> list[list[int]]:
    """The ids the target goes on from: given prompts, or the beginnings of the mini's training documents."""
    if args.prompts is not None:
        texts = [record["prompt"] for record in read_prompts(args.prompts)]
    elif args.smoke:
        texts = [f"Question: what is {i} and {i}?\nAnswer:" for i in range(40)]
    else:
        texts = [t for i, t in enumerate(documents(Path(os.environ.get("MMSPEC_DATA", "../shared/data")))) if i % 20 and len(t) > 200]
    random.Random(0).shuffle(texts)
    ids = [tokenizer(text)["input_ids"] for text in texts[: args.windows]]
    return [ids[i % len(ids)] for i in range(args.windows)]


def untrained(args: argparse.Namespace, target, written: torch.Tensor):
    """The net as training begins; `written` are the values the target wrote."""
    torch.manual_seed(0)
    net = new_net(args.kind, target, args.options | ({"values": args.vocabulary} if args.vocabulary else {}))
    if args.vocabulary:
        counts = torch.bincount(written, minlength=target.config.get_text_config(decoder=True).vocab_size)
        net.know(counts.topk(args.vocabulary).indices.sort().values)
    if hasattr(net, "start_from"):
        net.start_from(target)
    return net


def aim_of(args: argparse.Namespace, net) -> Aim:
    base = AIMS.get(args.kind, Aim(depth=getattr(net, "most", None) or 4))
    return Aim(depth=args.depth or base.depth, distributions=args.loss or base.distributions, states=base.states)


def parsed() -> tuple[argparse.Namespace, PartialState]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", default="eagle3", choices=sorted(NETS))
    parser.add_argument("--model", default="mini")
    parser.add_argument("--prompts", type=Path, help="one prompt a line, or JSON lines")
    parser.add_argument("--work", type=Path, default=Path("build/drafters"), help="text and recordings, shared by all kinds")
    parser.add_argument("--out", type=Path, help="default: WORK/KIND")
    parser.add_argument("--options", type=json.loads, default={}, help='of the drafter class, as JSON, such as {"heads": 3}')
    parser.add_argument("--vocabulary", type=int, help="eagle3: draft only the N values the target writes most")
    parser.add_argument("--loss", type=json.loads, help='such as {"kl": 1, "tv": 1, "top-k": 0.1}; default {"kl": 1}')
    parser.add_argument("--depth", type=int, help="levels unrolled in training")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="taken in turn, chunk by chunk")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--windows", type=int, default=1280)
    parser.add_argument("--opening", type=int, default=48, help="most prompt tokens of a window")
    parser.add_argument("--new", type=int, default=208, help="most tokens the target adds")
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--rows", type=int, default=8, help="windows a step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--precision", default="bf16", help="no, bf16 or fp16")
    parser.add_argument("--half", action="store_true", help="write the weights in half precision")
    parser.add_argument("--bytes", action="store_true", help="write matrices as bytes with a scale a row, as the shipped drafters are")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--smoke", action="store_true", help="a few windows, two steps")
    args = parser.parse_args()
    if args.smoke:
        args.windows, args.opening, args.new, args.chunk, args.steps, args.rows, args.checkpoint_every = 40, 8, 12, 20, 2, 2, 1
    try:
        here = join_processes(args.device)
    except ValueError as error:
        parser.error(str(error))
    if args.rows < here.num_processes:
        parser.error(f"--rows is {args.rows} for {here.num_processes} processes: give every process a window")
    return args, here


def main() -> None:
    args, here = parsed()
    pair = load_pair(Config(target=TargetSection(path=args.model, device=str(here.device) if args.device == "auto" else args.device)))
    target = pair.target.requires_grad_(False)
    plan = Writing(temperatures=args.temperature, top_p=args.top_p, opening=args.opening, new=args.new, chunk=args.chunk)
    ids, own = write_own_text(target, pair.tokenizer, openings(args, pair.tokenizer), plan, args.work)
    net = untrained(args, target, ids[own])
    data = record(target, ids, own, net.reads, args.work / f"states-{'-'.join(map(str, net.reads))}")
    held, device = max(args.rows, len(data) // 16), target.device
    aim = aim_of(args, net)
    example, log = DistillationLoss(net, target, aim).to(device), args.work / f"{args.kind}.jsonl"

    def loss(module: torch.nn.Module, turn: int) -> torch.Tensor:
        return module(data.draw(turn, args.rows, held, device, here.num_processes))

    def validate(module: torch.nn.Module, step: int) -> None:
        levels = module.acceptance(data.window(range(held), device))
        print(f"step {step}: held-out acceptance {acceptance_text(levels)}", flush=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "acceptance": levels}) + "\n")

    fitting = Fit(steps=args.steps, lr=args.lr, checkpoint_every=args.checkpoint_every, mixed_precision=args.precision)
    path = args.work / f"{args.kind}.pt"
    fit(example, loss, fitting, path, title=args.kind, validate=validate)
    if here.is_main_process:
        out = args.out or args.work / args.kind
        save_drafter(example.net, out, torch.int8 if args.bytes else torch.float16 if args.half else None)
        example.net.load_state_dict(load_drafter(out).state_dict())  # the card tells of what was written
        levels = example.acceptance(data.window(range(held), device))
        command = recipe_command("text/train_drafter.py", vars(args), ("kind",), leave_out=("work", "out"), processes=here.num_processes)
        card = drafter_card(args, command, aim, sum(p.numel() for p in net.parameters()), held, levels)
        (out / "card.md").write_text(card, encoding="utf-8")


if __name__ == "__main__":
    main()
