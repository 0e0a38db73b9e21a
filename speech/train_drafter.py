"""Train a drafter for mini speech on what its target says: a small language model, or heads that read the target (VADUSA's are medusa).

    python speech/train_drafter.py medusa        (10 minutes on one CPU core)
    python speech/train_drafter.py model         (10 minutes)
    torchrun --nproc-per-node 2 speech/train_drafter.py medusa
    python speech/train_drafter.py medusa --joint --out build/speech/joint    (the target learns to foretell, too: another target)

Three stages, each resumed where it was stopped (delete --work to start again): the target says numbers and sentences under the settings
it is drawn with, its hidden states there are recorded once, and the drafter learns the target's distributions on them.
"""

import json
import shutil
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.drafters.checkpoints.load import check_drafter_folder, save_drafter
from mmspec.drafters.checkpoints.nets import NETS, new_net
from mmspec.minis import HOME
from mmspec.minis import speech_data as spoken
from mmspec.minis.char_tokenizer import letter_tokenizer
from mmspec.minis.speech_model import speaker
from mmspec.minis.weights import save_llama
from mmspec.speech import synthesize
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss, Joint, acceptance_text
from mmspec.train.held_out import hold_out
from mmspec.train.parallel import join_processes
from mmspec.train.record import record
from mmspec.train.states.identity import keyed
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command


def own_words(target, count: int, width: int, kept: Path, seconds: float | None = None) -> tuple[Tensor, Tensor]:
    """Windows [N, W] of prompt and codes that the target wrote, and which are its own; made once, a file a chunk."""
    pieces, asked, rows = [], spoken.requests(count, 0), 64
    kept.mkdir(parents=True, exist_ok=True)
    for first in range(0, count, rows):
        path = keyed(kept / f"own-{first}.pt", target.model, asked[first : first + rows], width, seconds)
        if not path.exists():
            texts, voices = zip(*asked[first : first + rows], strict=True)
            out = synthesize(target, texts, voice=voices, seed=10_000 + first, max_seconds=seconds)
            ids, own = torch.zeros(len(texts), width, dtype=torch.long), torch.zeros(len(texts), width, dtype=torch.bool)
            prompts = target.encode(texts, voices)
            for row, size in enumerate(out.lengths.tolist()):
                prompt = prompts["input_ids"][row][prompts["attention_mask"][row].bool()]
                line = torch.cat([prompt, out.tokens[row, :size]])[:width]
                ids[row, : len(line)], own[row, len(prompt) : len(line)] = line, True
            torch.save((ids, own), path.with_suffix(".tmp"))
            path.with_suffix(".tmp").rename(path)
            print(f"said {first + len(texts)} of {count}", flush=True)
        pieces.append(torch.load(path))
    return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))  # pyright: ignore[reportReturnType]


def distributions_apart(drafter: nn.Module, target: nn.Module, ids: Tensor, own: Tensor) -> Tensor:
    """Mean KL(target, drafter) over the target's own values."""
    with torch.no_grad():
        goal = target(input_ids=ids).logits[:, :-1].log_softmax(-1)
    told = drafter(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
    apart = F.kl_div(told, goal, reduction="none", log_target=True).sum(-1)
    return (apart * own[:, 1:]).sum() / own[:, 1:].sum()


def small(target: nn.Module, layers: int, width: int) -> nn.Module:
    """An untrained model over the target's ids."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True}
    names = ("vocab_size", "max_position_embeddings", "eos_token_id", "pad_token_id", "bos_token_id")
    kept: dict = {name: getattr(target.config, name) for name in names}
    return LlamaForCausalLM(LlamaConfig(hidden_size=width, num_hidden_layers=layers, intermediate_size=2 * width, **heads, **kept))


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("kind", nargs="?", default="medusa", choices=["model", *sorted(NETS)])
    parser.add_argument("--mini", type=Path, default=HOME / "speech", help="the folder of the target")
    parser.add_argument("--work", type=Path, default=Path("build/speech"))
    parser.add_argument("--out", type=Path, help="default: WORK/KIND")
    parser.add_argument("--options", type=dict, default={}, help='of the drafter class, as JSON, such as {"heads": 6}')
    parser.add_argument("--count", type=int, default=2048, help="utterances the target says")
    parser.add_argument("--window", type=int, default=288, help="ids of an utterance, prompt included; what is longer is cut")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--joint", action="store_true", help="train the target as well (Medusa-2, VADUSA): its distribution changes")
    parser.add_argument("--smoke", action="store_true", help="a few short utterances, two steps")
    args, here, seconds = parser.parse_args(), join_processes("cpu"), None
    if args.smoke:
        args.count, args.window, args.steps, args.rows, seconds = 8, 64, 2, 2, 0.4
    if args.rows < here.num_processes:
        parser.error(f"--rows is {args.rows} for {here.num_processes} processes: give every process an utterance")
    torch.manual_seed(0)
    if not (args.mini / "target" / "config.json").is_file():
        raise ValueError(f"--mini is {args.mini}, no folder with target/, codec/ and a tokenizer: give what speech/train_target.py wrote")
    out = args.out or args.work / args.kind
    if args.kind != "model":
        check_drafter_folder(out)
    said = speaker(args.mini)
    target = said.model.requires_grad_(args.joint)
    with here.main_process_first():
        split = hold_out([text for text, _ in spoken.requests(args.count, 0)], max(args.rows, args.count // 16), "texts")
        ids, own = (part[split.order] for part in own_words(said, args.count, args.window, args.work / "own", seconds))
    held = len(split.held)

    def drawn(turn: int, size: int) -> Tensor:
        step, part = divmod(turn, here.num_processes)
        return torch.randint(held, size, (args.rows,), generator=torch.Generator().manual_seed(step))[part :: here.num_processes]

    plan = Fit(steps=args.steps, lr=args.lr, checkpoint_every=250, rates={"target.": 0.25} if args.joint else {})
    path = args.work / f"drafter-{args.kind}{'-joint' if args.joint else ''}.pt"
    if args.kind == "model":
        drafter = small(target, 1, 96)
        fit(
            drafter,
            lambda m, turn: distributions_apart(m, target, *(x[drawn(turn, len(ids))] for x in (ids, own))),
            plan,
            path,
            title="model",
        )
        if here.is_main_process:
            print(json.dumps({"nats apart, held out": distributions_apart(drafter, target, ids[:held], own[:held]).item()}))
            save_llama(drafter, out)
            tell_command("mmspec", "speech", "three five seven", "--model", args.mini, "--drafter", out)
        return
    net = new_net(args.kind, target, args.options)
    aim = Aim(depth=getattr(net, "most", None) or 4)
    if args.joint:
        joint = Joint(net, target, Aim(depth=aim.depth, distributions={"ce": 1.0}, summed=True), own_only=True)
        warm = args.steps // 10 * here.num_processes
        fit(joint, lambda m, turn: m(*(x[drawn(turn, len(ids))] for x in (ids, own)), frozen=turn < warm), plan, path, title="joint")
    states = args.work / f"states-{'-'.join(map(str, net.reads))}{'-joint' if args.joint else ''}"
    data = record(target, ids, own, net.reads, states)
    example = DistillationLoss(net, target, aim)
    if not args.joint:
        draw = partial(data.draw, rows=args.rows, first=held, processes=here.num_processes)
        fit(example, lambda m, turn: m(draw(turn)), plan, path, title=args.kind)
    if here.is_main_process:
        print(f"held-out acceptance {acceptance_text(example.acceptance(data.window(range(held))))}")
        save_drafter(net, out, torch.float16)
        if args.joint:  # beside the drafter, a folder of the target that it is for
            save_llama(target, out / "target")
            shutil.copytree(args.mini / "codec", out / "codec", dirs_exist_ok=True)
            letter_tokenizer().save_pretrained(out)
        tell_command("mmspec", "speech", "three five seven", "--model", out if args.joint else args.mini, "--drafter", out)


if __name__ == "__main__":
    run_recipe(main)
