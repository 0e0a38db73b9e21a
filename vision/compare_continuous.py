"""Every way to write continuous tokens on the minis, beside plain decoding and what it can have without a draft: counts, quality, seconds.

    python vision/compare_continuous.py --pictures 1000 --rounds 7        (an hour on one CPU core)

Calls are one picture's share of the target's backbone. Quality is the Frechet distance to held-out Fashion-MNIST (MMSPEC_DATA) in the
features of mini vision's judge, and how often that sees the class asked for. Seconds are ratios to plain decoding of the same head, taken
in turns in one process: median and quartiles. `--rounds 0` counts alone.
"""

import os
from dataclasses import asdict
from pathlib import Path

import torch

import mmspec
from mmspec.bench.compare.continuous import MethodEntry, MethodFigures, look, race, rows, write
from mmspec.minis import HOME, pictures
from mmspec.minis.images import load_judge
from mmspec.utils.files import write_json
from mmspec.utils.provenance import machine, provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track
from mmspec.vision.codes import tokenizer as tokens
from mmspec.vision.continuous.methods import ContinuousPictures
from mmspec.vision.quality.classifier import classify

HEADS = {"diffusion": "continuous", "mixture": "continuous-mixture", "masked": "continuous-masked"}
COLUMNS = ("head", "way", "tokens a call", "accepted of judged", "Frechet", "class seen", "batch 1", "batch 8")


def real(judge, most: int) -> torch.Tensor:
    """Features of held-out pictures; random ones where there is no data and few are asked for."""
    data, shown = Path(os.environ.get("MMSPEC_DATA", "../shared/data")), torch.randint(256, (most, 28, 28), dtype=torch.uint8)
    if most > 100 or (data / "fashion-mnist").exists():
        shown = pictures.fashion(data, "test")[0]
    return torch.cat([classify(judge, tokens.as_tensor(shown[first : first + 500]))[1] for first in range(0, len(shown), 500)])


def line(row: MethodEntry, found: MethodFigures, features: torch.Tensor) -> dict:
    """One row of the table, as it is written to JSON."""
    taken = found.acceptance
    speeds = {f"batch {batch}": asdict(found.faster(batch)) for batch in found.ratios}  # pyright: ignore[reportArgumentType]
    quality = {"frechet": found.frechet(features), "class_seen": found.hits / found.pictures}
    return {"head": row.head, "way": row.name, "tokens_a_call": found.per_call, "accepted": taken, **quality, **speeds}


def shown(cells: dict) -> str:
    """The same as a line of a page."""

    def ratio(batch: int) -> str:
        return "{median:.2f} ({low:.2f}-{high:.2f})".format(**cells[f"batch {batch}"]) if f"batch {batch}" in cells else ""

    taken = "" if cells["accepted"] is None else f"{cells['accepted']:.3f}"
    figures = [f"{cells['tokens_a_call']:.2f}", taken, f"{cells['frechet']:.2f}", f"{cells['class_seen']:.3f}", ratio(1), ratio(8)]
    return f"| {' | '.join([cells['head'], cells['way'], *figures])} |"


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=list(HEADS))
    parser.add_argument("--draft-tokens", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--first", type=int, least=0, default=0, help="seed of the first picture")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, least=0, default=0, help="interleaved rounds of seconds; 0 for none")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="that are timed")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--smoke", action="store_true", help="ten pictures of the causal heads, one draft length, no seconds")
    args = parser.parse_args()
    if args.smoke:
        args.pictures, args.batch, args.draft_tokens, args.heads, args.rounds = 10, 10, [2], ["mixture"], 0
    judge = load_judge(HOME / "vision" / "fashion")
    models: dict[str, ContinuousPictures] = {head: mmspec.load(HEADS[head]).target for head in args.heads}
    cells = models[args.heads[0]].model.config.grid ** 2
    table = {row: MethodFigures() for row in rows(args.heads, args.draft_tokens, cells)}
    for row, found in track(table.items(), "counts"):
        for first in range(0, args.pictures, args.batch):
            classes = [n % 10 for n in range(first, min(first + args.batch, args.pictures))]
            made, stats = write(models[row.head], row, classes, args.first + first)
            look(found, models[row.head], judge, made, stats, classes)
    for batch in args.batches if args.rounds else ():
        race(models, table, batch, args.rounds)
    features = real(judge, args.pictures)
    about, lines = provenance(torch.device("cpu")), [line(row, found, features) for row, found in table.items()]
    if args.out:
        write_json(args.out, {"rows": lines, "settings": {k: str(v) for k, v in vars(args).items()}, "provenance": about})
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|", *map(shown, lines), machine(about), about["date"], sep="\n")


if __name__ == "__main__":
    run_recipe(main)
