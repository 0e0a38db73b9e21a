"""Train a drafter for a vision-language model on its own answers: one that reads text, a small one that sees, or a net on its states.

    python text/train_vlm_drafter.py --kind text                                      # for mini vlm, on scenes drawn as it goes
    python text/train_vlm_drafter.py --kind vlm --text build/vlm-drafters/text        # its own projector, the target's frozen tower
    python text/train_vlm_drafter.py --kind vispec --options '{"queries": 5}'         # or hivis, eagle1, eagle3: docs/drafters.md
    python text/train_vlm_drafter.py --kind text --model ./big --pictures photos --prompts questions.txt
    torchrun --nproc-per-node 2 text/train_vlm_drafter.py ...                         # or accelerate launch --num_processes 2

The drafter learns the target's distributions on its own answers, greedy and sampled in turn. text: a small language model that sees a
newline where a picture was. vlm: one behind the target's vision tower. Stages resume; delete --work to start again.
"""

import argparse
import json
import sys
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.drafters.checkpoints.load import save_drafter
from mmspec.drafters.checkpoints.nets import begin_training, net_to_train
from mmspec.loading.picture_requests import folder_requests, scene_requests
from mmspec.loading.text import load_pair
from mmspec.loading.transformers import DTYPES
from mmspec.minis import vlm_model as sights
from mmspec.minis.weights import llama, save_llama
from mmspec.run.config import Config, TargetSection
from mmspec.train import Fit, fit
from mmspec.train.distillation import Aim, DistillationLoss
from mmspec.train.on_policy_data import Course, with_eyes_of
from mmspec.train.on_policy_text import Writing, write_own_answers
from mmspec.train.parallel import join_processes
from mmspec.train.record import record_answers
from mmspec.train.states.disk import STATE_DTYPES
from mmspec.train.states.memory import TrainingMemory, TrainingSize, small_model_memory, training_memory
from mmspec.utils.places import RecipeParser

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
    parser.add_argument("--options", type=json.loads, default={}, help="of a net's class, as JSON")
    parser.add_argument("--opening", type=int, default=64, help="most positions of a prompt, pictures included")
    parser.add_argument("--size", type=int, nargs=2, default=[2, 96], help="text: layers, and a width in heads of 32")
    parser.add_argument("--chunks", type=int, default=65, help="batches of prompts to answer; the last is held out")
    parser.add_argument("--rows", type=int, default=32, help="prompts a batch")
    parser.add_argument("--new", type=int, default=sights.LONGEST, help="most tokens of an answer")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="taken in turn, batch by batch")
    parser.add_argument("--states", choices=STATE_DTYPES, default="bfloat16", help="nets: dtype of the target's states on disk")
    parser.add_argument("--force-memory", action="store_true", help="begin even if the memory or disk space may not suffice")
    parser.add_argument("--hard", action="store_true", help="text, vlm: learn the answers alone, not the target's distributions on them")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--projector-steps", type=int, default=200, help="vlm: of the projector alone, before the others")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--precision", default="bf16", help="no, bf16 or fp16")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, five steps")
    args = parser.parse_args()
    if args.smoke:
        args.chunks, args.rows, args.new, args.steps, args.projector_steps, args.size = 3, 2, 6, 5, 5, [1, 32]
    if args.model != "mini" and not (args.pictures and args.prompts):
        parser.error("--model needs --pictures FOLDER and --prompts FILE: only the mini has scenes of its own")
    if args.kind == "vlm" and args.dtype != "float32":
        parser.error(f"--dtype is {args.dtype}, but --kind vlm reads the target's pictures in float32: leave it out, or train another kind")
    return args


def untrained(args: argparse.Namespace, target, processor):
    if args.kind in NETS:
        return net_to_train(args.kind, target, args.options)
    if args.text:
        reader = llama(args.text) if args.model == "mini" else AutoModelForCausalLM.from_pretrained(args.text)
    else:
        layers, width = args.size
        options = sights.llama_options(processor.tokenizer, width, layers, width // 32, width * 8 // 3)
        size = target.config.get_text_config(decoder=True).vocab_size
        reader = LlamaForCausalLM(LlamaConfig(**options | {"vocab_size": size, "max_position_embeddings": 4096}))
    return (with_eyes_of(target, reader) if args.kind == "vlm" else reader).to(target.device)


def memory(args: argparse.Namespace, drafter, target, windows: int) -> TrainingMemory:
    length = args.opening + args.new
    if args.kind in NETS:
        size = TrainingSize(windows=windows, length=length, rows=args.rows, levels=5, states=args.states)
        return training_memory(drafter, target, size, args.work)
    return small_model_memory(drafter, target, rows=args.rows, length=length)


def run(args: argparse.Namespace) -> None:
    here, mini, out = join_processes(), args.model == "mini", args.out or args.work / args.kind
    torch.manual_seed(0)
    pair = load_pair(Config(target=TargetSection(path="vlm" if mini else args.model, device=str(here.device), dtype=args.dtype)))
    target, processor, pad = pair.target.requires_grad_(False), pair.processor, pair.tokenizer.pad_token_id or 0
    count, last = args.chunks * args.rows, (args.chunks - 1) * args.rows
    ask = scene_requests(pair, args.chunks, args.rows) if mini else folder_requests(pair, args.pictures, args.prompts, count)
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
        fit(module, loss, plan, args.work / f"{name}.pt", title=name, validate=validate)

    if args.kind in NETS:
        begin_training(drafter, target, torch.cat([row[:size] for row, size in zip(ids, sizes, strict=True)])).to(target.device)
        states = args.work / f"states-{'-'.join(map(str, drafter.reads))}"
        data = record_answers(target, ask, ids[:last], sizes[:last], drafter.reads, states, args.opening, args.rows, args.states)
        example = DistillationLoss(drafter, target, Aim(depth=5, states=1.0))
        draw = partial(data.draw, rows=args.rows, device=target.device, processes=here.num_processes)
        train(args.steps, args.kind, example, lambda m, turn: m(draw(turn).trimmed()))
        return save_drafter(drafter, out, torch.int8 if mini else None) if here.is_main_process else None
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
        compact = {"text": save_llama, "vlm": partial(sights.save_llava, without_tower=True)}[args.kind]
        (compact if mini else type(drafter).save_pretrained)(drafter, out)


if __name__ == "__main__":
    arguments = parsed()
    try:
        run(arguments)
    except (OSError, ValueError, FloatingPointError) as error:
        print(f"train_vlm_drafter: {error}", file=sys.stderr)
        raise SystemExit(1 if isinstance(error, FloatingPointError) else 2) from None
