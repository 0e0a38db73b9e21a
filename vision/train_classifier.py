"""Make the classifier that judges pictures, on originals and on what the tokenizer makes of them, half and half.

    python vision/train_classifier.py --set fashion        (4 minutes on one CPU core)
    python vision/train_classifier.py --pictures FOLDER --out OUT        (your own: by class, or by attributes)

Its features then see nothing odd in decoded pictures as such. The tokenizer is read from OUT/tokenizer (vision/train_tokenizer.py), and the
classifier is written to OUT/classifier. Classes are Fashion-MNIST's ten, or the subfolders of your folder; of a folder with captions the
judge sees each of the attributes in captions.jsonl. A stopped run goes on; delete the work folder to begin.
"""

import json

import torch

from mmspec.minis.picture_sets.options import add_picture_options, read_pictures, resolve_picture_options
from mmspec.minis.picture_sets.sets import PicturePart, code_table, random_pictures
from mmspec.train import Fit, fit
from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_loader
from mmspec.utils.screen import track
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.quality.classifier import Classifier, attribute_loss, classify, load_classifier, save_classifier, seen_values


def rebuilt(vq, part: PicturePart) -> torch.Tensor:
    """What the tokenizer makes of pictures, bytes [N, C, H, W]."""
    codes = code_table(vq, part)
    side = round(codes.shape[-1] ** 0.5)
    some = codes.view(-1, side, side).split(512)
    return torch.cat([as_bytes(tokens.codes_to_pixels(vq, each)) for each in track(some, "rebuilding", disable=len(some) < 4)])


def as_bytes(pixels: torch.Tensor) -> torch.Tensor:
    return ((pixels + 1) * 127.5).round().to(torch.uint8)


def accuracy(model: Classifier, pixels: torch.Tensor, wanted: torch.Tensor) -> dict[str, float]:
    """The share named rightly; by group where labels are "group: subgroup", by attribute and as a whole where there are several."""
    seen = seen_values(model, classify(model, pixels)[0])
    right = seen == wanted
    if len(model.groups) > 1:
        return {"accuracy of attributes": right.float().mean().item(), "accuracy": right.all(1).float().mean().item()}
    groups = [label.split(": ")[0] for label in model.labels]
    same = [groups[a] == groups[b] for a, b in zip(seen[:, 0].tolist(), wanted[:, 0].tolist(), strict=True)]
    return {"accuracy": right.float().mean().item(), "accuracy by group": sum(same) / len(same)}


def main() -> None:
    parser = RecipeParser(__doc__)
    add_picture_options(parser, "classifier")
    parser.add_argument("--steps", type=int, help="steps of 128 pictures; default 5000, and 1500 for your own")
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny model, on random pictures where none are given")
    args = parser.parse_args()
    refuse_several_processes()
    kept = resolve_picture_options(parser, args, "classifier")
    own, widths, rows = args.set == "own", (16, 32, 64), 128
    steps = args.steps or (1500 if own else 5000)
    torch.manual_seed(0)
    if args.smoke:
        widths, steps, rows = (4, 8), 2, 8
    if args.smoke and not own:
        vq = tokens.make_tokenizer(size=8, colours=1, patch=2, channels=(8,), codes=16, dim=4).eval()
        data, args.out = random_pictures(8, 1), args.work / "mini"  # never over the shipped one
    else:
        vq = tokens.load_tokenizer(args.out / "tokenizer")
        data = read_pictures(parser, args, kept, vq.config["sample_size"] * tokens.patch(vq))
    if not data.values:
        parser.error(f"pictures {args.pictures} has no classes and no attributes: nothing to judge by")
    train, held = data.train, data.held
    again, wanted, mirror = rebuilt(vq, train), torch.tensor(train.attributes), torch.tensor(train.mirror)
    by_class = list(data.values) == ["class"]
    names = data.values["class"] if by_class else [f"{name}: {value}" for name, values in data.values.items() for value in values]
    groups = {} if by_class else {"groups": [len(values) for values in data.values.values()], "wide": 128}
    model = Classifier(size=data.size, colours=data.colours, labels=names, widths=widths, **groups)

    def loss(judge, step):
        generator = torch.Generator().manual_seed(step)
        pick = torch.randint(len(train), (rows,), generator=generator)
        taken = again[pick].float() / 127.5 - 1
        taken[::2] = train.floats(pick[::2])
        if own:
            flip = mirror[pick] & (torch.rand(rows, generator=generator) < 0.5)
            varied = torch.where(flip[:, None, None, None], taken.flip(-1), taken)
        else:
            varied = -tokens.vary(-taken, generator, mirror=mirror[pick])  # the ground is black
        return attribute_loss(model, judge(varied), wanted[pick])

    shown, answers = held.floats(slice(0, 2048)), torch.tensor(held.attributes[:2048])

    def validate(judge, step):
        print(step, json.dumps(accuracy(judge, shown, answers)), flush=True)

    plan = Fit(steps=steps, lr=3e-3, warmup=100, weight_decay=0.05, checkpoint_every=500, mixed_precision=args.precision)
    fit(model, loss, plan, args.work / "checkpoint.pt", title=args.name, validate=validate, held=data.split)
    save_classifier(model, args.out / "classifier")
    final, seen = load_classifier(args.out / "classifier"), tokens.codes_to_pixels(vq, tokens.encode_codes(vq, shown))
    facts = {"parameters": sum(p.numel() for p in final.parameters()), "labels": len(names), "steps": steps}
    for title, pixels in (("originals", shown), ("rebuilt", seen)):
        facts |= {f"held-out {key}, {title}": value for key, value in accuracy(final, pixels, answers).items()}
    (args.work / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))
    tell_loader(load_classifier, args.out / "classifier")


if __name__ == "__main__":
    run_recipe(main)
