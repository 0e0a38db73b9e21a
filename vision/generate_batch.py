"""Draw a picture for every prompt of a file into a folder: in shards, so that a killed run is started again and goes on where it was.

    python vision/generate_batch.py prompts.txt --out out --batch-size 16
    python vision/generate_batch.py prompts.jsonl --out out --model vision-fashion --method jacobi --guidance 3
    python vision/generate_batch.py prompts.jsonl --out out --model continuous --method path --window 5
    python vision/generate_batch.py classes.jsonl --out out --model c2i_B_256.pt --decoder vq_ds16_c2i.pt --guidance 4
    python vision/generate_batch.py prompts.jsonl --out out --model continuous --method chain --head-steps 64 --draft-steps 14
    torchrun --nproc-per-node 8 vision/generate_batch.py prompts.jsonl --out out --model ./janus --dtype bfloat16
    python vision/generate_batch.py prompts.jsonl --out out --model ./janus --dtype bfloat16 --engine ray

Input: one object per line with "prompt" (or "class", for models that draw classes) and, if wished, "seed"; its other keys are kept. Or a
text file with one prompt a line. Output: out/images/000123.png, named by the line's index, and the same objects with "index", "seed" and
"file" in out/part-00000.jsonl and so on. Lines that ask for nothing, or for a class the model does not know, go to out/rejects.jsonl.
The line at index i is drawn with its own seed or with seed + i, so a picture does not depend on shards, batches or processes. (Continuous
tokens show the batch size in their last digits, so it is one of a job's options there.)
docs/jobs.md tells the files and what may change when a job goes on.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from mmspec.jobs import Job, Lines, NumberedFiles, Processes, Stopped, run
from mmspec.jobs.pictures import Draw, picture_job_identity
from mmspec.jobs.rows import BATCHING
from mmspec.loading.text import device_of
from mmspec.loading.vision import Loaded, check_decoder, is_continuous, is_file_model, load_image_model
from mmspec.utils.provenance import provenance
from mmspec.utils.recipe_options import RecipeParser, run_recipe
from mmspec.vision import LlamaGen, LlamaGenConfig
from mmspec.vision.codes.methods import METHODS
from mmspec.vision.codes.published import PUBLISHED
from mmspec.vision.codes.registry import method_of
from mmspec.vision.continuous.generation import WINDOW as TOKENS
from mmspec.vision.continuous.methods import CONTINUOUS_METHODS, ContinuousPictures, way_of
from mmspec.vision.families.llamagen import LlamaGenPictures
from mmspec.vision.plan import default_method, usual_window
from mmspec.vision.quality.contact_sheets import temperature


def make_job(args: argparse.Namespace, loaded: Loaded | None = None) -> Job:
    """Load the model, and say what to do with it."""
    source, named = Lines(args.prompts), args.method  # what is not there is told before a model is loaded
    if named is not None:
        continuous = is_continuous(args.model) if loaded is None else isinstance(loaded.model, ContinuousPictures)
        (way_of if continuous else method_of)(named)
    loaded = loaded or load(args)
    check_decoder(loaded)
    scale = loaded.guidance if args.guidance is None else args.guidance
    vectors = isinstance(loaded.model, ContinuousPictures)
    method = named or (loaded.model.method if vectors else default_method())
    drafts = method not in ("plain", "chain") if vectors else method_of(method).windowed
    own = {"method": method} | ({"window": TOKENS if vectors else usual_window(method_of(method))} if drafts else {})
    sized = () if is_file_model(args.model) else ("size",)  # of a file it is a matter of loading
    names = ("method", "window", "temperature", "top_k", "top_p", "drift_budget", "head_steps", "sigma_out", "draft_steps", *sized)
    options: dict[str, Any] = own | {name: value for name in names if (value := getattr(args, name)) is not None} | {"guidance": scale}
    joining = drafts if args.batching is None else args.batching == "continuous"
    work = Draw(loaded, options, args.seed, args.batch_size, joining)
    return Job(
        source=source,
        sink=NumberedFiles(".png", "images"),
        work=work,
        check=work.check,
        out=args.out,
        model=picture_job_identity(work, drafts=not vectors and method_of(options["method"]).shape is not None),
        options=options | {"seed": args.seed, "dtype": args.dtype} | ({"batch_size": args.batch_size} if vectors else {}),
        batch_size=args.shard_size,  # the worker takes a shard and draws `batch_size` of its pictures at a time
        shard_size=args.shard_size,
        about=provenance(loaded.model.model.device) | {"rows": args.batch_size, "batching": BATCHING[not work.joins]},
        measures=work.measures,
        unit="pictures",
    )


def load(args: argparse.Namespace) -> Loaded:
    """Load the model with the decoder, text encoder and size that were given."""
    own = {"decoder": args.decoder, "captions": args.captions} | ({"size": args.size} if is_file_model(args.model) else {})
    return load_image_model(args.model, args.dtype, device_of(Processes.here().device(args.device)), **own)


def steps(text: str) -> int | str:
    """A number, or "auto"; other words are refused where the method is known."""
    return int(text) if text.lstrip("-").isdigit() else text


def tiny() -> Loaded:
    """A random target of three classes, whose codes are shown as colours."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    net = LlamaGen(LlamaGenConfig(vocab_size=32, grid=4, classes=3, **sizes)).eval()
    return Loaded("tiny", LlamaGenPictures(net, lambda codes: [temperature(each, 32) for each in codes], labels=("cat", "dog", "owl")))


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("prompts", type=Path, nargs="?", help="JSON lines with a prompt or class each, or a text file with one a line")
    parser.add_argument("--out", type=Path, help="a new folder, or that of the same job, to go on with it")
    parser.add_argument("--model", default="mini", help="mini, vision-fashion, continuous, a folder or a hub name")
    parser.add_argument("--decoder", help="the file of the picture decoder, for LlamaGen files, Chameleon, Anole and Lumina-mGPT")
    parser.add_argument("--captions", help="the folder of the T5 encoder, for LlamaGen files of captions")
    parser.add_argument("--method", help=f"{', '.join((*METHODS, *PUBLISHED))}; of continuous tokens {', '.join(CONTINUOUS_METHODS)}")
    parser.add_argument("--window", type=int, help="tokens in flight a forward, by default the method's own")
    parser.add_argument("--guidance", type=float, help="scale; 1 for none, default the minis' own")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, help="draw from the K most likely codes only")
    parser.add_argument("--top-p", type=float, most=1, help="draw from the smallest set of codes with total probability P")
    parser.add_argument("--drift-budget", type=float, help="total variation a lossy method may spend on a picture")
    parser.add_argument("--head-steps", type=int, help="of continuous tokens: steps of the head's chain")
    parser.add_argument("--draft-steps", type=steps, help="of continuous tokens: steps of the chain drafted at once, 0 to 31, or auto")
    parser.add_argument("--sigma-out", type=float, help="of continuous tokens: the noise on every token that is a part of the distribution")
    parser.add_argument("--size", type=int, help="pixels a side, for models that draw several sizes")
    parser.add_argument("--seed", type=int, least=0, default=0)
    parser.add_argument("--batch-size", type=int, default=8, help="pictures that are drawn at a time")
    parser.add_argument("--batching", choices=BATCHING, help="pictures join as others end (default with drafts), or wait")
    parser.add_argument("--shard-size", type=int, default=256, help="pictures a shard; what a killed run may lose")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--engine", default="local", help="local (one process, or those of torchrun) or ray (a cluster)")
    parser.add_argument("--smoke", action="store_true", help="three pictures of a tiny random target, and two bad lines")
    args = parser.parse_args()
    try:
        if args.smoke:
            with TemporaryDirectory() as folder:
                args.prompts, args.out, args.batch_size, args.shard_size = Path(folder, "in.jsonl"), Path(folder, "out"), 2, 2
                asked = [{"prompt": "cat"}, {"prompt": "owl", "seed": 7}, {"prompt": "1"}, {"prompt": "unicorn"}]
                args.prompts.write_text("\n".join([*(json.dumps(line) for line in asked), "no JSON"]))
                report = run(partial(make_job, args, tiny()), args.engine)
                assert report
                assert (report.outputs, report.rejects) == (3, 2)
                assert len(list((args.out / "images").glob("*.png"))) == 3
        elif args.prompts is None or args.out is None:
            parser.error("give a prompts file and --out FOLDER, or --smoke")
        else:
            report = run(partial(make_job, args), args.engine)
    except (ValueError, FileNotFoundError) as error:
        parser.error(" ".join(str(error).split()))
    except Stopped as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    if report is not None:
        counted = report.measures
        forwards = counted["row_calls"] / max(1, counted["pictures"])
        print(f"{report}; {report.outputs / max(report.seconds, 1e-9):.2f} pictures a second, {forwards:.1f} forwards a picture")


if __name__ == "__main__":
    run_recipe(main)
