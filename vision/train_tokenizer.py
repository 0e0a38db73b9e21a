"""Make a picture tokenizer of mini vision from nothing: a small VQ model, its codebook started by k-means.

    python vision/train_tokenizer.py --set emoji        (20 minutes on one CPU core; --set fashion: 9 minutes)

Data (MMSPEC_DATA, default ../shared/data): Fashion-MNIST (MIT; its official test pictures held out) or Noto emoji at 64x64 (Apache-2.0;
every tenth held out), varied in place, size, hue and brightness. A stopped run goes on; delete the work folder to start again.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from PIL import Image

from mmspec.minis import pictures
from mmspec.train import Fit, fit
from mmspec.train.parallel import refuse_several_processes
from mmspec.vision.codes import tokenizer as tokens

SETS = {
    "fashion": {
        "model": {"size": 28, "colours": 1, "patch": 2, "channels": (48,), "codes": 256, "dim": 8},
        "rows": 64,
        "steps": 4000,
        "finish": 0,
    },
    "emoji": {
        "model": {"size": 64, "colours": 3, "patch": 2, "channels": (48, 72), "codes": 512, "dim": 8},
        "rows": 16,
        "steps": 3300,
        "finish": 1500,
    },
}


def read(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and held-out pictures, floats [N, C, H, W] in [-1, 1]."""
    data = Path(os.environ.get("MMSPEC_DATA", "../shared/data"))
    if name == "fashion":
        return tokens.as_tensor(pictures.fashion(data)[0]), tokens.as_tensor(pictures.fashion(data, "test")[0])
    found, rows = pictures.emoji(data)
    held = pictures.held_out(len(rows))
    return tokens.as_tensor(found[~held]), tokens.as_tensor(found[held])


def sheet(pairs: torch.Tensor, path: Path, across: int = 16) -> None:
    """Pictures above their reconstructions, [2, N, C, H, W], as one PNG, twice as large."""
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="fashion")
    parser.add_argument("--work", type=Path, help="default build/tokenizer-SET")
    parser.add_argument("--out", type=Path, help="default mmspec/minis/vision/SET/tokenizer")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--finish", type=int, help="steps of the decoder alone, the codes fixed, colours as they are; default emoji only")
    parser.add_argument("--warmup", type=int, default=400, help="steps before the codebook's start, nothing quantised")
    parser.add_argument("--precision", default="bf16", help="bf16 or no")
    parser.add_argument("--smoke", action="store_true", help="a few steps of a tiny model on random pictures")
    args = parser.parse_args()
    refuse_several_processes()
    recipe = SETS[args.set]
    sizes, rows, steps = recipe["model"], recipe["rows"], args.steps or recipe["steps"]
    finishing = recipe["finish"] if args.finish is None else args.finish
    args.work = args.work or Path(f"build/tokenizer-{args.set}")
    args.out = args.out or Path(f"mmspec/minis/vision/{args.set}/tokenizer")
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if args.smoke:
        sizes = {**sizes, "channels": (8,) * len(sizes["channels"]), "codes": 16}
        train, held = (tokens.as_tensor(torch.randint(256, (n, 28, 28), dtype=torch.uint8)) for n in (32, 16))
        if args.set == "emoji":
            train, held = (torch.nn.functional.interpolate(x, 64).expand(-1, 3, -1, -1) for x in (train, held))
        steps, rows, args.warmup, finishing = 4, 4, 2, 2
        args.out = args.work / "tokenizer"  # never over the shipped one
    else:
        train, held = read(args.set)
    model = tokens.make_tokenizer(**sizes)

    def some(count: int, seed: int, colour: float = 0.25) -> tuple[torch.Tensor, torch.Generator]:
        generator = torch.Generator().manual_seed(seed)
        found = train[torch.randint(len(train), (count,), generator=generator)]
        if args.set == "emoji":
            found = tokens.vary(found, generator, shift=6, scale=0.2, mirror=torch.ones(count, dtype=torch.bool), colour=colour)
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
    fit(tokens.TokenizerLoss(model), loss, plan, args.work / "checkpoint.pt", title=args.set, validate=validate)
    for part in (model.encoder, model.quant_conv, model.quantize):  # from here on the codes stand: only the decoder still learns
        part.requires_grad_(False)

    def finish(example, step):
        found, _ = some(rows, 10**6 + step, colour=0.0)
        return tokens.rebuilding_loss(example(found)[0], found)

    if finishing:
        plan = Fit(steps=finishing, lr=1e-3, warmup=50, **options)
        fit(tokens.TokenizerLoss(model), finish, plan, args.work / "finish.pt", title=f"{args.set}, decoder", validate=validate)
    tokens.save_tokenizer(model, args.out)
    facts = {"parameters": sum(p.numel() for p in model.parameters()), "steps": steps}
    facts |= report(tokens.load_tokenizer(args.out), held, args.work / "sheet.png")
    (args.work / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
