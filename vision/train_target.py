"""Make a target from nothing: a LlamaGen over the codes of a tokenizer, trained for classifier-free guidance.

    python vision/train_target.py --set fashion        (45 minutes on one CPU core)
    python vision/train_target.py --pictures FOLDER --out OUT        (your own: by class, or from captions)

The tokenizer is read from OUT/tokenizer (vision/train_tokenizer.py) and decides the size and the grid. Fashion-MNIST (MIT; of the data
folder MMSPEC_DATA, default ../shared/data) is written by class; captions are read by a small T5 encoder, which is trained along. Every
tenth picture lacks its class or caption, so that guidance has something to lean on. Codes are kept in the work folder, and a stopped run
goes on; delete the folder to start again.

A caption's few nats are spread over hundreds of codes, so that a target learns late to follow captions. --attributes adds a loss by
which its middle layer tells the attributes at every place (mmspec/train/pictures/attributes.py), falling to 0 in two thirds of the steps;
--reading trains with this loss first, on the first codes of pictures alone, which is thirty times as fast.

The code that stands most often at each place of the training pictures is written beside the target: the drafts of its pictures begin with
it. --count writes these alone, for a target that is there.
"""

import json
import random
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from mmspec.core.processors.raster import Raster
from mmspec.minis.picture_sets.coded import CodedPictures, begun_target, code_pictures, new_target
from mmspec.minis.picture_sets.options import add_picture_options, read_pictures, resolve_picture_options
from mmspec.minis.picture_sets.sets import random_pictures
from mmspec.train import Fit, fit
from mmspec.train.held_out import apart, array_keys
from mmspec.train.parallel import refuse_several_processes
from mmspec.train.pictures.attributes import AttributeLoss
from mmspec.train.states.identity import keyed
from mmspec.utils.files import write_json
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_command
from mmspec.vision.checkpoints.own import USUAL_CODES
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.codes.usual import usual_codes
from mmspec.vision.families.llamagen import WORDS, caption_words

WIDTHS, ROWS, DROPPED, EXAMPLES, OPENING = {"fashion": 128}, {"fashion": 64}, 0.1, 16, 9
SIZES = ("width", "layers", "dropout", "words", "prefix_attention")


def write_usual_codes(found: CodedPictures, folder: Path) -> None:
    codes = found.codes.flatten(0, 1).long()
    side = round(codes.shape[1] ** 0.5)
    write_json(folder / USUAL_CODES, usual_codes(codes, Raster.grid(side, side, int(codes.max()) + 1)))


def main() -> None:
    parser = RecipeParser(__doc__)
    add_picture_options(parser, "target")
    parser.add_argument("--width", type=int, help="a multiple of 32; default 160, and 128 for fashion")
    parser.add_argument("--layers", type=int, help="default 6")
    parser.add_argument("--dropout", type=float, most=1, help="of models that read captions; default 0.1")
    parser.add_argument("--words", type=int, help="most tokens of a caption that are read; default 16")
    parser.add_argument("--prefix-attention", help="content (default), or uniform as published: see LlamaGenConfig")
    parser.add_argument("--attributes", type=float, default=0.0, help="first weight of the attributes' loss, see above; 0 for none")
    parser.add_argument("--reading", type=int, least=0, default=0, help="steps before, on the attributes and a picture's first codes alone")
    parser.add_argument("--begin", type=Path, help="a folder that this recipe wrote, to train further")
    parser.add_argument("--rows", type=int, help="pictures a step; default 32, and 64 for fashion")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--count", action="store_true", help="train nothing: count the codes of the pictures for the target in OUT")
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny model, on random pictures where none are given")
    args = parser.parse_args()
    refuse_several_processes()
    if args.begin is not None and any(getattr(args, name) is not None for name in SIZES):
        parser.error("--begin has a target of its own sizes: leave out --width, --layers, --dropout, --words and --prefix-attention")
    kept = resolve_picture_options(parser, args, "target")
    torch.manual_seed(0)
    rows = args.rows or ROWS.get(args.set, 32)
    if args.smoke:
        args.layers, args.width, args.steps, rows = 2, 32, 2, 2
    if args.smoke and args.pictures is None:
        args.out = args.work / "mini"  # never over the shipped one
        vq = tokens.make_tokenizer(size=16, colours=3, patch=4, channels=(8,), codes=16, dim=4).eval()
        tokens.save_tokenizer(vq, args.out / "tokenizer")
    else:
        vq = tokens.load_tokenizer(args.out / "tokenizer")
    table = keyed(args.work / "codes.pt", vq, args.mirror, str(args.pictures or args.set))
    if not table.exists():
        random_set = args.smoke and args.pictures is None
        size = vq.config["sample_size"] * tokens.patch(vq)
        data = random_pictures(16, 3, classes=4) if random_set else read_pictures(parser, args, kept, size)
        if not data.train.conditions:
            parser.error(f"pictures {args.pictures} has no classes and no captions: give subfolders, or captions.jsonl")
        torch.save(asdict(code_pictures(data, vq, args.mirror or args.set == "fashion")), table)
    found = CodedPictures(**torch.load(table))
    if args.count:
        write_usual_codes(found, args.out / "target")
        return
    split = apart(array_keys(found.codes[:, 0]), array_keys(found.held_codes), "pictures")
    judged = list(split.held[:256])
    sizes = {name: value for name in SIZES if (value := getattr(args, name)) is not None}
    sizes = {"width": WIDTHS.get(args.set, 160)} | sizes
    writer = begun_target(args.begin, bool(found.labels)) if args.begin else new_target(found, len(tokens.codebook(vq)), **sizes)
    if (args.attributes or args.reading) and not (found.values and writer.encoder is not None):
        parser.error("--attributes and --reading are for pictures with captions and attributes: leave them out")
    reads = bool(args.attributes or args.reading)
    told = AttributeLoss(writer, found.values)

    def reading(example: nn.Module, step: int) -> Tensor:
        pick = random.Random(step)
        chosen = [pick.randrange(found.codes.shape[0]) for _ in range(4 * rows)]
        given = [pick.choice(found.conditions[n]) for n in chosen]
        codes = found.codes[chosen, 0, :OPENING].long()
        nats, extra = example(codes, given, torch.zeros(len(chosen), dtype=torch.bool), found.attributes[chosen])
        return 0.2 * nats.mean() + extra

    if args.reading:
        plan = Fit(steps=args.reading, lr=2e-3, warmup=50, checkpoint_every=200, mixed_precision=args.precision)
        fit(told, reading, plan, args.work / "reading.pt", title=f"{args.name}, reading")

    def loss(example: nn.Module, step: int) -> Tensor:
        pick = random.Random(step)
        chosen = [(pick.randrange(found.codes.shape[0]), pick.randrange(found.codes.shape[1])) for _ in range(rows)]
        given = [found.conditions[n] for n, _ in chosen]
        given = given if found.labels else [pick.choice(texts) for texts in given]
        codes = torch.stack([found.codes[n, version] for n, version in chosen]).long()
        dropped = torch.tensor([pick.random() < DROPPED for _ in chosen])
        if not reads:
            return example(codes, given, dropped).mean()
        weight = args.attributes * max(0.0, 1 - 1.5 * step / args.steps)
        nats, extra = example(codes, given, dropped, found.attributes[[n for n, _ in chosen]])
        return nats.mean() + weight * extra

    @torch.no_grad()
    def held_out(_: nn.Module, step: int) -> dict[str, float]:
        codes, given = found.held_codes[judged].long(), [found.held_conditions[number] for number in judged]
        given = given if found.labels else [texts[0] for texts in given]
        other = given[1:] + given[:1]
        nats = {"told": given, "told another picture's": other, "told nothing": given}
        facts = {
            f"nats a code, held out, {name}": writer(codes, each, torch.full((len(codes),), name == "told nothing")).mean().item()
            for name, each in nats.items()
        }
        print(step, json.dumps(facts), flush=True)
        return facts

    plan = Fit(steps=args.steps, lr=2e-3, warmup=100, checkpoint_every=300, mixed_precision=args.precision)
    fit(told if reads else writer, loss, plan, args.work / "checkpoint.pt", title=args.name, validate=held_out, held=split)
    facts = {"parameters": sum(p.numel() for p in writer.parameters()), "steps": args.steps, **held_out(writer, args.steps)}
    for part, model in (("target", writer.target), ("captions", writer.encoder)):
        if model is not None:
            model.half().save_pretrained(args.out / part)
    write_usual_codes(found, args.out / "target")
    if writer.tokenizer is not None:
        writer.tokenizer.save_pretrained(args.out / "captions")
        texts = [text for some in found.conditions for text in some]
        write_json(args.out / "captions" / WORDS, sorted({word for text in texts for word in caption_words(text)}))
        held = [each[0] for each in found.held_conditions]
        write_json(args.out / "examples.json", [held[number] for number in apart(texts, held, "captions").held[:EXAMPLES]])
    write_json(args.work / "facts.json", facts)
    shown = found.labels[0] if found.labels else found.conditions[0][0]
    tell_command("mmspec", "image", shown, "--model", args.out, "--out", args.work / "first.png")


if __name__ == "__main__":
    run_recipe(main)
