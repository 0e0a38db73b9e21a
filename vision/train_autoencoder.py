"""Make the autoencoder of mini continuous from nothing: a small AutoencoderKL, 28x28 grey pictures to 7x7 tokens of 8 numbers.

    python vision/train_autoencoder.py        (7 minutes on one CPU core)

Data (MMSPEC_DATA, default ../shared/data): Fashion-MNIST (MIT), its official test pictures held out. The decoder learns to bear noise, so
that tokens may be smoothed; that also keeps every channel in use, where a KL of more weight lets some of them go. A stopped run goes on;
delete the work folder to start again.
"""

import json
import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mmspec.minis import pictures
from mmspec.train import Fit, fit
from mmspec.train.held_out import apart, array_keys
from mmspec.train.parallel import refuse_several_processes
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_loader
from mmspec.vision.codes.tokenizer import as_pictures, as_tensor, rebuilding_loss
from mmspec.vision.continuous import autoencoder as auto

MODEL = {"size": 28, "colours": 1, "patch": 2, "channels": (24, 48), "dim": 8}
NOISES = (0.0, 0.05, 0.1, 0.15, 0.2)


def sheet(rows: list[torch.Tensor], path: Path, across: int = 24) -> None:
    """Rows of pictures [N, 1, H, W] below each other as one PNG, three times as large."""
    tiles = [np.concatenate([np.pad(np.asarray(tile.convert("L")), 1) for tile in as_pictures(row[:across])], 1) for row in rows]
    whole = Image.fromarray(np.concatenate(tiles))
    whole.resize((whole.width * 3, whole.height * 3), Image.Resampling.NEAREST).save(path)


def decibels(rebuilt: torch.Tensor, pixels: torch.Tensor) -> float:
    """PSNR, the mean over pictures."""
    error = ((rebuilt - pixels) / 2).square().flatten(1).mean(1).clamp(min=1e-10)
    return (-10 * error.log10()).mean().item()


def report(model, held: torch.Tensor, path: Path) -> dict:
    """Held-out PSNR (dB) without and with noise on the unit-scaled tokens, the posterior's noise, and a sheet to look at."""
    generator = torch.Generator().manual_seed(0)
    _, logvar = auto.posterior(model, held[:500])
    tokens = auto.encode_tokens(model, held)
    drawn = auto.encode_tokens(model, held, generator)
    noise = torch.randn(tokens.shape, generator=generator)
    rebuilt = {str(level): auto.tokens_to_pixels(model, drawn + level * noise) for level in NOISES}
    means = auto.tokens_to_pixels(model, tokens)
    sheet([held, means, *rebuilt.values()], path)
    share = (logvar / 2).exp().mean((0, 2, 3)) / auto.scale(model)[1]
    return {
        "PSNR of means": round(decibels(means, held), 2),
        "PSNR by noise": {level: round(decibels(found, held), 2) for level, found in rebuilt.items()},
        "posterior deviation by channel": [round(value, 3) for value in share.tolist()],
        "channel deviations": [round(value, 3) for value in model.config["latents_std"]],
    }


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/autoencoder"))
    parser.add_argument("--out", type=Path, help="default mmspec/minis/continuous/autoencoder")
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--rows", type=int, default=64, help="pictures a step")
    parser.add_argument("--nats", type=float, default=0.0015, help="the loss of a nat a number")
    parser.add_argument("--noise", type=float, default=0.25, help="deviations of a latent added for the decoder to bear, at most")
    parser.add_argument("--precision", choices=("bf16", "no"), default="bf16")
    parser.add_argument("--smoke", action="store_true", help="a few steps of a tiny model on random pictures")
    args = parser.parse_args()
    refuse_several_processes()
    args.out = args.out or (args.work / "autoencoder" if args.smoke else Path("mmspec/minis/continuous/autoencoder"))
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    sizes = MODEL
    if args.smoke:
        sizes, args.steps, args.rows = {**MODEL, "channels": (8, 8)}, 3, 4
        train, held = (as_tensor(torch.randint(256, (n, 28, 28), dtype=torch.uint8)) for n in (32, 16))
    else:
        data = Path(os.environ.get("MMSPEC_DATA", "../shared/data"))
        train, held = (as_tensor(pictures.fashion(data, part)[0]) for part in ("train", "test"))
    split = apart(array_keys(train), array_keys(held), "pictures")
    held, model = held[list(split.held)], auto.make_autoencoder(**sizes)

    def loss(example, step):
        generator = torch.Generator().manual_seed(step)
        found = train[torch.randint(len(train), (args.rows,), generator=generator)]
        turned = torch.rand(len(found), generator=generator) < 0.5
        found = torch.where(turned[:, None, None, None], found.flip(-1), found)
        rebuilt, nats = example(found)
        return rebuilding_loss(rebuilt, found) + args.nats * nats

    def validate(_, step):
        auto.set_scale(model, train[:2000])
        print(step, json.dumps(report(model, held[:500], args.work / "sheet.png")), flush=True)

    plan = Fit(steps=args.steps, lr=2e-3, warmup=100, weight_decay=0.01, checkpoint_every=250, mixed_precision=args.precision)
    told = {"title": "autoencoder", "validate": validate, "held": split}
    fit(auto.AutoencoderLoss(model, args.noise), loss, plan, args.work / "checkpoint.pt", **told)
    auto.set_scale(model, train[:20000])
    auto.save_autoencoder(model, args.out)
    facts = {"parameters": sum(p.numel() for p in model.parameters()), "steps": args.steps}
    facts |= report(auto.load_autoencoder(args.out), held[:2000], args.work / "sheet.png")
    (args.work / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts))
    tell_loader(auto.load_autoencoder, args.out)


if __name__ == "__main__":
    run_recipe(main)
