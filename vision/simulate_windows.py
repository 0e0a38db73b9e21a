"""Tokens per forward of window methods on large grids and on sequences of frames, counted on a synthetic model without weights.

    python vision/simulate_windows.py --out build/windows.json        (about an hour on one CPU core)

A cell depends on its left, upper and upper right neighbours, in a sequence also on the same cell of the frame before, through random
tables (mmspec.bench.synthetic.raster). `--spread` sets how strongly: 1.33 gives 4 nats a cell of at most 4.85, like picture models. Grids
are those of published models: 24x24 (Janus), 32x32 (Chameleon), 90x90 (Emu3 at 720 pixels); sequences are written frame by frame as Emu3
writes video. The counts say how far a window carries, not what a forward costs: compare them with the cost of a forward of so many
columns.
"""

from pathlib import Path

import torch

from mmspec.bench.synthetic.raster import METHODS, SPREAD, compression
from mmspec.utils.files import write_json
from mmspec.utils.provenance import provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.utils.screen import track

SHAPES = ("24", "32", "90", "16x8")


def shape_of(text: str) -> tuple[int, int]:
    """Side and frames of SIDE or SIDExFRAMES."""
    side, _, frames = text.partition("x")
    return int(side), int(frames or 1)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="SIDE, or SIDExFRAMES for a sequence (24 32 90 16x8)")
    parser.add_argument("--windows", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--methods", nargs="+", default=["sjd", "scd", "scd-gumbel", "coupled"], choices=[*METHODS])
    parser.add_argument("--spread", type=float, default=SPREAD, help="standard deviation of the logits")
    parser.add_argument("--rows", type=int, default=1, help="pictures or sequences counted over")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--out", type=Path, help="also write the counts as JSON")
    parser.add_argument("--smoke", action="store_true", help="a small grid and three small frames")
    args = parser.parse_args()
    if args.smoke:
        args.shapes, args.windows, args.methods = ["8", "6x3"], [8, 16], ["sjd", "coupled"]
    cases = [(shape, method, window) for shape in args.shapes for method in args.methods for window in args.windows]
    rows = []
    print(f"{'codes':>8} {'method':>10} {'window':>6} {'tokens per forward':>18} {'forwards':>8}")
    for shape, method, window in track(cases, "windows"):
        side, frames = shape_of(shape)
        found = compression(method, window, spread=args.spread, rows=args.rows, seed=args.seed, side=side, frames=frames)
        codes = side * side * frames
        rows.append({"shape": shape, "codes": codes, "method": method, "window": window, "tokens_per_forward": found})
        print(f"{shape:>8} {method:>10} {window:>6} {found:>18.2f} {codes / found:>8.0f}", flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        settings = {"spread": args.spread, "rows": args.rows, "seed": args.seed}
        write_json(args.out, {"rows": rows, "settings": settings, "provenance": provenance(torch.device("cpu"))})


if __name__ == "__main__":
    run_recipe(main)
