"""Ask about every picture and clip of a folder, or every line of a file, in shards: a killed run is started again and goes on where it was.

    python text/caption_batch.py photos --prompt "what do you see?" --out answers.jsonl --batch-size 16
    python text/caption_batch.py asked.jsonl --out answers --model ./big --drafter ./small --view own+newline --device cuda --dtype bfloat16
    accelerate launch text/caption_batch.py photos --out answers --model ./big --drafter ./small
    python text/caption_batch.py photos --out answers --model ./big --drafter ./small --engine ray

Input: a folder of pictures and clips, or JSON lines with "file" (or "files", asked about together) and, if wished, "prompt"; other keys
are kept. Output: "index", "file", "prompt", "answer" and "tokens" (ids), a line a picture: one file where --out ends in .jsonl (its job
lies beside it), else a folder of out/part-00000.jsonl and so on. Pictures that cannot be read go to rejects.jsonl of the job. Record i
draws with seed + i, so the output does not depend on shards, batches or processes. docs/jobs.md tells what may change when a job goes on.
"""

import argparse
from dataclasses import fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from mmspec.jobs import Report, Stopped, run
from mmspec.jobs.captions_job import CaptionJobSpec, job_folder, make_caption_job, one_file
from mmspec.jobs.rows import BATCHING
from mmspec.loading.text import named_drafter
from mmspec.run.config import AcceptSection, Config, DrafterSection, RunSection, TargetSection
from mmspec.text.inputs.clips import FrameSampling
from mmspec.utils.recipe_options import RecipeParser, run_recipe, typed_length


def asked_for(args: argparse.Namespace) -> CaptionJobSpec:
    kind, path = named_drafter(args.drafter or ("model" if args.model == "mini" else "lookup"))
    config = Config(
        target=TargetSection(path="vlm" if args.model == "mini" else args.model, dtype=args.dtype, device=args.device),
        drafter=DrafterSection(kind=kind, path=path, length=typed_length(args.draft_length)),
        accept=AcceptSection(kind=args.accept),
        run=RunSection(**{field.name: getattr(args, field.name) for field in fields(RunSection)}),
    )
    captions = tuple(args.caption or ())
    told = {
        "chat": args.chat,
        "prompt": args.prompt,
        "view": args.view,
        "captions": captions,
        "batch_size": args.batch_size,
        "batching": args.batching,
        "shard_size": args.shard_size,
    }
    return CaptionJobSpec(config, (str(args.pictures),), job_folder(args.out), sampling=FrameSampling(args.fps, args.frames), **told)


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("pictures", type=Path, nargs="?", help="a folder of pictures, or JSON lines with a file each")
    parser.add_argument("--out", type=Path, help="answers.jsonl, or a folder; that of the same job, to go on with it")
    parser.add_argument("--prompt", help="what is asked where a line does not say; to describe the picture or video by default")
    parser.add_argument("--fps", type=float, help="frames taken a second of clips; as the model's video processor says by default")
    parser.add_argument("--frames", type=int, help="frames taken of each clip, evenly spaced, in place of --fps")
    parser.add_argument("--model", default="mini", help="the shipped mini, a folder or a hub name")
    parser.add_argument("--drafter", help="a name that `mmspec models` lists, or a path; the mini's own, or lookup, by default")
    parser.add_argument("--view", help="what the drafter reads: drop, newline, caption, own, pooled, pruned, or several joined by +")
    parser.add_argument("--caption", action="append", help="what the caption view reads in place of a picture")
    parser.add_argument("--accept", default="exact")
    parser.add_argument("--chat", action=argparse.BooleanOptionalAction, help="by the model's chat template; where it has one, by default")
    parser.add_argument("--draft-length", default="auto")
    parser.add_argument("--batch-size", type=int, default=8, help="pictures that are asked about at a time")
    parser.add_argument("--batching", choices=BATCHING, help="questions join as others end (default without a drafter), or wait")
    parser.add_argument("--shard-size", type=int, default=64, help="pictures a file of results; what a killed run may lose")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, least=0, help="draw from the K most likely tokens only")
    parser.add_argument("--top-p", type=float, most=1, help="draw from the smallest set of tokens with this total probability")
    parser.add_argument("--repetition-penalty", type=float, help="divide the logits of tokens that occurred; 1 for none")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--engine", default="local", help="local (one process, or those of a launch) or ray (a cluster)")
    parser.add_argument("--smoke", action="store_true", help="two drawn pictures and a broken one, a tiny model, a few tokens")
    args = parser.parse_args()
    try:
        if args.smoke:
            report = smoke(args)
        elif args.pictures is None or args.out is None:
            parser.error("give a folder of pictures and --out answers.jsonl, or --smoke")
        else:
            report = ask(args)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    except Stopped as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    if report is not None:
        counted = report.measures
        rate, share = report.outputs / max(report.seconds, 1e-9), counted["tokens"] / max(1, counted["row_calls"])
        print(f"{report}; {rate:.2f} answers a second, {share:.2f} tokens per call")


def ask(args: argparse.Namespace) -> Report | None:
    report = run(partial(make_caption_job, asked_for(args)), args.engine)
    if report is not None:
        one_file(report, args.out)
    return report


def smoke(args: argparse.Namespace) -> Report | None:
    """Draws, answers with an untrained model, and looks at what came out."""
    from mmspec.minis import vlm_model as sights
    from mmspec.minis.drawn import scenes

    with TemporaryDirectory() as folder:
        args.pictures, args.out, args.model = Path(folder, "in"), Path(folder, "out.jsonl"), f"{folder}/model"
        args.drafter, args.max_new_tokens, args.batch_size, args.shard_size = "lookup", 6, 2, 2
        args.pictures.mkdir()
        for number, scene in enumerate(scenes.scenes(0, 2)):
            scenes.draw_scene(scene).save(args.pictures / f"{number}.png")
        (args.pictures / "2.png").write_bytes(b"broken")
        processor = sights.new_processor()
        processor.save_pretrained(args.model)
        sights.new_llava(processor, width=32, layers=1, heads=1, feed=32, vision_width=16).save_pretrained(args.model)
        report = ask(args)
        assert report
        assert (report.outputs, report.rejects, len(args.out.read_text().splitlines())) == (2, 1, 2)
        return report


if __name__ == "__main__":
    run_recipe(main)
