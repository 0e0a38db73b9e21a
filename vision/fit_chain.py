"""Fit the linear model by which a diffusion head's steps are drafted (method "chain"), and write it beside the head's weights.

    python vision/fit_chain.py --folder mmspec/minis/continuous        (seconds on one CPU core)

It is fitted in closed form on pictures that the model draws; nothing is trained, and what the model draws keeps its distribution whatever
the fit. Printed are calls of the head a token without and with it.
"""

from pathlib import Path

import torch

from mmspec.minis.latents import load_latents
from mmspec.utils.recipe_options import RecipeParser, run_recipe, tell_loader
from mmspec.vision import ContinuousAR, ContinuousARConfig, ContinuousPictures, Sampling, generate
from mmspec.vision.checkpoints.latents import load_continuous_model, save_model
from mmspec.vision.continuous.autoencoder import make_autoencoder, save_autoencoder
from mmspec.vision.continuous.chain_draft import fit_linear_draft, save_linear_draft

SMALL = {"channels": 4, "grid": 2, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}


def untrained(home: Path) -> Path:
    """A small random model with its autoencoder, for --smoke."""
    torch.manual_seed(0)
    save_autoencoder(make_autoencoder(size=16, colours=1, patch=2, channels=(8, 8), dim=4).eval(), home / "autoencoder")
    config = ContinuousARConfig(**SMALL, head_width=16, classes=3, id2label=dict(enumerate("abc")))
    save_model(ContinuousAR(config), home / "diffusion" / "target")
    return home


def calls(model: ContinuousPictures, pictures: int, steps: int, draft_steps: int | None, first: int) -> float:
    """Calls of the head a token, of pictures with the seeds from `first` on."""
    classes = [number % model.model.config.classes for number in range(pictures)]
    total = tokens = 0
    for number, each in enumerate(classes):  # one by one: in a batch the slowest row decides
        stats = generate(model, [each], method="chain", seed=first + number, sampling=Sampling(steps=steps), draft_steps=draft_steps).stats
        total, tokens = total + stats.head_calls, tokens + stats.tokens  # pyright: ignore[reportAttributeAccessIssue]
    return total / tokens


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("mmspec/minis/continuous"), help="with autoencoder/ and diffusion/target/")
    parser.add_argument("--pictures", type=int, default=20, help="drawn for the fit (20)")
    parser.add_argument("--contexts", type=int, default=256, help="tokens at which the head is differentiated (256)")
    parser.add_argument("--steps", nargs="+", type=int, default=[16, 64], help="of the chains whose calls are counted")
    parser.add_argument("--draft-steps", type=int, help="by default the usual number for the steps")
    parser.add_argument("--counted", type=int, default=4, help="pictures whose calls are counted (4)")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--smoke", action="store_true", help="a small random model, four pictures")
    args = parser.parse_args()
    if args.smoke:
        args.folder, args.pictures, args.counted, args.steps = untrained(Path("build/fit-chain")), 4, 1, [4]
    target: ContinuousPictures = load_latents(args.folder, "diffusion")["target"]
    network = target.model
    assert isinstance(network, ContinuousAR)
    # the pictures of the fit have the seeds from --seed on; those that are counted the ones behind them
    classes = torch.arange(args.pictures) % network.config.classes
    tokens = generate(target, classes.tolist(), method="plain", seed=args.seed).sequences
    fitted = fit_linear_draft(network, classes, tokens, contexts=args.contexts, seed=args.seed)
    save_linear_draft(fitted, args.folder / "diffusion" / "target")
    tell_loader(load_continuous_model, args.folder / "diffusion" / "target")
    for steps in args.steps:
        before, after = (
            calls(ContinuousPictures(network, linear=each), args.counted, steps, args.draft_steps, args.seed + args.pictures)
            for each in (None, fitted)
        )
        print(f"{steps} steps: {before:.2f} calls of the head a token with a held prediction, {after:.2f} with the linear model")


if __name__ == "__main__":
    run_recipe(main)
