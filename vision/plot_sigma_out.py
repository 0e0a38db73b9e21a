"""What the noise on every token costs and what it buys: Frechet distance and acceptance by sigma_out, on mini continuous, as a plot.

    python vision/plot_sigma_out.py --out docs/sigma-out.svg        (20 minutes on one CPU core)

sigma_out is a part of the target's distribution: without it no two diffusion heads ever agree on a token. Quality is plain decoding's, as
the exact
ways have the same distribution: the Frechet distance to held-out Fashion-MNIST (MMSPEC_DATA) in the features of mini vision's judge.
Acceptance is that of the shipped draft, which was made for one sigma_out, with four draft tokens a round.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch

import mmspec
from mmspec.minis import HOME, pictures
from mmspec.minis.images import load_judge
from mmspec.utils.files import whole
from mmspec.utils.provenance import machine, provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track
from mmspec.vision import Sampling
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.quality.classifier import classify
from mmspec.vision.quality.distances import frechet

SIGMAS, CONTINUOUS_METHODS = (0.0, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5), ("path", "block", "aligned")


def features(judge: Any, shown: Any) -> torch.Tensor:
    """The judge's features of pictures, bytes or PIL."""
    return torch.cat([classify(judge, tokens.as_tensor(shown[first : first + 500]))[1] for first in range(0, len(shown), 500)])


def measured(model: Any, judge: Any, real: torch.Tensor, sigma: float, count: int, drafted: int) -> dict[str, float]:
    """The distance of `count` pictures, and the share of draft tokens accepted over `drafted` pictures by every way."""
    classes, sampling = [n % 10 for n in range(count)], Sampling(sigma_out=sigma)
    made = mmspec.vision.generate(model, classes, method="plain", sampling=sampling)
    found = {"sigma_out": sigma, "frechet": frechet(features(judge, made.images), real)}
    for way in CONTINUOUS_METHODS if sigma else ():
        stats = mmspec.vision.generate(model, classes[:drafted], method=way, sampling=sampling, seed=10**6).stats
        found[way] = stats.accepted / max(1, stats.judged)
    return found


def plot(rows: list[dict[str, float]], out: Path) -> None:
    """Quality above, acceptance below, over sigma_out."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5.2), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    sigmas = [row["sigma_out"] for row in rows]
    above.plot(sigmas, [row["frechet"] for row in rows], marker="o", color="#444444")
    above.set_ylabel("Frechet distance")
    for way in CONTINUOUS_METHODS:
        with_noise = [row for row in rows if way in row]
        below.plot([row["sigma_out"] for row in with_noise], [row[way] for row in with_noise], marker="o", label=way)
    below.set(xlabel="sigma_out, in deviations of a token", ylabel="draft tokens accepted of those judged", ylim=(0, 1))
    below.legend()
    for part in (above, below):
        part.set_ylim(bottom=0)
        part.grid(alpha=0.3)
    with whole(str(out), binary=True) as sink, rc_context({"svg.fonttype": "none"}):  # names as text: a third of the bytes
        figure.savefig(sink, format=out.suffix.lstrip("."), metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--drafted", type=int, default=40, help="pictures that acceptance is counted over")
    parser.add_argument("--out", type=Path, default=Path("build/sigma-out.svg"), help="the plot: svg, png or pdf")
    parser.add_argument("--smoke", action="store_true", help="two pictures at two values")
    args = parser.parse_args()
    sigmas = SIGMAS
    if args.smoke:
        args.pictures, args.drafted, sigmas = 2, 1, (0.0, 0.3)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    model, judge = mmspec.load("continuous").target, load_judge(HOME / "vision" / "fashion")
    data = Path(os.environ.get("MMSPEC_DATA", "../shared/data"))
    held = torch.randint(256, (20, 28, 28), dtype=torch.uint8) if args.smoke else pictures.fashion(data, "test")[0]
    real, rows = features(judge, held), []
    for sigma in track(sigmas, "sigma_out"):
        rows.append(measured(model, judge, real, sigma, args.pictures, args.drafted))
        print(json.dumps({name: round(value, 4) for name, value in rows[-1].items()}), flush=True)
    plot(rows, args.out)
    about = provenance(torch.device("cpu"))
    print(f"{args.out}: {args.pictures} pictures each, {machine(about)}, {about['date']}")


if __name__ == "__main__":
    run_recipe(main)
