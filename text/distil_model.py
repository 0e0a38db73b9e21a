"""Distil a small drafter model from a language model: a transformers folder with the target's tokenizer, which any engine can draft with.

    python text/distil_model.py --model ./big --prompts prompts.txt --out ./small        (an eighth of its layers, which begin as they are)
    python text/distil_model.py --model ./big --prompts prompts.txt --size config.json   (any causal architecture with its vocabulary size)
    python text/distil_model.py --text speculative --loss jsd                            (for the shipped mini)
    python text/distil_model.py --model ./big --prompts prompts.txt --start ./small --parallel 8    (drafts 8 tokens in one forward: PARD)
    torchrun --nproc-per-node 2 text/distil_model.py ...     (or accelerate launch --num_processes 2: one job, the same weights)

The target writes text after the prompts under the sampling settings it will be used with, and the small model learns its distributions on
that text, or partly on text of its own (on-policy, DistillSpec), or on its own text in which the target replaces every token outside its
--rank likeliest (speculative, SKD). Every checkpoint prints held-out acceptance. Runs resume where they stopped. Codec language models in
one stream of ids are causal models like others; of a vision-language model the language model is distilled. Above 65,536 values, embeddings
and head are the target's own and are not trained (--head); a narrow config.json makes them small (docs/drafters.md).
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch

from mmspec.loading.text import load_pair
from mmspec.minis.corpus import training_documents
from mmspec.run.config import Config, DrafterSection, TargetSection
from mmspec.train import Fit, fit
from mmspec.train.on_policy_text import Writing, held_windows, write_own_text
from mmspec.train.parallel import join_processes
from mmspec.train.small_model.architecture import share_embeddings, small_model, start_embeddings
from mmspec.train.small_model.folder import check_replaceable, claim_work, note_acceptance, noted_acceptance, save_small_model
from mmspec.train.small_model.loss import SmallModelLoss
from mmspec.train.small_model.masks import mask_columns
from mmspec.train.small_model.text import TEXTS, TextSource, TrainingText, counted_ids, estimated_memory, opening_ids
from mmspec.utils.files import read_prompts
from mmspec.utils.recipe_files import recipe_command
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command

PLACES = ("work", "out", "device", "smoke", "checkpoint_every", "force_memory")  # what the weights do not depend on


def parsed() -> argparse.Namespace:
    parser = RecipeParser(__doc__)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--prompts", type=Path, help="one prompt a line, or JSON lines; of the mini, openings of its training documents")
    parser.add_argument("--size", default="small", help="small, or a config.json")
    parser.add_argument("--layers", type=int, help="of --size small; an eighth of the target's by default")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--from-target", dest="fresh", action="store_false", default=False, help="begin with the target's weights (default)")
    start.add_argument("--fresh", action="store_true", help="begin with random weights, but for a shared head")
    start.add_argument("--start", type=Path, help="begin with a small model that was trained already: its folder")
    parser.add_argument("--parallel", type=int, help="learn to draft this many tokens in one forward, by mask tokens")
    parser.add_argument("--kept", type=float, most=1, help="parallel: share of the masks of a depth that have one behind them; default 0.7")
    parser.add_argument("--mask-token", type=int, help="parallel: its id; by default the largest that the target does not write")
    parser.add_argument("--head", choices=("shared", "own"), help="embeddings and head: the target's as they are, or trained")
    parser.add_argument("--text", choices=TEXTS, default="off-policy", help="whose text is learnt from")
    parser.add_argument("--share", type=float, most=1, help="part of the steps with the small model's text; 0.5 by default")
    parser.add_argument("--rank", type=int, help="speculative: rank a token may have among the target's likeliest; 25 by default")
    parser.add_argument("--loss", type=losses, default={"kl": 1.0}, help='kl, reverse-kl, jsd, tv, or a mixture such as {"kl": 1, "tv": 1}')
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="of the target's text, in turn")
    parser.add_argument("--top-p", type=float, most=1)
    parser.add_argument("--windows", type=int, default=1280)
    parser.add_argument("--opening", type=int, default=48, help="most prompt tokens of a window")
    parser.add_argument("--new", type=int, default=208, help="most tokens written after them")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=16, help="windows a step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    parser.add_argument("--precision", choices=("no", "bf16", "fp16"), default="no")
    parser.add_argument("--force-memory", action="store_true", help="begin even if the memory may not suffice")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, default=Path("build/distil"), help="text and checkpoints")
    parser.add_argument("--out", type=Path, help="default: WORK/model")
    parser.add_argument("--smoke", action="store_true", help="a few windows, two steps")
    args = parser.parse_args()
    if args.smoke:
        args.windows, args.opening, args.new, args.steps, args.rows, args.checkpoint_every = 12, 8, 12, 2, 2, 1
    for name, given, reader in (("--share", args.share, TEXTS[1:]), ("--rank", args.rank, TEXTS[2:])):
        if given is not None and args.text not in reader:
            parser.error(f"{name} is not read with --text {args.text}: give --text {' or '.join(reader)}")
    return args


def losses(given: str) -> dict[str, float]:
    return {given: 1.0} if given[:1] != "{" else json.loads(given)


def openings(args: argparse.Namespace, tokenizer: Any) -> list[list[int]]:
    """The ids that the target goes on from, `--windows` of them."""
    if args.prompts is not None:
        texts = [record["prompt"] for record in read_prompts(args.prompts)]
    elif args.smoke:
        texts = [f"Question: what is {i} and {i}?\nAnswer:" for i in range(12)]
    elif args.model == "mini":
        texts = [text for text in training_documents(Path(os.environ.get("MMSPEC_DATA", "../shared/data"))) if len(text) > 200]
    else:
        raise ValueError("--prompts is missing: give a file with one prompt a line, or JSON lines")
    return opening_ids(tokenizer, texts, args.windows)


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items() if key not in PLACES}


def run(args: argparse.Namespace) -> None:
    here, out = join_processes(args.device), (args.out or args.work / "model").expanduser()
    given = {key: value for key, value in (("share", args.share), ("k", args.rank)) if value is not None}
    source, settings, log = TextSource(kind=args.text, new=args.new, **given), settings_of(args), args.work / "acceptance.jsonl"
    check_replaceable(out)
    if args.rows < here.num_processes:
        raise ValueError(f"--rows is {args.rows} for {here.num_processes} processes: give every process a window")
    place = TargetSection(path=args.model, device=str(here.device) if args.device == "auto" else args.device)
    pair = load_pair(Config(target=place, drafter=DrafterSection(kind="none")))
    target = pair.target.requires_grad_(False)
    torch.manual_seed(0)
    model = small_model(target, args.size, layers=args.layers, fresh=args.fresh, start=args.start).to(target.device)
    shared = share_embeddings(model, target, None if args.head is None and args.start is None else args.head == "shared")
    example = SmallModelLoss(model, target, args.loss, masks=mask_columns(args.parallel, args.mask_token, args.kept))
    estimate = estimated_memory(example, target, args.windows, -(-args.rows // here.num_processes), args.opening + args.new)
    estimate.announce(here, args.force_memory)
    claim_work(args.work, settings)
    plan = Writing(temperatures=args.temperature, top_p=args.top_p, opening=args.opening, new=args.new)
    split = held_windows(prompts := openings(args, pair.tokenizer), plan, max(args.rows, args.windows // 16))
    ids, own = (each[split.order] for each in write_own_text(target, pair.tokenizer, prompts, plan, args.work))
    first = len(split.held)
    example.choose_mask(ids, pair.tokenizer.all_special_ids)
    if not args.fresh and not shared and args.start is None:
        start_embeddings(model, target, counted_ids(ids[first:], own[first:], model.config.vocab_size))
    text = TrainingText(target, ids, own, first, source)

    def loss(module: torch.nn.Module, turn: int) -> torch.Tensor:
        torch.manual_seed(turn)  # of dropout
        return module(text.draw(model, turn, args.rows, here.num_processes))

    def validate(module: torch.nn.Module, step: int) -> None:
        print(note_acceptance(log, step, text.acceptance(module)), flush=True)

    fitting = Fit(steps=args.steps, lr=args.lr, checkpoint_every=args.checkpoint_every, mixed_precision=args.precision)
    fit(example, loss, fitting, args.work / "model.pt", title="distil", validate=validate, held=split)
    if here.is_main_process:
        command = recipe_command("text/distil_model.py", vars(args), leave_out=("work", "out"), processes=here.num_processes)
        save_small_model(model, pair.tokenizer, out, settings | {"command": command}, noted_acceptance(log), example.mask_id)
        print(f"{out}: {sum(weight.numel() for weight in model.parameters()) / 1e6:.1f} M parameters")
        tell_command("mmspec", "text", "Once upon a time", "--model", args.model, "--drafter", out)


if __name__ == "__main__":
    run_recipe(lambda: run(parsed()))
