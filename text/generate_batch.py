"""Continue every prompt of a file into a folder: in shards, so that a killed run is started again and goes on where it was.

    python text/generate_batch.py prompts.jsonl --out out --batch-size 16
    python text/generate_batch.py prompts.jsonl --out out --model ./big --drafter ./small --device cuda --dtype bfloat16
    torchrun --nproc-per-node 8 text/generate_batch.py prompts.jsonl --out out --model ./big --drafter ./small
    python text/generate_batch.py prompts.jsonl --out out --model ./big --drafter ./small --engine ray

Input: one object per line with "prompt", its other keys are kept; or a text file with one prompt a line. Output: the same objects
with "index", "text" and "tokens" (ids) in out/part-00000.jsonl and so on, in order; `cat out/part-*.jsonl` is all of it. Lines that
are no prompts go to out/rejects.jsonl. The line at index i draws with seed + i, so the output does not depend on shards, batches or
processes. docs/jobs.md tells the files and what may change when a job goes on.
"""

import argparse
import json
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from mmspec.jobs import Job, JsonLines, Lines, Processes, Stopped, run
from mmspec.jobs.text import Continue, text_job_identity
from mmspec.loading.text import load_pair, named_drafter
from mmspec.run.config import AcceptSection, Config, DrafterSection, RunSection, TargetSection
from mmspec.utils.provenance import provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe, typed_length


def make_job(args: argparse.Namespace) -> Job:
    """Load the pair, and say what to do with it."""
    kind, path = named_drafter(args.drafter)
    config = Config(
        target=TargetSection(path=args.model, dtype=args.dtype, device=Processes.here().device(args.device)),
        drafter=DrafterSection(kind=kind, path=path, length=typed_length(args.draft_length)),
        accept=AcceptSection(kind=args.accept),
        run=RunSection(**{field.name: getattr(args, field.name) for field in fields(RunSection)}),
    )
    source = Lines(args.prompts)
    work = Continue(replace(load_pair(config), chat=args.chat), rows=args.batch_size, continuous=args.batching == "continuous")
    model, options = text_job_identity(work.pair)
    return Job(
        source=source,
        sink=JsonLines(),
        work=work,
        check=work.check,
        out=args.out,
        model=model,
        options=options,
        batch_size=args.shard_size,  # the worker takes a shard and runs `rows` of its records at a time
        shard_size=args.shard_size,
        about=provenance(work.pair.target.device) | {"exactness": work.pair.exactness, "rows": args.batch_size, "batching": args.batching},
        measures=work.measures,
    )


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("prompts", type=Path, nargs="?", help="JSON lines with a prompt each, or a text file with one a line")
    parser.add_argument("--out", type=Path, help="a new folder, or that of the same job, to go on with it")
    parser.add_argument("--model", default="mini", help="the shipped mini, a folder or a hub name")
    parser.add_argument("--drafter", default="model", help="a name that `mmspec models` lists, or a path")
    parser.add_argument("--accept", default="exact", help="a rule that `mmspec models` lists")
    parser.add_argument("--draft-length", default="auto", help="draft tokens a round: a number, auto or thompson")
    parser.add_argument("--chat", action="store_true", help="wrap prompts in the model's chat template")
    parser.add_argument("--batch-size", type=int, default=8, help="prompts that run at a time")
    parser.add_argument("--batching", choices=("continuous", "static"), default="continuous", help="prompts join as others end, or wait")
    parser.add_argument("--shard-size", type=int, default=256, help="lines a file of results; what a killed run may lose")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, least=0, help="draw from the K most likely tokens only")
    parser.add_argument("--top-p", type=float, most=1, help="draw from the smallest set of tokens with this total probability")
    parser.add_argument("--repetition-penalty", type=float, help="divide the logits of tokens that occurred; 1 for none")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--engine", default="local", help="local (one process, or those of torchrun) or ray (a cluster)")
    parser.add_argument("--smoke", action="store_true", help="three made-up prompts and a bad one, a few tokens")
    args = parser.parse_args()
    try:
        if args.smoke:
            with TemporaryDirectory() as folder:
                args.prompts, args.out = Path(folder, "in.jsonl"), Path(folder, "out")
                args.max_new_tokens, args.batch_size, args.shard_size = 8, 2, 2
                lines = [json.dumps({"id": n, "prompt": f"Story: {n} birds"}) for n in range(3)]
                args.prompts.write_text("\n".join([*lines, "no JSON"]))
                report = run(partial(make_job, args), args.engine)
                assert report
                assert (report.outputs, report.rejects) == (3, 1)
        elif args.prompts is None or args.out is None:
            parser.error("give a prompts file and --out FOLDER, or --smoke")
        else:
            report = run(partial(make_job, args), args.engine)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    except Stopped as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    if report is not None:
        counted = report.measures
        rate, share = report.outputs / max(report.seconds, 1e-9), counted["tokens"] / max(1, counted["row_calls"])
        print(f"{report}; {rate:.2f} outputs a second, {share:.2f} tokens per call")


if __name__ == "__main__":
    run_recipe(main)
