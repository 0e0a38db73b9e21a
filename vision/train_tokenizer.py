"""Make a picture tokenizer from nothing: a small VQ model, its codebook started by k-means.

    python vision/train_tokenizer.py --set fashion        (9 minutes on one CPU core)
    python vision/train_tokenizer.py --pictures FOLDER --out OUT --size 96 --grid 12        (your own pictures, as they are)

Fashion-MNIST (MIT; its official test pictures held out) is read from the data folder (MMSPEC_DATA, default ../shared/data). Of your
pictures every tenth is held out; the scenes of mini vision are such a folder, drawn by vision/render_scenes.py. A stopped run goes on;
delete the work folder to start again. The tokenizer is written to OUT/tokenizer.
"""

import json
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from PIL import Image

from mmspec.minis.picture_sets.options import add_picture_options, read_pictures, resolve_picture_options
from mmspec.minis.picture_sets.sets import random_pictures
from mmspec.train import Fit, fit
from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_loader
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.codes.merged_codes import merge_codes

FASHION = {"size": 28, "colours": 1, "patch": 2, "channels": (48,), "codes": 256, "dim": 8}


def sheet(pairs: torch.Tensor, path: Path, across: int = 16) -> None:
    """Pictures above their reconstructions, [2, N, C, H, W], as one PNG, twice as large."""
    across = min(across, pairs.shape[1])
    count = pairs.shape[1] // across * across
    rows = rearrange(pairs[:, :count], "two (rows across) c h w -> (rows two across) c h w", across=across)
    tiles = [np.pad(np.asarray(tile.convert("RGB")), ((1, 1), (1, 1), (0, 0))) for tile in tokens.as_pictures(rows)]
    whole = Image.fromarray(np.concatenate([np.concatenate(tiles[i : i + across], 1) for i in range(0, len(tiles), across)]))
    whole.resize((whole.width * 2, whole.height * 2), Image.Resampling.NEAREST).save(path)


def report(model, held: torch.Tensor, path: Path) -> dict[str, float]:
    """Held-out PSNR (dB, the mean over pictures), how many codes are used, and a sheet to look at."""
    codes = tokens.encode_codes(model, held)
    rebuilt = tokens.codes_to_pixels(model, codes)
    sheet(torch.stack([held[:64], rebuilt[:64]]), path)
    error = ((rebuilt - held) / 2).square().flatten(1).mean(1).clamp(min=1e-10)
    count = len(tokens.codebook(model))
    return {
        "held-out PSNR (dB)": (-10 * error.log10()).mean().item(),
        "held-out squared error (0 to 1 scale)": error.mean().item(),
        "code perplexity": tokens.perplexity(codes, count),
        "codes used": float(len(codes.unique())),
    }


def main() -> None:
    parser = RecipeParser(__doc__)
    add_picture_options(parser, "tokenizer")
    parser.add_argument("--grid", type=int, help="codes a side, of your own pictures; the size is 1, 2, 4, 8 ... times this; default 16")
    parser.add_argument("--codes", type=int, help="size of the codebook, for your own pictures; default 512")
    parser.add_argument("--width", type=int, help="channels of the first level, for your own pictures; default 64")
    parser.add_argument("--merge", type=float, help="dB that merging codes that look alike may cost, of your own pictures; default 0.1")
    parser.add_argument("--rows", type=int, help="pictures a step; default 64, and 32 for your own")
    parser.add_argument("--steps", type=int, help="default 4000, and 2500 for your own")
    parser.add_argument("--finish", type=int, least=0, default=0, help="steps of the decoder alone behind them, the codes fixed")
    parser.add_argument("--warmup", type=int, default=400, help="steps before the codebook's start, nothing quantised")
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--smoke", action="store_true", help="a few steps of a tiny model, on random pictures where none are given")
    args = parser.parse_args()
    refuse_several_processes()
    kept = resolve_picture_options(parser, args, "tokenizer", own=("grid", "codes", "width", "merge"))
    own = args.set == "own"
    sizes, rows, steps, finishing = FASHION, args.rows or (32 if own else 64), args.steps or (2500 if own else 4000), args.finish
    torch.manual_seed(0)
    if own:
        width = 8 if args.smoke else args.width or 64
        sizes = tokens.sizes_for(args.size or 64, args.grid or 16, codes=args.codes or 512, width=width)
    if args.smoke and not own:
        sizes = {**sizes, "channels": (8,) * len(sizes["channels"]), "codes": 16}
        data = random_pictures(sizes["size"], sizes["colours"])
        args.out = args.work / "mini"  # never over the shipped one
    else:
        data = read_pictures(parser, args, kept, args.size or 64)
    if args.smoke:
        steps, rows, args.warmup, finishing = 4, 4, 2, 2
    train, held, out = data.train, data.held.floats(slice(0, 1024)), args.out / "tokenizer"
    model = tokens.make_tokenizer(**sizes)

    def some(count: int, seed: int) -> tuple[torch.Tensor, torch.Generator]:
        generator = torch.Generator().manual_seed(seed)
        found = train.floats(torch.randint(len(train), (count,), generator=generator))
        if args.mirror:
            found = torch.where(torch.rand(count, 1, 1, 1, generator=generator) < 0.5, found.flip(-1), found)
        return found, generator

    def loss(example, step):
        found, generator = some(rows, step)
        if step >= args.warmup and (step == args.warmup or (step % 50 == 0 and step < 0.7 * steps)):
            many, chance = some(256 if step == args.warmup else 64, steps + step)
            with torch.no_grad():
                spread = tokens.latents(model, many)
                (tokens.start_codebook if step == args.warmup else tokens.restart_dead)(model, spread, chance)
        side = held.shape[-1] // (sizes["patch"] * 2 ** (len(sizes["channels"]) - 1))
        noise = 0.3 * torch.randn(rows, sizes["dim"], side, side, generator=generator) if step < args.warmup else None
        rebuilt, extra = example(found, noise)
        return tokens.rebuilding_loss(rebuilt, found) + (0.25 if step >= args.warmup else 0.02) * extra

    def validate(_, step):
        print(step, json.dumps(report(model, held[:256], args.work / "sheet.png")), flush=True)

    rates = {"model.quantize": 3.0}  # the codes follow the encoder, which moves under them
    options = {"weight_decay": 0.01, "checkpoint_every": 500, "mixed_precision": args.precision}
    plan = Fit(steps=steps, lr=2e-3, warmup=100, rates=rates, **options)
    fit(tokens.TokenizerLoss(model), loss, plan, args.work / "checkpoint.pt", title=args.name, validate=validate, held=data.split)
    if own:
        model = merge_codes(model, train.floats(slice(0, 512)), 0.1 if args.merge is None else args.merge)
        print(f"{len(tokens.codebook(model))} of {sizes['codes']} codes are left, the others look like one of them", flush=True)
    for part in (model.encoder, model.quant_conv, model.quantize):  # from here on the codes stand: only the decoder still learns
        part.requires_grad_(False)

    def finish(example, step):
        found, _ = some(rows, 10**6 + step)
        return tokens.rebuilding_loss(example(found)[0], found)

    if finishing:
        plan = Fit(steps=finishing, lr=1e-3, warmup=50, **options)
        told = {"title": f"{args.name}, decoder", "validate": validate, "held": data.split}
        fit(tokens.TokenizerLoss(model), finish, plan, args.work / "finish.pt", **told)
    tokens.save_tokenizer(model, out)
    facts = {"parameters": sum(p.numel() for p in model.parameters()), "steps": steps}
    facts |= report(tokens.load_tokenizer(out), held, args.work / "sheet.png")
    (args.work / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))
    tell_loader(tokens.load_tokenizer, out)


if __name__ == "__main__":
    run_recipe(main)
