"""What verifying several draft tokens costs beside one token, against the floor that memory bandwidth sets, eager and captured.

    python text/measure_verify_step.py                          # CUDA: a target of Llama 7B's shape, random weights, bfloat16
    python text/measure_verify_step.py --layers 8 --context 2048 --out verify.json

One verify step is one `score` of a session: N draft nodes on a cached context, logits back in float32. The floor is the time to
read the weights once: their bytes (the input embedding's table left out, as a step reads only its rows) over the bandwidth that a
large copy on this device reaches. Captured means torch.compile with mode="reduce-overhead" (CUDA graphs) around fixed shapes and
addresses. On a CPU, or with --smoke, a tiny model shows that everything runs; its figures mean nothing.
"""

import argparse
from pathlib import Path

import torch

from mmspec.bench.suites.verify_step import SEVEN_B, TINY, random_llama, verify_steps
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import machine, provenance


def measure(args: argparse.Namespace, device: torch.device) -> dict:
    """Every figure of the table."""
    real = device.type == "cuda" and not args.smoke
    shape = SEVEN_B | ({} if args.layers is None else {"num_hidden_layers": args.layers}) if real else TINY
    model = random_llama(shape, device, torch.bfloat16 if real else torch.float32)
    options = {} if real else {"backend": "eager", "mode": None}  # a CPU has no graphs to capture
    rows, floor = verify_steps(model, args.tokens, args.context, args.repeats, options)
    return floor | {"context": args.context, "shape": shape, "rows": rows}


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 16], help="nodes of a verify step")
    parser.add_argument("--context", type=int, default=512, help="cached positions")
    parser.add_argument("--layers", type=int, help="fewer layers than Llama 7B's 32")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path, help="JSON with every figure and its provenance")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on the CPU")
    args = parser.parse_args()
    if args.smoke:
        args.repeats, args.context, args.tokens = 3, 16, [1, 8]
    device = torch.device("cuda" if torch.cuda.is_available() and not args.smoke else "cpu")
    found = measure(args, device) | {"provenance": provenance(device)}
    print(f"Weights read: {found['weight_bytes'] / 1e9:.3f} GB; copy bandwidth {found['bytes_per_second'] / 1e9:.0f} GB/s;", end=" ")
    print(f"floor {found['floor_ms']:.3f} ms; context {args.context}; {machine(found['provenance'])}; torch {torch.__version__}\n")
    print("| run | tokens | ms (quartiles) | times floor | times one token |\n|---|---|---|---|---|")
    ones = {row["run"]: row["ms"] for row in found["rows"] if row["tokens"] == 1}
    for row in found["rows"]:
        ratio = f"{row['ms'] / ones[row['run']]:.2f}" if row["run"] in ones else ""
        spread = f"{row['ms']:.2f} ({row['low']:.2f}-{row['high']:.2f})"
        print(f"| {row['run']} | {row['tokens']} | {spread} | {row['times_floor']:.2f} | {ratio} |")
    if args.out is not None:
        write_json(args.out, found)


if __name__ == "__main__":
    main()
