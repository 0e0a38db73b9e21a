"""Why a drafter for a model that sees is accepted, or is not: by place, by kind of word, with the wrong picture, in seconds.

    python text/diagnose_vlm.py                                             # mini vlm's drafters on held-out scenes
    python text/diagnose_vlm.py --model ./big --drafter ./small --view own --pictures ./photos --prompt "Describe the picture."
    python text/diagnose_vlm.py --model ./big --drafter ./small --pictures ./photos --words words.json    # {"red": "colour", ...}

Drafts are chains of a fixed length, the rule is greedy, so counts are the same on every machine (float32). "judged" draft tokens are
those looked at: the accepted ones and the first refused of a round. "seen" tokens are those whose chance the picture at least doubles.
The wrong picture is the next request's: a drafter that sees must then need more calls, request by request (exact sign test).
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import mmspec
from mmspec.bench.diagnosis import diagnose, own_drafter
from mmspec.core.stats import PHASES
from mmspec.minis import vlm_model as sights
from mmspec.minis.drawn import scenes
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser

HELD = 2 * 10**9 + 10**8  # scenes that no training and no table has seen


@dataclass(frozen=True)
class Subject:
    """A target, what drafts for it (model and view, by name), and requests in batches of pictures of one size."""

    target: Any
    drafters: dict[str, tuple[Any, Any]]
    processor: Any
    batches: list[dict[str, Any]]
    words: Any  # kinds of words: a list, or a function from an output's words to theirs


def scenes_for(processor: Any, args: argparse.Namespace) -> list[dict[str, Any]]:
    asked = sights.asked(HELD, args.requests, "describe")
    firsts = range(0, len(asked), args.batch_size)
    return [dict(sights.inputs_of(processor, asked[first : first + args.batch_size])) for first in firsts]


def untrained(args: argparse.Namespace) -> Subject:
    torch.manual_seed(0)
    processor = sights.new_processor()
    target, small = (sights.new_llava(processor, width=32, layers=layers, heads=2, feed=64, vision_width=16).eval() for layers in (2, 1))
    drafters = {"untrained, own": (small, "own"), "untrained, drop": (small, "drop")}
    return Subject(target, drafters, processor, scenes_for(processor, args), scenes.word_kinds)


def mini(args: argparse.Namespace) -> Subject:
    vlm = mmspec.load("vlm")
    newline, (text, small) = mmspec.text.view("newline", vlm.processor), (vlm.drafters[name] for name in ("text", "vlm"))
    drafters = {"text, newline": (text, newline), "vlm, own": (small, "own"), "vlm, newline": (small, newline)}
    return Subject(vlm.target, drafters, vlm.processor, scenes_for(vlm.processor, args), scenes.word_kinds)


def given(args: argparse.Namespace) -> Subject:
    """Models by path, and the pictures of a folder brought to one size, so that they can change places."""
    from mmspec.jobs.captions import load_seeing, view_named
    from mmspec.run.config import Config, DrafterSection, TargetSection
    from mmspec.text.inputs.pictures import pictures_in, read_picture
    from mmspec.text.inputs.vision_inputs import VisionPrompt, process_vision_inputs

    if args.drafter is None or args.pictures is None:
        raise ValueError("--model needs --drafter and --pictures")
    target = TargetSection(path=args.model, dtype=args.dtype, device=args.device)
    pair = load_seeing(Config(target=target, drafter=DrafterSection(kind="model", path=args.drafter)))
    files = [Path(args.pictures) / name for name in pictures_in(args.pictures)[: args.requests]]
    asked = [VisionPrompt(args.prompt, (read_picture(file).resize((args.side, args.side)),)) for file in files]
    parts = [asked[first : first + args.batch_size] for first in range(0, len(asked), args.batch_size)]
    batches = [process_vision_inputs(pair.processor, part, pair.name, chat=bool(pair.chat)) for part in parts if len(part) > 1]
    batches = [{key: value.to(pair.target.device) for key, value in batch.items() if hasattr(value, "to")} for batch in batches]
    if not batches:
        raise ValueError(f"{args.pictures} has {len(files)} pictures: two or more are needed, or they cannot change places")
    view = None if args.view is None else view_named(args.view, pair.processor)
    words = json.loads(Path(args.words).read_text(encoding="utf-8")) if args.words else {}
    return Subject(pair.target, {args.drafter: (pair.model, view)}, pair.processor, batches, words)


def told(found: dict[str, Any]) -> str:
    wrong, even, seconds = found["wrong_picture"], found["break_even"], found["seconds"]
    split = ", ".join(f"{phase} {seconds[phase] / seconds['total']:.0%}" for phase in PHASES if phase != "total")
    lines = [
        f"tokens per call {found['tokens_per_call']:.2f} (bonus counted), accepted per call {found['accepted_per_call']:.2f}",
        f"accepted by position: {' '.join(f'{share:.0%}' for share in found['acceptance_by_position'])}",
        f"calls: target {found['target_calls']}, drafter {found['drafter_calls']}, drafter's tower {found['drafter_tower_runs']}",
        f"wrong picture: {wrong['wrong_tokens_per_call']:.2f} tokens per call; {wrong['more']} requests dearer, {wrong['fewer']} cheaper, "
        f"{wrong['same']} alike, {wrong['changed']} drafted otherwise, p = {wrong['p_value']:.2g}: {wrong['verdict']}",
        f"seconds: {split} of {seconds['total']:.2f} s",
    ]
    if even["needed"] is not None:
        earned = "" if even["earned_after"] is None else f", its start is earned back after {even['earned_after']:.0f} tokens a row"
        lines.append(f"break-even: {even['needed']:.2f} tokens per call; it {'pays' if even['pays'] else 'does not pay'}{earned}")
    return "\n".join(lines)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--model", help="a model that sees; the mini by default")
    parser.add_argument("--drafter", help="a transformers model that drafts for it")
    parser.add_argument("--view", help="what the drafter reads: own, drop, newline, pooled, pruned")
    parser.add_argument("--pictures", help="a folder")
    parser.add_argument("--prompt", default="Describe the picture.")
    parser.add_argument("--side", type=int, default=448, help="pixels: pictures of a folder are made squares of one size")
    parser.add_argument("--words", help="JSON: kinds of words, word by word")
    parser.add_argument("--draft-length", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="JSON with every figure")
    parser.add_argument("--smoke", action="store_true", help="an untrained model, four requests")
    args = parser.parse_args()
    if args.smoke:
        args.requests, args.batch_size, args.max_new_tokens = 4, 4, 8
    try:
        case = untrained(args) if args.smoke else mini(args) if args.model is None else given(args)
        options = {"draft_length": args.draft_length, "max_new_tokens": args.max_new_tokens}
        own = [own_drafter(case.target, inputs, **options) for inputs in case.batches]
        report: dict[str, Any] = {"own_drafter": own, "drafters": {}}
        whole, rows = (sum(found[key] for found in own) for key in ("whole", "rows"))
        print(f"the target as its own drafter: {whole} of {rows} requests in as few calls as can be")
        for name, (drafter, view) in case.drafters.items():
            found, *kinds = diagnose(case.target, case.batches, drafter, case.processor.tokenizer, case.words, view, **options)
            report["drafters"][name] = found
            print(f"\n## {name}", told(found), *(each.table() for each in kinds), sep="\n\n")
        if args.out is not None:
            write_json(args.out, report)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
