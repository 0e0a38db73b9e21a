"""Train VADUSA's heads on recorded speech: together with mini speech's target, and the controls that tell what that changes.

    python speech/train_joint.py joint                                      (target and heads: Medusa-2, VADUSA)
    python speech/train_joint.py frozen                                     (heads on the target as it ships)
    python speech/train_joint.py target                                     (the target alone, on the same batches)
    python speech/train_joint.py frozen --target build/joint/target/target --out build/joint/target    (heads on the target so trained)
    python speech/compare_joint.py build/joint                              (codes a call and digit errors of all of them)

Every way sees the same batches in the same order and has the same schedule of rates. Losses are cross-entropies of recorded codes: of the
next code for the target, of the codes after it for the heads. Data as for `speech/train_target.py`: MMSPEC_DATA/fsdd and the program
espeak-ng. A stopped run goes on; delete the work folder to start again.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.drafters.checkpoints.load import save_drafter
from mmspec.drafters.heads.medusa import Medusa
from mmspec.minis import HOME
from mmspec.minis.char_tokenizer import letter_tokenizer
from mmspec.minis.speech_lines import held_out_nats, nats, noise_lines, read_lines
from mmspec.minis.weights import llama, save_llama
from mmspec.speech.codecs.small import PatchCodec
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, Joint
from mmspec.train.held_out import apart
from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command


def parsed() -> argparse.Namespace:
    parser = RecipeParser(__doc__)
    parser.add_argument("way", nargs="?", default="joint", choices=["joint", "frozen", "target"])
    parser.add_argument("--target", type=Path, default=HOME / "speech" / "target", help="the folder to begin from")
    parser.add_argument("--work", type=Path, default=Path("build/speech"), help="recorded speech")
    parser.add_argument("--out", type=Path, help="default: build/joint/WAY; target/ and heads/ are written in it")
    parser.add_argument("--count", type=int, default=9000, help="spoken numbers to learn from, and as many sentences")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--weight", type=float, default=0.2, help="of the heads' loss beside the target's")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3, help="of the heads; the target has a quarter of it")
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--smoke", action="store_true", help="two steps on noise")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    refuse_several_processes()
    torch.manual_seed(0)
    out = args.out or Path("build/joint") / args.way
    out.mkdir(parents=True, exist_ok=True)
    if args.smoke:
        args.rows, args.steps, examples, held = 2, 2, noise_lines(), noise_lines("three")
    else:
        args.work.mkdir(parents=True, exist_ok=True)
        codec = PatchCodec.load(HOME / "speech" / "codec")
        examples, held = (read_lines(args.work, codec, *each) for each in ((args.count, "train"), (200, "test")))
    split = apart(examples.keys(), held.keys(), "lines")
    held = held.part(split.held)
    target = llama(args.target).requires_grad_(args.way != "frozen")
    net = Medusa(target.config.hidden_size, args.heads)
    aim = Aim(depth=args.heads, distributions={"ce": 1.0}, summed=True)
    model = target if args.way == "target" else Joint(net, target, aim, args.weight, own_only=True)
    warm = args.steps if args.way == "frozen" else args.steps // 10

    def loss(model: nn.Module, turn: int) -> Tensor:
        batch = examples.drawn(turn, args.rows)
        if args.way == "target":
            return nats(model, *batch)
        target.train(turn >= warm)  # no dropout in what frozen targets say
        return model(*batch, frozen=turn < warm)

    def told(model: nn.Module, step: int) -> None:
        print(step, json.dumps(held_out_nats(target, held)), flush=True)

    told(target.eval(), 0)
    rates = {"": 0.25} if args.way == "target" else {"target.": 0.25}
    plan = Fit(steps=args.steps, lr=args.lr, checkpoint_every=max(1, args.steps // 4), mixed_precision=args.precision, rates=rates)
    fit(model, loss, plan, out / f"{args.way}.pt", title=args.way, validate=told, held=split)
    if args.way != "frozen":
        save_llama(target, out / "target")
        shutil.copytree(HOME / "speech" / "codec", out / "codec", dirs_exist_ok=True)
        letter_tokenizer().save_pretrained(out)
    if args.way != "target":
        save_drafter(net, out / "heads", torch.float16)
    drafter = [] if args.way == "target" else ["--drafter", out / "heads"]
    tell_command("mmspec", "speech", "three five seven", "--model", args.target.parent if args.way == "frozen" else out, *drafter)


if __name__ == "__main__":
    run_recipe(main)
