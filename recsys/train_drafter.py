"""Train the drafter of a recommender, and count the target calls it saves: a small model that searches wide, or a recurrent head.

    python recsys/train_drafter.py                        (mini recsys, 10 minutes on one CPU core)
    python recsys/train_drafter.py --kind head            (a head on the target's last state, instead of a model of its own)
    python recsys/train_drafter.py --kind retriever       (counts; nothing is trained)
    python recsys/train_drafter.py --loss '{"atspeed-s": 0.7}' --past '{"ce": 0.3}'
    python recsys/train_drafter.py --data amazon-beauty --target build/recsys-amazon-beauty/mini
    torchrun --nproc-per-node 2 recsys/train_drafter.py

The target searches its best items for training users; the drafter learns the target's distributions along them (--loss) and inside the
histories before them (--past; {} for none). Printed are target calls a user on users held out, and how often each level's draft tokens
held all of the target's beams. A stopped run goes on; delete the work folder to start again.
"""

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from mmspec.drafters.checkpoints.load import save_drafter
from mmspec.drafters.heads.recurrent import RecurrentHead
from mmspec.minis import HOME
from mmspec.minis.card import loss_text
from mmspec.minis.items import write_counts, write_facts, write_model
from mmspec.minis.shop import examples
from mmspec.recsys import Catalogue
from mmspec.recsys.histories import Data, batches, beauty
from mmspec.train import Fit, fit
from mmspec.train.beams import BeamExample, HeadExample, beam_rows, best_items, draft_coverage
from mmspec.train.parallel import join_processes, own_share
from mmspec.train.recommender.split import last_items, of_other_users
from mmspec.train.states.identity import keyed
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command

SETTINGS = ((5, 20), (10, 40), (20, 80))  # k and width; the one in the middle is the goal's
SIZES = {"hidden_size": 144, "intermediate_size": 368, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def read(args: argparse.Namespace) -> Data:
    catalogue = Catalogue.read(args.target / "catalogue.parquet")
    if args.data == "shop":
        return examples(catalogue, 500) if args.smoke else examples(catalogue)
    return replace(beauty(Path(os.environ.get("MMSPEC_DATA", "../shared/data")) / args.data), catalogue=catalogue)


def searched(args: argparse.Namespace, target: nn.Module, data: Data) -> list[tuple[list, list]]:
    """Beginnings of histories, and the target's best items behind each; made once and kept, in the order of their lengths."""
    pick, begun = random.Random(0), time.perf_counter()
    histories = [list(items[: pick.randint(1, len(items))]) for items in data.users(0, args.users)]
    histories.sort(key=len)
    path = keyed(args.work / "searched.json", target, histories, args.k)
    if not path.exists():
        path.write_text(json.dumps([histories, best_items(target, data.catalogue, histories, args.k)]), encoding="utf-8")
        print(f"{args.users} users searched in {time.perf_counter() - begun:.0f} s", flush=True)
    return list(zip(*json.loads(path.read_text(encoding="utf-8")), strict=True))


def model_example(args: argparse.Namespace, target: nn.Module, data: Data) -> tuple[nn.Module, nn.Module, Callable]:
    """A small model of the target's kind, its lesson, and the loss of one batch: users next to each other in length."""
    tokens = {name: getattr(target.config, name) for name in ("vocab_size", "bos_token_id", "pad_token_id", "max_position_embeddings")}
    drafter = LlamaForCausalLM(LlamaConfig(**SIZES | args.sizes, **tokens, eos_token_id=None, tie_word_embeddings=True))
    example = BeamExample(drafter, target, data.catalogue.trie, args.loss, args.past)
    with join_processes().main_process_first():
        users = searched(args, target, data)

    def loss(module: nn.Module, turn: int) -> Tensor:
        start = random.Random(turn // join_processes().num_processes).randrange(len(users) - args.rows + 1)
        histories, best = zip(*own_share(users[start : start + args.rows]), strict=True)
        return module(beam_rows(data.catalogue, histories, best).to(target.device))

    return drafter, example, loss


def head_example(args: argparse.Namespace, target: nn.Module, data: Data) -> tuple[nn.Module, nn.Module, Callable]:
    """The recurrent head learns on every item of training histories."""
    head, batch = RecurrentHead.of(target, data.catalogue.paths), batches(data, args.rows)
    example = HeadExample(head, target, len(data.catalogue.before), data.catalogue.levels)
    return head, example, lambda module, turn: module({name: table.to(target.device) for name, table in batch(turn).items()})


def trained(args: argparse.Namespace, target: nn.Module, data: Data) -> tuple[nn.Module, str]:
    """The drafter as it ships, in half precision on disk, and how it learnt."""
    torch.manual_seed(0)
    drafter, example, loss = (model_example if args.kind == "model" else head_example)(args, target, data)
    held = [items[:-1] for items in data.held]

    def validate(module: nn.Module, step: int) -> None:
        found = draft_coverage(target, drafter.eval(), data.catalogue, held, *SETTINGS[1])
        print(f"step {step}: {found['calls']:.3f} calls a user, levels {found['levels']}", flush=True)

    plan = Fit(steps=args.steps, lr=args.lr, checkpoint_every=max(1, args.steps // 4), mixed_precision=args.precision)
    fit(example.to(target.device), loss, plan, args.work / f"{args.kind}.pt", title=args.kind, validate=validate, held=last_items(data))
    losses = f", on the {args.k} best items of {args.users} users; loss {loss_text(args.loss)}, inside histories {loss_text(args.past)}"
    data_and_loss = "; KL to the target over all items of their histories" if args.kind == "head" else losses
    return drafter.half().float().eval(), f"{args.steps} steps of {args.rows} users, peak rate {args.lr:g}{data_and_loss}"


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--kind", choices=("model", "head", "retriever"), default="model")
    parser.add_argument("--data", choices=("shop", "amazon-beauty"), default="shop")
    parser.add_argument("--target", type=Path, default=Path("mmspec/minis/recsys"), help="what recsys/train_target.py wrote")
    parser.add_argument("--work", type=Path, help="default build/recsys-drafter-DATA")
    parser.add_argument("--out", type=Path, help="default TARGET: drafter/ in it, or drafters/KIND")
    parser.add_argument("--sizes", type=dict, default={}, help='of the drafter model, as JSON, such as {"hidden_size": 96}')
    parser.add_argument("--loss", type=dict, default={"kl": 0.3}, help="of the distributions that a search asks for, as JSON")
    parser.add_argument("--past", type=dict, default={"kl": 1.0}, help="of the distributions inside histories")
    parser.add_argument("--users", type=int, default=12000, help="training users whose best items the target searches")
    parser.add_argument("--k", type=int, default=20, help="best items a user")
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--rows", type=int, default=32, help="users a step")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--held", type=int, default=500, help="users held out to count calls on")
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--smoke", action="store_true", help="two steps for the mini on a few users")
    args, here = parser.parse_args(), join_processes()
    args.work = args.work or Path(f"build/recsys-drafter-{args.data}")
    args.work.mkdir(parents=True, exist_ok=True)
    if args.smoke:
        args.target = HOME / "recsys"
        args.out, args.users, args.k, args.steps, args.rows, args.held = args.work / "mini", 8, 4, 2, 4, 8
    if not (args.target / "target" / "config.json").is_file():
        parser.error(f"--target is {args.target}, no folder with target/: give what recsys/train_target.py wrote")
    args.out, target = args.out or args.target, AutoModelForCausalLM.from_pretrained(args.target / "target", dtype=torch.float32)
    target = target.to(here.device).eval().requires_grad_(False)
    data = read(args)
    data = data if args.kind == "retriever" else of_other_users(data, min(200, args.held), args.held)
    begun = time.perf_counter()
    if args.kind != "retriever":
        drafter, learnt = trained(args, target, data)
    if not here.is_main_process:
        return
    if args.kind == "retriever":
        drafter, learnt = write_counts(args.out, data.catalogue, data.past, data.test), f"what followed what in {len(data.past)} histories"
    elif args.kind == "head":
        save_drafter(drafter, args.out / "drafters" / "head", torch.float16)
    else:
        write_model(args.out / "drafter", drafter)
    size = drafter.near.weight.numel() if args.kind == "retriever" else sum(weight.numel() for weight in drafter.parameters())
    minutes, test = round((time.perf_counter() - begun) / 60, 1), [items[:-1] for items in data.test[: args.held]]
    facts = {f"k {k}, width {width}": draft_coverage(target, drafter, data.catalogue, test, k, width) for k, width in SETTINGS}
    print("\n".join(f"{name}: {row['calls']:.3f} calls a user, levels {row['levels']}" for name, row in facts.items()))
    write_facts(args.out, args.kind, {"parameters": size, "learnt": learnt, "users": len(test), "minutes": minutes, "calls": facts})
    place = {"model": "drafter", "head": "drafters/head", "retriever": "drafters/retriever.safetensors"}[args.kind]
    shown = ",".join(map(str, data.test[0][:3]))
    tell_command("mmspec", "recommend", "--history", shown, "--model", args.target, "--drafter", args.out / place)


if __name__ == "__main__":
    run_recipe(main)
