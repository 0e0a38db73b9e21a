"""Train a drafter for a vision-language model on the model's own answers: one that reads text only, or a small one that sees.

    python text/train_vlm_drafter.py --kind text                                      # for mini vlm, on scenes drawn as it goes
    python text/train_vlm_drafter.py --kind vlm --text build/vlm-drafters/text        # its own projector, the target's frozen tower
    python text/train_vlm_drafter.py --kind text --model ./big --pictures photos --prompts questions.txt
    accelerate launch text/train_vlm_drafter.py ...                                   # several GPUs, unchanged

The target answers every prompt first, greedily and sampled in turn; the drafter learns its laws on those answers (--hard: the answers
alone). text: a small language model that sees a newline where a picture was, and now and then nothing at all. vlm: a small language
model behind the target's vision tower; its projector learns alone first. Stages resume where they stopped: delete --work to start again.
"""

import argparse
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from accelerate import PartialState
from PIL import Image
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, LlamaConfig, LlamaForCausalLM

import mmspec
from mmspec.jobs.files import read_prompts
from mmspec.minis import llama, save_llama, scenes, sights
from mmspec.text.own_text import Writing, write_own_answers
from mmspec.train import Fit, fit
from mmspec.train.answers import Course, with_eyes_of

SEEN = 2 * 10**9  # the scenes' first seed: neither trained on by the target nor held out from it
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="text", choices=["text", "vlm"])
    parser.add_argument("--model", default="mini", help="mini, or a vision-language model's folder or name")
    parser.add_argument("--pictures", type=Path, help="a folder, for models other than the mini")
    parser.add_argument("--prompts", type=Path, help="asked of every picture: one a line, or JSON lines")
    parser.add_argument("--text", type=Path, help="a trained text drafter to begin from")
    parser.add_argument("--work", type=Path, default=Path("build/vlm-drafters"), help="answers, shared by all kinds, and checkpoints")
    parser.add_argument("--out", type=Path, help="default: WORK/KIND")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=96, help="in heads of 32")
    parser.add_argument("--chunks", type=int, default=65, help="batches of prompts to answer; the last is held out")
    parser.add_argument("--rows", type=int, default=32, help="prompts a batch")
    parser.add_argument("--new", type=int, default=sights.LONGEST, help="most tokens of an answer")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="taken in turn, batch by batch")
    parser.add_argument("--hard", action="store_true", help="learn the answers alone, not the target's laws on them")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--projector-steps", type=int, default=200, help="vlm: of the projector alone, before the others")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--precision", default="bf16", help="no, bf16 or fp16")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, five steps")
    args = parser.parse_args()
    if args.smoke:
        args.chunks, args.rows, args.new, args.steps, args.projector_steps, args.width = 3, 2, 6, 5, 5, 32
    if args.model != "mini" and not (args.pictures and args.prompts):
        parser.error("--model needs --pictures FOLDER and --prompts FILE: only the mini has scenes of its own")
    return args


def loaded(args: argparse.Namespace):
    """The target, frozen, and its processor."""
    if args.model != "mini":
        target, processor = AutoModelForImageTextToText.from_pretrained(args.model), AutoProcessor.from_pretrained(args.model)
        processor.tokenizer.padding_side = "left"
    else:
        mini = mmspec.load("vlm")
        target, processor = mini.target, mini.processor
    return target.eval().requires_grad_(False).to(PartialState().device), processor


def requests(args: argparse.Namespace, processor) -> list[tuple[list, list[str]]]:
    """Batches of pictures (paths, or scenes to draw) and prompts."""
    if args.model == "mini":
        batches = [sights.batch(SEEN + turn, args.rows)[: args.rows] for turn in range(args.chunks)]
        return [([scene for each in batch for scene in each.pictures], [each.prompt for each in batch]) for batch in batches]
    paths = sorted(path for path in args.pictures.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise SystemExit(f"no pictures in {args.pictures}: put files ending in {', '.join(SUFFIXES)} there")
    asked = [(path, record["prompt"]) for record in read_prompts(args.prompts) for path in paths]
    random.Random(0).shuffle(asked)
    chosen = [asked[i % len(asked)] for i in range(args.chunks * args.rows)]
    content = [[{"type": "image"}, {"type": "text", "text": text}] for _, text in chosen]
    said = [processor.apply_chat_template([{"role": "user", "content": c}], add_generation_prompt=True, tokenize=False) for c in content]
    cuts = [slice(at, at + args.rows) for at in range(0, len(chosen), args.rows)]
    return [([path for path, _ in chosen[cut]], said[cut]) for cut in cuts]


def read(processor, pictures: list, prompts: list[str]):
    shown = [Image.open(each).convert("RGB") if isinstance(each, Path) else scenes.draw(each) for each in pictures]
    return processor(images=shown, text=prompts, padding=True, return_tensors="pt").to(PartialState().device)


def answered(args: argparse.Namespace, target, processor, asked: list) -> list[list[torch.Tensor]]:
    """What the target says to every batch; each is written once."""
    plan = Writing(temperatures=args.temperature, new=args.new, chunk=args.rows)
    ids, sizes = write_own_answers(target, lambda at, _: read(processor, *asked[at // args.rows]), len(asked) * args.rows, plan, args.work)
    said = [row[:size] for row, size in zip(ids, sizes.tolist(), strict=True)]
    return [said[at : at + args.rows] for at in range(0, len(said), args.rows)]


def untrained(args: argparse.Namespace, target, processor):
    if args.text:
        reader = llama(args.text) if args.model == "mini" else AutoModelForCausalLM.from_pretrained(args.text)
    else:
        options = sights.llama_options(processor.tokenizer, args.width, args.layers, args.width // 32, args.width * 8 // 3)
        size = target.config.get_text_config(decoder=True).vocab_size
        reader = LlamaForCausalLM(LlamaConfig(**options | {"vocab_size": size, "max_position_embeddings": 4096}))
    return (with_eyes_of(target, reader) if args.kind == "vlm" else reader).to(target.device)


def main() -> None:
    args, here = parsed(), PartialState()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    target, processor = loaded(args)
    asked = requests(args, processor)
    with here.main_process_first():
        said = answered(args, target, processor, asked)
    drafter = untrained(args, target, processor)
    words = [mmspec.text.view(name, processor) for name in ("newline", "newline", "newline", "drop")]
    course = Course(target, processor.tokenizer.pad_token_id or 0, words, lambda batch: read(processor, *asked[batch]), said)
    course.sees, course.hard, held = args.kind == "vlm", args.hard, read(processor, *asked[-1])

    def validate(module: torch.nn.Module, step: int) -> None:
        stats = mmspec.text.generate(target, held, module, max_new_tokens=args.new, draft_length=5).stats
        print(f"step {step}: {stats.tokens_per_call:.2f} tokens per call at 5 guesses, greedily, on held-out prompts", flush=True)

    def train(steps: int, name: str, course: Course) -> None:
        plan = Fit(steps=steps, lr=args.lr, checkpoint_every=250, mixed_precision=args.precision)
        fit(drafter, course.loss, plan, args.work / f"{name}.pt", title=name, validate=validate)

    if args.kind == "vlm":
        learning = [parameter for parameter in drafter.parameters() if parameter.requires_grad]
        drafter.requires_grad_(False).model.multi_modal_projector.requires_grad_(True)
        train(args.projector_steps, "projector", replace(course, words=()))  # text would teach it nothing
        for parameter in learning:
            parameter.requires_grad_(True)
    train(args.steps, args.kind, course)
    if here.is_main_process:
        compact = {"text": save_llama, "vlm": partial(sights.save_llava, without_tower=True)}[args.kind]
        (compact if args.model == "mini" else type(drafter).save_pretrained)(drafter, args.out or args.work / args.kind)


if __name__ == "__main__":
    main()
