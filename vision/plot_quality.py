"""Quality against the forwards saved, for every image method and published setting on a mini, with 95 % intervals, as a plot.

    python vision/plot_quality.py --set scenes --pictures 200 --out docs/quality.svg        (two hours on one CPU core)

Along: plain decoding's forwards over the method's, by image, with a bootstrap interval over images (methods by rows: no interval). Up: the
share of images in which the mini's judge sees what was asked for (the class, or of scenes all attributes of the caption), less plain
decoding's; the Frechet distance to plain decoding's images in the judge's features; and the target's own -log p a code. Intervals are those
of mmspec.vision.quality.metrics. The grey band is what plain decoding differs from itself by. Methods are drawn with other seeds than plain
decoding's. Methods whose net or smaller model the mini lacks are left out.
"""

from pathlib import Path
from typing import Any

import torch

import mmspec
from mmspec.minis import HOME
from mmspec.minis.images import asked_values, load_images, load_judge
from mmspec.utils.files import whole, write_json
from mmspec.utils.provenance import machine, provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track
from mmspec.vision import METHODS, PUBLISHED
from mmspec.vision.codes.registry import can_draw, method_of
from mmspec.vision.quality import metrics
from mmspec.vision.quality.judging import judged_pictures

SHOWN = {
    "accuracy": "images that show what was asked for,\nmore than plain decoding's, %",
    "frechet": "Frechet distance to plain decoding",
    "nll": "-log p a code, above plain decoding's, nats",
}
COLOURS = {"token-exact": "#1a7f37", "distribution-exact": "#0969da", "lossy": "#cf222e"}


def reads_window(method: str) -> bool:
    """Whether a method drafts by a window or a tree; a chain by a smaller model has a length of its own."""
    plan = method_of(method)
    return plan.couple is not None or plan.shape is not None


def drawn(model: Any, prompts: list, method: str, window: int, sampling: dict, seed: int, batch: int) -> tuple:
    """Sequences [N, T], forwards by image [N] (one mean value by rows), drift a code and the exactness."""
    settings = {"method": method, **sampling} | ({"window": window} if reads_window(method) else {})
    sequences, forwards, drift, exactness = [], [], 0.0, ""
    for first in range(0, len(prompts), batch):
        out = mmspec.vision.generate(model, prompts[first : first + batch], seed=seed + first, **settings)
        sequences.append(out.sequences)
        here = [out.stats.row_calls / len(out.sequences)] if out.runs is None else (1 / out.runs.double()).sum((1, 2)).tolist()
        forwards, drift, exactness = forwards + here, drift + (out.stats.drift or 0.0), out.stats.exactness
    return torch.cat(sequences), torch.tensor(forwards), drift / (len(prompts) * model.raster.length), exactness


def saving(plain: float, forwards: torch.Tensor, exactly: bool, rounds: int = 1000) -> tuple[float, float, float]:
    """Plain forwards over the method's: the mean, and its 95 % bootstrap interval over images; without one where not `exactly`."""
    mean = plain / forwards.mean().item()
    if not exactly:
        return mean, mean, mean
    pick = torch.randint(len(forwards), (rounds, len(forwards)), generator=torch.Generator().manual_seed(0))
    low, high = (plain / forwards[pick].mean(1)).quantile(torch.tensor([0.025, 0.975], dtype=forwards.dtype)).tolist()
    return mean, low, high


def plot(rows: dict[str, dict], out: Path) -> None:
    """One panel a metric, one point a method."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 13), layout="constrained")
    for axes, (metric, label) in zip(figure.subplots(len(SHOWN), sharex=True), SHOWN.items(), strict=True):
        times = 100 if metric == "accuracy" else 1
        band = times * max(row[metric]["ceiling"] for row in rows.values())
        axes.axhspan(0.0 if metric == "frechet" else -band, band, color="#dddddd", zorder=0)
        named: set[tuple[float, float]] = set()
        for name, row in rows.items():
            (x, left, right), found = row["saving"], {field: times * value for field, value in row[metric].items()}
            across, up = [[max(0.0, x - left)], [max(0.0, right - x)]], [[found["value"] - found["low"]], [found["high"] - found["value"]]]
            up = [[max(0.0, side[0])] for side in up]
            colour = COLOURS[row["exactness"].split(" ")[0]]
            axes.errorbar([x], [found["value"]], xerr=across, yerr=up, marker="o", color=colour, capsize=2, linewidth=0.8)
            place = round(x, 1), round(found["value"] / (axes.get_ylim()[1] - axes.get_ylim()[0]), 2)
            if place not in named:  # one name a place: settings that draw the same images lie on one another
                axes.annotate(name, (x, found["value"]), textcoords="offset points", xytext=(4, 4), fontsize=7)
            named.add(place)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    axes.set_xlabel("times fewer forwards than plain decoding")
    for kind, colour in COLOURS.items():
        axes.plot([], [], marker="o", linestyle="", color=colour, label=kind)
    axes.legend()
    with whole(str(out), binary=True) as sink, rc_context({"svg.fonttype": "none"}):  # names as text: a third of the bytes
        figure.savefig(sink, format=out.suffix.lstrip("."), metadata={"Date": None} if out.suffix == ".svg" else None)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--set", choices=("fashion", "scenes"), default="fashion", help="of mini vision")
    parser.add_argument("--folder", type=Path, help="a model to measure in place of the shipped one")
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--guidance", type=float, default=2.0)
    parser.add_argument("--top-p", type=float, most=1, help="least probability of the codes that are kept; default all")
    parser.add_argument("--window", type=int, default=48)
    parser.add_argument("--batch", type=int, default=40)
    names = [name for name in (*METHODS, *PUBLISHED) if name != "plain"]
    parser.add_argument("--methods", nargs="+", default=names, choices=names, metavar="METHOD")
    parser.add_argument("--out", type=Path, default=Path("build/quality.svg"), help="the plot: svg, png or pdf; a .json beside it")
    parser.add_argument("--smoke", action="store_true", help="ten pictures, short windows, two methods")
    args = parser.parse_args()
    if args.smoke:
        args.pictures, args.batch, args.window, args.methods = 10, 20, 8, ["scd", "sjd++"]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    folder = args.folder or HOME / "vision" / args.set
    parts, judge = load_images(folder), load_judge(folder)
    model, given = parts["target"], parts["examples"]
    prompts = [given[n % len(given)] for n in range(args.pictures)]
    labels, wanted = torch.arange(args.pictures) % len(given), asked_values(judge, prompts, model.labels)
    if wanted is None:
        parser.error(f"the judge in {folder} cannot tell whether pictures show what their prompts say")
    names = [name for name in args.methods if can_draw(model, name)]
    sampling = {"guidance": args.guidance, "top_p": args.top_p}
    first, counted, _, _ = drawn(model, prompts * 2, "plain", args.window, sampling, 0, args.batch)
    plain = judged_pictures(model, judge, prompts * 2, first, args.guidance, torch.cat([labels, labels]), torch.cat([wanted, wanted]))
    rows: dict[str, dict] = {}
    for name in track(names, args.set):
        found, forwards, drift, exactness = drawn(model, prompts, name, args.window, sampling, 10**6, args.batch)
        distances = metrics.compare(plain, judged_pictures(model, judge, prompts, found, args.guidance, labels, wanted))
        kept = ("value", "low", "high", "floor", "ceiling", "p")
        row: dict[str, Any] = {key: {field: getattr(distances[key], field) for field in kept} for key in SHOWN}
        row |= {"saving": saving(counted.mean().item(), forwards, len(forwards) == args.pictures)}
        rows[name] = row | {"drift": drift, "exactness": exactness}
        x, left, right = row["saving"]
        print(f"{name}: {x:.2f} ({left:.2f}-{right:.2f}) x fewer forwards, " + ", ".join(
            f"{key} {row[key]['value']:.3f} ({row[key]['low']:.3f}-{row[key]['high']:.3f}), p {row[key]['p']:.3f}" for key in SHOWN
        ), flush=True)  # fmt: skip
    plot(rows, args.out)
    about = provenance(torch.device("cpu"))
    settings = {name: str(value) for name, value in vars(args).items()}
    write_json(args.out.with_suffix(".json"), {"rows": rows, "settings": settings, "provenance": about})
    print(f"{args.out}: {args.pictures} pictures a method, {machine(about)}, {about['date']}")


if __name__ == "__main__":
    run_recipe(main)
