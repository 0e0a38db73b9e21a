"""Continue every prompt of a JSON-lines file in batches: results and a manifest beside them appear whole or not at all.

    python text/generate_batch.py prompts.jsonl --out out.jsonl --batch-size 16
    python text/generate_batch.py prompts.jsonl --out out.jsonl --model ./big --drafter ./small --device cuda --dtype bfloat16

Input: one object per line with "prompt"; its other keys are kept. Output: the same objects with "text" and "tokens" (ids), in
order. Record i draws with seed + i, so the output does not depend on the batch size. OUT.manifest.json tells the settings, the
counts, and what it ran on.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from rich.progress import track

from mmspec.bench.provenance import provenance
from mmspec.config import Config, DrafterSection, RunSection, TargetSection
from mmspec.core.stats import Stats
from mmspec.jobs.bulk import run_bulk
from mmspec.jobs.files import read_prompts, whole, write_json
from mmspec.text.pairs import load_pair, named_drafter


def run(args: argparse.Namespace) -> dict:
    """Generate, write, and return the manifest."""
    records = read_prompts(args.prompts)
    kind, path = named_drafter(args.drafter)
    config = Config(
        target=TargetSection(path=args.model, dtype=args.dtype, device=args.device),
        drafter=DrafterSection(kind=kind, path=path),
        run=RunSection(max_new_tokens=args.max_new_tokens, temperature=args.temperature, seed=args.seed),
    )
    stats, start = Stats(), perf_counter()
    with whole(args.out) as sink:
        pair = load_pair(config)
        for row in track(run_bulk(pair, records, args.batch_size, stats), "prompts", total=len(records)):
            sink.write(json.dumps(row, ensure_ascii=False) + "\n")
    seconds = perf_counter() - start
    manifest = {"prompts": len(records), "seconds": seconds, "prompts_per_second": len(records) / seconds, "settings": asdict(config)}
    manifest |= {"batch_size": args.batch_size, "stats": stats.to_dict(), "provenance": provenance(pair.target.device)}
    write_json(f"{args.out}.manifest.json", manifest)
    return manifest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, nargs="?", help="JSON lines with a prompt each, or a text file with one a line")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", default="mini", help="the shipped mini, a folder or a hub name")
    parser.add_argument("--drafter", default="model", help="a name that `mmspec models` lists, or a path")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--smoke", action="store_true", help="three made-up prompts, a few tokens")
    args = parser.parse_args()
    try:
        if args.smoke:
            with TemporaryDirectory() as folder:
                args.prompts, args.out, args.max_new_tokens, args.batch_size = Path(folder, "in.jsonl"), Path(folder, "out.jsonl"), 8, 2
                args.prompts.write_text("".join(json.dumps({"id": n, "prompt": f"Story: {n} birds"}) + "\n" for n in range(3)))
                manifest = run(args)
                assert len(args.out.read_text().splitlines()) == 3
        elif args.prompts is None or args.out is None:
            parser.error("give a prompts file and --out FILE, or --smoke")
        else:
            manifest = run(args)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    stats = manifest["stats"]
    print(f"{manifest['prompts']} prompts, {manifest['prompts_per_second']:.2f} a second, {stats['tokens_per_call']:.2f} tokens per call")


if __name__ == "__main__":
    main()
