"""Train a drafter for a vision-language model on its own answers: one that reads text, a small one that sees, or a net on its states.

    python text/train_vlm_drafter.py --kind text                                      # for mini vlm, on scenes drawn as it goes
    python text/train_vlm_drafter.py --kind vlm --text build/vlm-drafters/text        # its own projector, the target's frozen tower
    python text/train_vlm_drafter.py --kind vispec --options '{"queries": 5}'         # or hivis, eagle1, eagle3: docs/drafters.md
    python text/train_vlm_drafter.py --kind text --model ./big --pictures photos --prompts questions.txt
    torchrun --nproc-per-node 2 text/train_vlm_drafter.py ...                         # or accelerate launch --num_processes 2

The drafter learns the target's distributions on its own answers, greedy and sampled in turn. text: a small language model that sees a
newline where a picture was. vlm: one behind the target's vision tower. The pictures of the last batch are held out. Stages resume; delete
--work to start again. The last line printed is a command that drafts with the result.
"""

import argparse
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.drafters.checkpoints.load import check_drafter_folder, save_drafter
from mmspec.drafters.checkpoints.nets import begin_training, net_to_train
from mmspec.loading.picture_requests import folder_requests, scene_requests
from mmspec.loading.text import load_pair
from mmspec.loading.transformers import DTYPES, load_model
from mmspec.minis import HOME
from mmspec.minis import vlm_model as sights
from mmspec.minis.weights import save_llama
from mmspec.run.config import Config, TargetSection
from mmspec.text.inputs.pictures import pictures_in
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss
from mmspec.train.on_policy_data import Course, with_eyes_of
from mmspec.train.on_policy_text import Writing, write_own_answers
from mmspec.train.parallel import join_processes
from mmspec.train.record import record_answers
from mmspec.train.states.disk import STATE_DTYPES
from mmspec.train.states.memory import TrainingMemory, TrainingSize, small_model_memory, training_memory
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command

NETS = ("eagle1", "eagle3", "hivis", "vispec")  # those that read the target's states


def parsed() -> argparse.Namespace:
    parser = RecipeParser(__doc__)
    parser.add_argument("--kind", default="text", choices=["text", "vlm", *NETS])
    parser.add_argument("--model", default="mini", help="mini, or a vision-language model's folder or name")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the target; not for --kind vlm")
    parser.add_argument("--pictures", type=Path, help="a folder, for models other than the mini")
    parser.add_argument("--prompts", type=Path, help="asked of every picture: one a line, or JSON lines")
    parser.add_argument("--text", type=Path, help="a trained text drafter to begin from")
    parser.add_argument("--work", type=Path, default=Path("build/vlm-drafters"), help="answers, shared by all kinds, and checkpoints")
    parser.add_argument("--out", type=Path, help="default: WORK/KIND")
    parser.add_argument("--options", type=dict, default={}, help="of a net's class, as JSON")
    parser.add_argument("--opening", type=int, help="most positions of a prompt, pictures included; by default those of the longest")
    parser.add_argument("--size", type=int, nargs=2, default=[2, 96], help="text: layers, and a width in heads of 32")
    parser.add_argument("--chunks", type=int, least=2, default=65, help="batches of prompts to answer; the last is held out")
    parser.add_argument("--rows", type=int, default=32, help="prompts a batch")
    parser.add_argument("--new", type=int, default=sights.LONGEST, help="most tokens of an answer")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="taken in turn, batch by batch")
    parser.add_argument("--states", choices=STATE_DTYPES, default="bfloat16", help="nets: dtype of the target's states on disk")
    parser.add_argument("--force-memory", action="store_true", help="begin even if the memory or disk space may not suffice")
    parser.add_argument("--hard", action="store_true", help="text, vlm: learn the answers alone, not the target's distributions on them")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--projector-steps", type=int, default=200, help="vlm: of the projector alone, before the others")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--precision", choices=("no", "bf16", "fp16"), default="bf16")
    parser.add_argument("--bytes", action="store_true", help="write matrices as bytes with a scale a row, as the shipped drafters are")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, five steps")
    args = parser.parse_args()
    if args.smoke:
        args.chunks, args.rows, args.new, args.steps, args.projector_steps, args.size = 3, 2, 6, 5, 5, [1, 32]
    if args.model != "mini" and not (args.pictures and args.prompts):
        parser.error("--model needs --pictures FOLDER and --prompts FILE: only the mini has scenes of its own")
    if args.size[1] % 32:
        parser.error(f"--size has width {args.size[1]}: give a multiple of 32, the width of a head")
    if args.kind == "vlm" and args.dtype != "float32":
        parser.error(f"--dtype is {args.dtype}, but --kind vlm reads the target's pictures in float32: leave it out, or train another kind")
    return args


def untrained(args: argparse.Namespace, target, processor):
    length = args.opening + args.new
    if args.kind in NETS:
        return net_to_train(args.kind, target, args.options)
    if args.text:
        reader, _ = load_model(str(args.text), "float32", "cpu")
        places = getattr(reader.config, "max_position_embeddings", length)
        if places < length:
            raise ValueError(f"{args.text} has {places} positions, but prompts with answers have {length}: train another, or lower --new")
    else:
        layers, width = args.size
        options = sights.llama_options(processor.tokenizer, width, layers, width // 32, width * 8 // 3)
        size = target.config.get_text_config(decoder=True).vocab_size
        reader = LlamaForCausalLM(LlamaConfig(**options | {"vocab_size": size, "max_position_embeddings": max(4096, length)}))
    return (with_eyes_of(target, reader) if args.kind == "vlm" else reader).to(target.device)


def memory(args: argparse.Namespace, drafter, target, windows: int) -> TrainingMemory:
    length = args.opening + args.new
    if args.kind in NETS:
        size = TrainingSize(windows=windows, length=length, rows=args.rows, levels=5, states=args.states)
        return training_memory(drafter, target, size, args.work)
    return small_model_memory(drafter, target, rows=args.rows, length=length)


def checked_opening(args: argparse.Namespace, longest: int, target) -> int:
    """Positions that a prompt may have. ValueError where a prompt has more, or the target has no room for its answer."""
    if args.opening is not None and args.opening < longest:
        raise ValueError(f"--opening is {args.opening}, but a prompt has {longest} positions, pictures included: leave it out, or raise it")
    places = getattr(target.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if places is not None and longest + args.new > places:
        raise ValueError(f"a prompt has {longest} positions and --new is {args.new}, but the target has {places}: shorten one of them")
    return args.opening or longest


def save(args: argparse.Namespace, drafter, pair, out: Path) -> None:
    """Write the drafter as `mmspec caption --drafter` reads it, and say so."""
    if args.kind in NETS:
        save_drafter(drafter, out, torch.int8 if args.bytes else None)
    else:
        (save_llama if args.bytes else type(drafter).save_pretrained)(drafter, out)
        (pair.processor if args.kind == "vlm" else pair.tokenizer).save_pretrained(out)
    folder = HOME / "vlm" / "examples" if args.model == "mini" else args.pictures
    tell_command("mmspec", "caption", folder / pictures_in(folder)[0], "--model", args.model, "--drafter", out)


def run(args: argparse.Namespace) -> None:
    here, mini, out = join_processes(), args.model == "mini", args.out or args.work / args.kind
    if args.kind in NETS:
        check_drafter_folder(out)
    torch.manual_seed(0)
    pair = load_pair(Config(target=TargetSection(path="vlm" if mini else args.model, device=str(here.device), dtype=args.dtype)))
    target, processor, pad = pair.target.requires_grad_(False), pair.processor, pair.tokenizer.pad_token_id or 0
    count, last = args.chunks * args.rows, (args.chunks - 1) * args.rows
    parts = args.chunks, args.rows
    ask = scene_requests(pair, *parts) if mini else folder_requests(pair, args.pictures, args.prompts, *parts)
    args.opening = checked_opening(args, ask.longest(args.rows), target)
    drafter = untrained(args, target, processor)
    memory(args, drafter, target, last).announce(here, args.force_memory)
    writing = Writing(temperatures=args.temperature, opening=args.opening, new=args.new, chunk=args.rows)
    ids, sizes = write_own_answers(target, ask, count, writing, args.work)

    def validate(module: torch.nn.Module, step: int) -> None:
        used = deepcopy(drafter).to(target.dtype) if args.kind in NETS else drafter
        stats = mmspec.text.generate(target, ask(last, count), used, max_new_tokens=args.new, draft_length=5).stats
        print(f"step {step}: {stats.tokens_per_call:.2f} tokens per call at 5 draft tokens, greedily, on held-out prompts", flush=True)

    def train(steps: int, name: str, module: torch.nn.Module, loss) -> None:
        plan = Fit(steps=steps, lr=args.lr, checkpoint_every=250, mixed_precision=args.precision)
        fit(module, loss, plan, args.work / f"{name}.pt", title=name, validate=validate, held=ask.split)

    if args.kind in NETS:
        said = torch.cat([row[:size] for row, size in zip(ids[:last], sizes[:last], strict=True)])
        begin_training(drafter, target, said).to(target.device)
        states = args.work / f"states-{'-'.join(map(str, drafter.reads))}-of-{args.opening + args.new}"
        data = record_answers(target, ask, ids[:last], sizes[:last], drafter.reads, states, args.opening, args.rows, args.states)
        example = DistillationLoss(drafter, target, Aim(depth=5, states=1.0))
        draw = partial(data.draw, rows=args.rows, device=target.device, processes=here.num_processes)
        train(args.steps, args.kind, example, lambda m, turn: m(draw(turn).trimmed()))
        return save(args, drafter, pair, out) if here.is_main_process else None
    words = [mmspec.text.view(name, processor) for name in ("newline", "newline", "newline", "drop")]
    said = [[ids[i, : sizes[i]] for i in range(at, at + args.rows)] for at in range(0, len(ids), args.rows)]
    course = Course(target, pad, words, lambda turn: ask(turn * args.rows, (turn + 1) * args.rows), said, args.kind == "vlm", args.hard)
    if args.kind == "vlm":
        learning = [parameter for parameter in drafter.parameters() if parameter.requires_grad]
        drafter.requires_grad_(False).model.multi_modal_projector.requires_grad_(True)
        train(args.projector_steps, "projector", drafter, replace(course, words=()).loss)  # text would teach it nothing
        torch.nn.ParameterList(learning).requires_grad_(True)
    train(args.steps, args.kind, drafter, course.loss)
    if here.is_main_process:
        save(args, drafter, pair, out)


if __name__ == "__main__":
    run_recipe(lambda: run(parsed()))
