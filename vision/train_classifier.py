"""Make the classifier that judges mini vision's pictures, on originals and on what the tokenizer makes of them, half and half.

    python vision/train_classifier.py --set emoji        (5 minutes on one CPU core; --set fashion: 4 minutes)

Its features then see nothing odd in decoded pictures as such. Data as for vision/train_tokenizer.py, whose tokenizer it needs. Classes
are Fashion-MNIST's ten, or the emoji's groups with their large subgroups apart. A stopped run goes on; delete the work folder to begin.
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.nn.functional as F

from mmspec.minis import pictures
from mmspec.train import Fit, fit
from mmspec.train.parallel import refuse_several_processes
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.quality.classifier import Classifier, classify, load_classifier, save_classifier


def read(name: str) -> tuple[list, list[str]]:
    """Training and held-out pictures (bytes), their classes and which may be mirrored; then the classes' names."""
    data = Path(os.environ.get("MMSPEC_DATA", "../shared/data"))
    if name == "fashion":
        parts = [[torch.tensor(each) for each in pictures.fashion(data, part)] for part in ("train", "test")]
        return [(shown, kind.long(), torch.ones(len(kind), dtype=torch.bool)) for shown, kind in parts], list(pictures.FASHION)
    found, rows = pictures.emoji(data)
    kind, names = pictures.emoji_classes(rows)
    columns = [torch.tensor(each) for each in (found, kind, [pictures.may_mirror(row) for row in rows])]
    held = torch.tensor(pictures.held_out(len(rows)))
    return [tuple(column[pick] for column in columns) for pick in (~held, held)], names


def rebuilt(vq, shown: torch.Tensor, versions: int, mirror: torch.Tensor) -> torch.Tensor:
    """What the tokenizer makes of pictures and of varied ones, bytes [N, versions, C, H, W]."""
    codes = tokens.encode_all(vq, shown, versions=versions, mirror=mirror)
    side = round(codes.shape[-1] ** 0.5)
    pixels = torch.cat([as_bytes(tokens.codes_to_pixels(vq, some)) for some in codes.view(-1, side, side).split(1024)])
    return pixels.view(len(shown), versions, *pixels.shape[1:])


def as_bytes(pixels: torch.Tensor) -> torch.Tensor:
    return ((pixels + 1) * 127.5).round().to(torch.uint8)


def accuracy(model: Classifier, pixels: torch.Tensor, kind: torch.Tensor) -> dict[str, float]:
    """The share named rightly; and by group, where labels are "group: subgroup"."""
    found = classify(model, pixels)[0].argmax(1)
    groups = [label.split(": ")[0] for label in model.labels]
    same = [groups[a] == groups[b] for a, b in zip(found.tolist(), kind.tolist(), strict=True)]
    return {"accuracy": (found == kind).float().mean().item(), "accuracy by group": sum(same) / len(same)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=("fashion", "emoji"), default="fashion")
    parser.add_argument("--tokenizer", type=Path, help="default mmspec/minis/vision/SET/tokenizer")
    parser.add_argument("--work", type=Path, help="default build/classifier-SET")
    parser.add_argument("--out", type=Path, help="default mmspec/minis/vision/SET/classifier")
    parser.add_argument("--steps", type=int, help="steps of 128 pictures; default fashion 5000, emoji 3000")
    parser.add_argument("--precision", default="bf16", help="bf16 or no")
    parser.add_argument("--smoke", action="store_true", help="two steps of a tiny model on random pictures")
    args = parser.parse_args()
    refuse_several_processes()
    grey = args.set == "fashion"
    args.steps = args.steps or (5000 if grey else 3000)
    args.work = args.work or Path(f"build/classifier-{args.set}")
    args.out = args.out or Path(f"mmspec/minis/vision/{args.set}/classifier")
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if args.smoke:
        vq = tokens.make_tokenizer(size=8, colours=1 if grey else 3, patch=2, channels=(8,), codes=16, dim=4).eval()
        shapes = [(count, 8, 8) if grey else (count, 8, 8, 3) for count in (32, 16)]
        parts = [(torch.randint(256, s, dtype=torch.uint8), torch.arange(s[0]) % 2, torch.ones(s[0], dtype=torch.bool)) for s in shapes]
        names, widths, args.steps, rows = ["a: x", "b: y"], (4, 8), 2, 8
        args.out = args.work / "classifier"  # never over the shipped one
    else:
        vq = tokens.load_tokenizer(args.tokenizer or args.out.with_name("tokenizer"))
        (parts, names), widths, rows = read(args.set), (16, 32, 64), 128
    (shown, kind, mirror), (held, held_kind, _) = parts
    versions = 1 if grey else 6
    again, originals = rebuilt(vq, shown, versions, mirror), as_bytes(tokens.as_tensor(shown))
    model = Classifier(size=shown.shape[1], colours=1 if grey else 3, labels=names, widths=widths, dropout=0.0 if grey else 0.3)

    def loss(judge, step):
        generator = torch.Generator().manual_seed(step)
        pick, version = (torch.randint(high, (rows,), generator=generator) for high in (len(shown), versions))
        taken = torch.where(torch.arange(rows)[:, None, None, None] % 2 == 0, originals[pick], again[pick, version]).float() / 127.5 - 1
        if grey:  # the ground is black
            varied = -tokens.vary(-taken, generator, shift=1, scale=0.0, mirror=mirror[pick])
        else:
            varied = tokens.vary(taken, generator, shift=5, scale=0.2, mirror=mirror[pick])
        return F.cross_entropy(judge(varied), kind[pick], label_smoothing=0.05)

    def validate(judge, step):
        print(step, json.dumps(accuracy(judge, tokens.as_tensor(held), held_kind)), flush=True)

    plan = Fit(steps=args.steps, lr=3e-3, warmup=100, weight_decay=0.05, checkpoint_every=500, mixed_precision=args.precision)
    fit(model, loss, plan, args.work / "checkpoint.pt", title=args.set, validate=validate)
    save_classifier(model, args.out)
    final, seen = load_classifier(args.out), tokens.codes_to_pixels(vq, tokens.encode_codes(vq, held))
    facts = {"parameters": sum(p.numel() for p in final.parameters()), "classes": len(names), "steps": args.steps}
    for title, pixels in (("originals", tokens.as_tensor(held)), ("rebuilt", seen)):
        facts |= {f"held-out {key}, {title}": value for key, value in accuracy(final, pixels, held_kind).items()}
    (args.work / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
