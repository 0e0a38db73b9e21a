"""Pictures that join against batches that wait: forwards and process CPU time of both. `python -m tests.jobs.picture_batching --help`."""

import argparse
from collections.abc import Iterator
from itertools import product
from statistics import median
from time import process_time
from typing import Any

import torch

from mmspec.jobs.pictures import Draw
from mmspec.jobs.rows import BATCHING
from mmspec.loading.vision import Loaded, load_image_model
from mmspec.vision.codes.registry import can_draw, method_of
from mmspec.vision.plan import usual_window


def drawn(loaded: Loaded, options: dict[str, Any], batching: str, pictures: int, rows: int) -> tuple[list[bytes], int, float]:
    """The bytes of the pictures, forwards, and seconds of process CPU time."""
    work = Draw(loaded, options, rows=rows, continuous=batching == "continuous")
    prompts = [loaded.examples[n % len(loaded.examples)] for n in range(pictures)]
    begun = process_time()
    found = [content for content, _ in work([(index, {"prompt": prompt}) for index, prompt in enumerate(prompts)])]
    return found, int(work.measures()["target_calls"]), process_time() - begun


def measured(args: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """A line for every model, method, guidance and batch size. Both ways take turns."""
    for name, method, guidance, rows in product(args.models, args.methods, args.guidance, args.rows):
        loaded = load_image_model(name)
        if not can_draw(loaded.model, method):
            continue
        options = {"method": method, "guidance": guidance}
        options |= {"window": args.window or usual_window(method_of(method))} if method_of(method).windowed else {}
        turns = [{way: drawn(loaded, options, way, args.pictures, rows) for way in BATCHING} for _ in range(args.repeats)]
        joined, static = (turns[0][way] for way in BATCHING)
        assert joined[0] == static[0], "the pictures differ"
        ratios = sorted(turn["continuous"][2] / turn["static"][2] for turn in turns)
        seconds = [f"{median(turn[way][2] for turn in turns):.2f}" for way in ("static", "continuous")]
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        yield name, method, f"{guidance:g}", str(rows), str(static[1]), str(joined[1]), *seconds, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["vision", "vision-fashion"])
    parser.add_argument("--methods", nargs="+", default=["plain", "jacobi", "assisted", "assisted-jacobi"])
    parser.add_argument("--guidance", type=float, nargs="+", default=[1.0, 2.0])
    parser.add_argument("--rows", type=int, nargs="+", default=[8], help="pictures that are drawn at a time")
    parser.add_argument("--window", type=int, help="default: the methods' own")
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    head = ("model", "method", "guidance", "rows", "forwards static", "joining", "CPU s static", "joining", "joining / static (spread)")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for line in measured(args):
        print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
