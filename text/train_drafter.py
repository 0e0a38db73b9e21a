"""Train a drafter for a text model: Medusa, Hydra, recurrent or Amphista heads, EAGLE-1 or EAGLE-3.

    python text/train_drafter.py eagle3 --model ./big --prompts prompts.txt --out ./big-eagle3
    python text/train_drafter.py medusa                       # for the shipped mini, on openings from its training corpus
    accelerate launch text/train_drafter.py eagle3 ...        # several GPUs, unchanged

Three stages, each resumed where it was stopped (delete --work to start again): the target writes text under the sampling settings it
will be used with, its hidden states there are recorded once, and the drafter learns the target's laws on them. Every checkpoint prints
held-out acceptance per guess, "sampled/greedy". The drafter is written with its config; mmspec.load_drafter reads it.
"""

import argparse
import json
import os
import random
from pathlib import Path

import torch

import mmspec
from mmspec.config import Config, TargetSection
from mmspec.drafters.checkpoint import save_drafter
from mmspec.drafters.nets import NETS, new_net
from mmspec.jobs.files import read_prompts
from mmspec.minis.corpus import documents
from mmspec.text.pairs import load_pair
from mmspec.train import Fit, fit
from mmspec.train.lessons import Aim, Lesson, acceptance_text
from mmspec.train.record import record

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
    ids = [tokenizer(text)["input_ids"][: args.opening] for text in texts]
    return [ids[i % len(ids)] for i in range(args.windows)]


def own_text(pair, prompts: list[list[int]], args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows the target wrote [N, W] and which values are its own; a file a chunk, so that a stopped run goes on."""
    pieces, pad = [], pair.tokenizer.pad_token_id or 0
    for first in range(0, len(prompts), args.chunk):
        path = args.work / f"own-{first}.pt"
        if not path.exists():
            chunk = prompts[first : first + args.chunk]
            batch = pair.tokenizer.pad({"input_ids": chunk}, return_tensors="pt").to(pair.target.device)
            heat = args.temperature[first // args.chunk % len(args.temperature)]
            out = mmspec.text.generate(pair.target, batch, temperature=heat, top_p=args.top_p, max_new_tokens=args.new, seed=first)
            ids = torch.full((len(chunk), args.opening + args.new), pad)
            own = torch.zeros_like(ids, dtype=torch.bool)
            for row, (prompt, new, size) in enumerate(zip(chunk, out.sequences.cpu(), out.lengths.tolist(), strict=True)):
                ids[row, : len(prompt)] = torch.tensor(prompt)
                ids[row, len(prompt) : len(prompt) + size] = new[:size]
                own[row, len(prompt) : len(prompt) + size] = True
            torch.save((ids, own), path.with_suffix(".tmp"))
            path.with_suffix(".tmp").rename(path)
            print(f"written {first + len(chunk)} of {len(prompts)} windows at temperature {heat:g}", flush=True)
        pieces.append(torch.load(path))
    ids, own = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    return ids[order], own[order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(NETS))
    parser.add_argument("--model", default="mini")
    parser.add_argument("--prompts", type=Path, help="one prompt a line, or JSON lines")
    parser.add_argument("--work", type=Path, default=Path("build/drafters"))
    parser.add_argument("--out", type=Path, help="default: WORK/KIND")
    parser.add_argument("--options", type=json.loads, default={}, help='of the drafter class, as JSON, such as {"heads": 3}')
    parser.add_argument("--vocabulary", type=int, help="eagle3: draft only the N values the target writes most")
    parser.add_argument("--loss", type=json.loads, help='such as {"kl": 1, "tv": 1, "top-k": 0.1}; default {"kl": 1}')
    parser.add_argument("--depth", type=int, help="levels unrolled in training")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="taken in turn, chunk by chunk")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--windows", type=int, default=1024)
    parser.add_argument("--opening", type=int, default=48, help="most prompt tokens of a window")
    parser.add_argument("--new", type=int, default=208, help="most tokens the target adds")
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=8, help="windows a step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--checkpoint-every", type=int, default=200)
    parser.add_argument("--precision", default="no", help="no, bf16 or fp16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--smoke", action="store_true", help="a few windows, two steps")
    args = parser.parse_args()
    if args.smoke:
        args.windows, args.opening, args.new, args.chunk, args.steps, args.rows, args.checkpoint_every = 40, 8, 12, 20, 2, 2, 1
    args.work.mkdir(parents=True, exist_ok=True)
    pair = load_pair(Config(target=TargetSection(path=args.model, device=args.device)))
    target = pair.target.requires_grad_(False)
    ids, own = own_text(pair, openings(args, pair.tokenizer), args)
    torch.manual_seed(0)
    net = new_net(args.kind, target, args.options | ({"values": args.vocabulary} if args.vocabulary else {}))
    if args.vocabulary:
        counts = torch.bincount(ids[own], minlength=target.config.vocab_size)
        net.know(counts.topk(args.vocabulary).indices.sort().values)
    if hasattr(net, "start_from"):
        net.start_from(target)
    base = AIMS.get(args.kind, Aim(depth=getattr(net, "most", None) or 4))
    aim = Aim(depth=args.depth or base.depth, laws=args.loss or base.laws, states=base.states)
    data = record(target, ids, own, net.reads, args.work / f"states-{'-'.join(map(str, net.reads))}")
    held, device = max(args.rows, len(data) // 16), target.device
    lesson, log = Lesson(net, target, aim).to(device), args.work / f"{args.kind}.jsonl"

    def validate(module: torch.nn.Module, step: int) -> None:
        levels = module.acceptance(data.window(range(held), device))
        print(f"step {step}: held-out acceptance {acceptance_text(levels)}", flush=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "acceptance": levels}) + "\n")

    plan = Fit(steps=args.steps, lr=args.lr, checkpoint_every=args.checkpoint_every, mixed_precision=args.precision)
    path = args.work / f"{args.kind}.pt"
    fit(lesson, lambda m, turn: m(data.draw(turn, args.rows, held, device)), plan, path, title=args.kind, validate=validate)
    save_drafter(lesson.net, args.out or args.work / args.kind)


if __name__ == "__main__":
    main()
