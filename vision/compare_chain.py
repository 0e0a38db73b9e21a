"""Speculation inside a diffusion head's chain beside plain sampling and fewer steps: calls of the head, states in them, quality, seconds.

    python vision/compare_chain.py --rounds 5 --out chain.json       (16, 64 and 128 steps, 400 pictures, batches of 1 and 8 timed)
    python vision/compare_chain.py --pictures 0 --windows 5        (also drafting over tokens, with and without drafting inside: counts)
    python vision/compare_chain.py --steps 64 --pictures 0 --rounds 5 --head 6 1024     (the cost of MAR-B's head; 8 1280: MAR-L's)

Calls, states and forwards of the backbone are a token's, counted on --counted pictures drawn one by one. Quality is the Frechet distance
of --pictures pictures, of other seeds in every row, to held-out Fashion-MNIST (MMSPEC_DATA): two rows of one distribution show its spread.
Seconds are ratios to "plain", taken in turns in one process: median and range. "modulations every step" does the head's work on timestep
and conditioning in every step, as published heads do; every other row does it once a token. cspd-compat and the two rows before it are of
the mini's masked model, which is another model: its rows are compared with its own plain decoding. `--head BLOCKS WIDTH` also runs a random
head of that size and drops its output: the tokens are the mini's, the cost is the large head's; quality is left out.
"""

import os
from pathlib import Path

import torch

from mmspec.bench.compare.chain import chain_rows, counts, time_rows
from mmspec.minis import HOME, pictures
from mmspec.minis.images import load_judge
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import machine, provenance
from mmspec.vision.codes import tokenizer
from mmspec.vision.quality.classifier import classify


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--steps", nargs="+", type=int, default=[16, 64, 128])
    parser.add_argument("--lengths", nargs="*", type=int, default=[], help="drafted steps a call beside the usual number")
    parser.add_argument("--fewer", nargs="*", type=int, default=[4], help="divisors of the steps of plain sampling beside it")
    parser.add_argument("--model", default="continuous", help="a mini or OUT/NAME of train_continuous.py, with a causal diffusion head")
    parser.add_argument("--windows", nargs="*", type=int, default=[], help="tokens in flight of method path, by every drafter")
    parser.add_argument("--counted", type=int, default=2, help="pictures whose calls are counted")
    parser.add_argument("--pictures", type=int, default=400, help="that are judged; 0 for none")
    parser.add_argument("--batch", type=int, default=50, help="of these")
    parser.add_argument("--rounds", type=int, default=0, help="interleaved rounds of seconds; 0 for none")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="that are timed")
    parser.add_argument("--head", nargs=2, type=int, metavar=("BLOCKS", "WIDTH"), help="run a random head of this size, too")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--smoke", action="store_true", help="one picture of four steps, no seconds")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.lengths, args.counted, args.pictures, args.rounds = [4], [2], 1, 0, 0
    args.pictures = 0 if args.head else args.pictures
    table, judge = (
        chain_rows(args.steps, args.lengths, args.fewer, args.head, args.model, args.windows),
        load_judge(HOME / "vision" / "fashion"),
    )
    counts(table, judge, args.counted, args.pictures, args.batch)
    for batch in args.batches if args.rounds else ():
        time_rows(table, batch, args.rounds)
    features = None
    if args.pictures:
        shown = torch.as_tensor(pictures.fashion(Path(os.environ.get("MMSPEC_DATA", "../shared/data")), "test")[0])
        features = torch.cat([classify(judge, tokenizer.as_tensor(some))[1] for some in shown.split(500)])
    about, lines = provenance(torch.device("cpu")), [row.cells(features) for row in table]
    if args.out:
        write_json(args.out, {"rows": lines, "settings": {k: str(v) for k, v in vars(args).items()}, "provenance": about})
    for line in lines:
        print(" | ".join(f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in line.items()))
    print(machine(about), about["date"])


if __name__ == "__main__":
    main()
