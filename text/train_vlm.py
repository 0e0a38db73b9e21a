"""Make mini vlm's target from nothing: a LLaVA-type model that describes drawn scenes and answers questions about them.

    python text/train_vlm.py --work build/mini-vlm --out mmspec/minis/vlm

Scenes, captions, questions and answers are made by mmspec/minis/drawn/scenes.py as training goes, so no data set is needed. The vision
tower comes first, learning what each corner holds: trained from captions alone, a language model learns the template and not the picture.
The tower is then frozen while the projector and the language model learn to answer. Stages resume where they were stopped: delete
the work folder to start again.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.minis import HOME
from mmspec.minis import vlm_model as sights
from mmspec.minis.drawn import scenes
from mmspec.train import Fit, fit
from mmspec.train.held_out import apart
from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command

HELD = 10**9  # seeds from here on are never trained on
FIELDS = ((*scenes.COLOURS, ""), (*scenes.SHAPES, ""), (*scenes.SIZES, ""), tuple(scenes.BACKGROUNDS))


class Corners(nn.Module):
    """The tower with a linear head: every patch says what its corner holds, as a vision encoder learns before it sees a language model."""

    def __init__(self, tower: nn.Module, width: int):
        super().__init__()
        self.tower, self.head = tower, nn.Linear(width, sum(map(len, FIELDS)))

    def forward(self, pixels: Tensor) -> list[Tensor]:
        found = self.head(self.tower(pixels).last_hidden_state[:, 1:])  # [B, patches, every field's values]
        return [part.transpose(1, 2) for part in found.split([len(field) for field in FIELDS], dim=-1)]


def corner_labels(scene: scenes.Scene) -> list[list[int]]:
    """[field][patch]: which value of FIELDS each patch's corner has."""
    things, side = {thing.place: thing for thing in scene.things}, scenes.SIDE // sights.PATCH
    found: list[list[int]] = [[] for _ in FIELDS]
    for patch in range(side * side):
        corner = scenes.PLACES[2 * (patch // side >= side // 2) + (patch % side >= side // 2)]
        thing = things.get(corner)
        values = (thing.colour, thing.shape, thing.size) if thing else ("", "", "")
        for field, labels, value in zip(FIELDS, found, (*values, scene.background), strict=True):
            labels.append(field.index(value))
    return found


def held_examples(count: int, rows: int) -> tuple[list, list]:
    """The scenes held out for the tower, and the examples held out for the answers: `count` of each form."""
    return list(scenes.scenes(HELD, rows)), [each for form in sorted(set(sights.FORMS)) for each in sights.asked(HELD, count, form)]


def parsed() -> argparse.Namespace:
    parser = RecipeParser(__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/mini-vlm"))
    parser.add_argument("--out", type=Path, help="default: WORK/mini")
    parser.add_argument("--tower-steps", type=int, default=2000, help="of 64 pictures")
    parser.add_argument("--steps", type=int, default=4000, help="of 32 captions or 64 short answers")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=96, help="of the language model, in heads of 32")
    parser.add_argument("--held", type=int, default=256, help="held-out captions, questions and pairs to answer, of each")
    parser.add_argument("--checkpoint-every", type=int, default=200)
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny model")
    args = parser.parse_args()
    refuse_several_processes()
    if args.smoke:
        args.tower_steps, args.steps, args.rows, args.layers, args.width, args.held, args.checkpoint_every = 2, 2, 2, 1, 32, 2, 1
    args.out = args.out or args.work / "mini"
    return args


def main() -> None:
    args = parsed()
    torch.manual_seed(0)
    processor = sights.new_processor()
    model = sights.new_llava(processor, width=args.width, layers=args.layers, heads=args.width // 32, feed=args.width * 8 // 3)
    tower = Corners(model.model.vision_tower, model.config.vision_config.hidden_size)

    plain, judged = held_examples(args.held, args.held)
    split = apart((), [*plain, *(scene for each in judged for scene in each.pictures)], "scenes")

    def seen(found: list) -> tuple[Tensor, Tensor]:
        """Pixels [B, 3, H, W] of scenes and what their patches' corners hold [field, B, patch]."""
        pixels = processor.image_processor([scenes.draw_scene(scene) for scene in found], return_tensors="pt")["pixel_values"]
        return pixels, torch.tensor([corner_labels(scene) for scene in found]).transpose(0, 1)

    def corners(module: nn.Module, turn: int) -> Tensor:
        drawn = list(scenes.scenes(turn, 2 * args.rows))
        pixels, labels = seen([drawn[number] for number in split.outside(drawn)])
        return torch.stack(
            [F.cross_entropy(distribution, wanted) for distribution, wanted in zip(module(pixels), labels, strict=True)]
        ).sum()

    def all_right(module: nn.Module, step: int) -> None:
        pixels, labels = seen(plain)
        rates = [
            (distribution.argmax(1) == wanted).float().mean().item() for distribution, wanted in zip(module(pixels), labels, strict=True)
        ]
        print(f"step {step}: patches right in colour, shape, size, background: {', '.join(f'{rate:.4f}' for rate in rates)}", flush=True)

    plan = Fit(steps=args.tower_steps, lr=2e-3, checkpoint_every=args.checkpoint_every, mixed_precision=args.precision)
    fit(tower, corners, plan, args.work / "tower.pt", title="vision tower", validate=all_right, held=split)
    model.model.vision_tower.requires_grad_(False)

    def answer(module: nn.Module, turn: int) -> Tensor:
        return module(**sights.example(processor, sights.batch(turn, args.rows, split.keys))).loss

    def examine(module: nn.Module, step: int, many: int = min(64, args.held)) -> dict[str, float]:
        asked = [judged[first + number] for first in range(0, len(judged), args.held) for number in range(many)]
        marks = sights.right(module, processor, asked)
        print(f"step {step}: {json.dumps({kind: round(rate, 3) for kind, rate in marks.items()})}", flush=True)
        return marks

    plan = Fit(steps=args.steps, lr=2e-3, warmup=100, checkpoint_every=args.checkpoint_every, mixed_precision=args.precision)
    fit(model, answer, plan, args.work / "target.pt", title="target", validate=examine, held=split)
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    sights.save_llava(model, args.out / "target")
    model.generation_config.save_pretrained(args.out / "target")
    processor.save_pretrained(args.out)
    marks = examine(sights.llava(args.out / "target"), args.steps, args.held)  # as it is read back: its matrices are bytes
    size = sum(parameter.numel() for parameter in model.parameters())
    facts = {"parameters": size, "steps": args.steps, "held out": args.held, "right": marks}
    (args.out / "target" / "figures.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    tell_command("mmspec", "caption", HOME / "vlm" / "examples" / "dark.png", "--model", args.out)


if __name__ == "__main__":
    run_recipe(main)
