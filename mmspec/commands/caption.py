"""`mmspec caption`: describe pictures and clips, or answer questions about them; for a folder, as a job."""

from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from mmspec.commands import common
from mmspec.commands.common import FILES, HOW, SHOW, WHAT, option
from mmspec.utils.places import Writes

if TYPE_CHECKING:
    from mmspec.run.config import Config

EXAMPLES = """Examples:

\b
  mmspec caption picture.png
  mmspec caption picture.png "how many red circles?"
  mmspec caption left.png right.png "describe both pictures." --view own+newline
  mmspec caption clip.mp4 "what happens?" --model Qwen/Qwen2.5-VL-7B-Instruct --fps 2
  mmspec caption picture.png --view caption --caption "two red circles" --compare
  mmspec caption photos/ "what do you see?" --out answers.jsonl --batch-size 16
  mmspec caption one.png two.png --out answers.jsonl
  mmspec caption cat.jpg "What is this?" --model Qwen/Qwen2.5-VL-7B-Instruct --drafter Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16
  mmspec caption cat.jpg "<image>caption en" --no-chat --model google/paligemma-3b-mix-224
"""
_INPUTS = (
    "Pictures or clips (.mp4, .mkv, .webm, .mov, .avi), and then what to ask about them ('describe the picture.' by default). Several are "
)
_INPUTS += "asked about together; with --out each by itself, as is each of a folder, or every line of a JSON lines file (file(s), prompt)."
_MODEL = "Vision-language target: the shipped mini (default), a folder or a hub name."
_CAPTION = "What the caption view reads in place of pictures; once, or once a picture."
_CHAT = "Put the prompt in the model's chat template; by default where it has one."
_PROMPT = (
    "What to ask, where it is not the last argument; <image> marks where pictures stand and <video> where clips do, in front by default."
)
_FPS = "Take F frames a second of clips; by default as the model's video processor does."
_FRAMES = "Take N frames of each clip, evenly spaced, in place of --fps."
_OUT = "A batch: answers.jsonl (its job in answers.job, so that the same command goes on where it stopped), or a folder for a job's shards."
_ENGINE = "local (default; also under torchrun) or ray."


def caption(
    inputs: Annotated[list[str] | None, typer.Argument(help=_INPUTS, metavar="FILE... [PROMPT]")] = None,
    model: Annotated[str | None, option(WHAT, _MODEL, metavar="PATH")] = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    config: common.CONFIG = None,
    changes: common.SET = None,
    allow_code: common.ALLOW_CODE = False,
    drafter: common.DRAFTER = None,
    view: common.VIEW = None,
    captions: Annotated[list[str] | None, option(HOW, _CAPTION, "--caption", metavar="TEXT")] = None,
    accept: common.ACCEPT_RULE = None,
    draft_length: common.LENGTH = None,
    tree: common.TREE = None,
    stop_below: common.STOP_BELOW = None,
    references: common.REFERENCES = None,
    temperature: common.TEMPERATURE = None,
    top_k: common.TOP_K = None,
    top_p: common.TOP_P = None,
    repetition_penalty: common.PENALTY = None,
    seed: common.SEED = None,
    max_new_tokens: common.MAX_NEW = None,
    prompt: Annotated[str | None, option(FILES, _PROMPT, metavar="TEXT")] = None,
    chat: Annotated[bool | None, option(FILES, _CHAT, "--chat/--no-chat")] = None,
    fps: Annotated[float | None, option(FILES, _FPS, "--fps", metavar="F")] = None,
    frames: Annotated[int | None, option(FILES, _FRAMES, "--frames", metavar="N")] = None,
    out: Annotated[str | None, option(FILES, _OUT, "--out", "--output", metavar="PATH"), Writes(beside=("inputs",))] = None,
    engine: Annotated[str, option("Bulk", _ENGINE, metavar="NAME")] = "local",
    batch_size: Annotated[int, option("Bulk", "Pictures decoded in one batch; 8 by default.", metavar="N")] = 8,
    shard_size: Annotated[
        int, option("Bulk", "Pictures a shard, the work that an interruption may lose; 64 by default.", metavar="N")
    ] = 64,
    compare: Annotated[bool, option(SHOW, "Decode without a drafter too, and show both.", "--compare")] = False,
    show_rounds: Annotated[bool, option(SHOW, "Underline accepted draft tokens as they commit.", "--show-rounds")] = False,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Describe pictures and clips or answer questions about them: the tokens of plain decoding, in fewer calls of the target."""
    given = dict(locals())
    common.check_counts(given, "batch_size", "shard_size")
    if out is not None and not out.strip():
        raise ValueError("--out is empty: give answers.jsonl, or a folder")
    common.begin(verbose)
    from mmspec.text.inputs.pictures import split_arguments

    files, last = split_arguments(inputs or [])
    if not files:
        raise ValueError('no picture: give one (mmspec caption picture.png "what do you see?"), or a folder with --out answers.jsonl')
    if prompt is not None and last is not None:
        raise ValueError(f"--prompt and {last!r} were both given: give one prompt; pictures end in .png, .jpg, ..., clips in .mp4, ...")
    question = prompt if prompt is not None else last
    if question is not None and not question.strip():
        raise ValueError("the prompt is empty: ask something, or leave it out to have the picture described")
    settings = common.config_of(given)
    if settings.target.path == "mini":
        settings = replace(settings, target=replace(settings.target, path="vlm"))
    if out is not None:
        _many(settings, given, files, question)
    else:
        _one(settings, given, files, question)


# --- one request ----------------------------------------------------------------------------------------------------------


def _one(config: "Config", given: dict[str, Any], files: list[str], question: str | None) -> None:
    """Answer one prompt about all of the pictures, printing the answer as it commits."""
    from mmspec.bench.report.stream import Flow, summary
    from mmspec.jobs.captions import load_seeing
    from mmspec.text.inputs.clips import FrameSampling, is_clip
    from mmspec.text.inputs.vision_inputs import read_seen

    common.refuse_unread("belongs to a batch: give --out, or leave it out", "--engine", "--batch-size", "--shard-size")
    if not any(is_clip(name) for name in files):
        common.refuse_unread("is for clips, and only pictures were given: leave it out", "--fps", "--frames")
    for name in files:
        if Path(name).is_dir() or Path(name).suffix == ".jsonl":
            raise ValueError(f"{name} is a batch: give --out answers.jsonl, where its answers go")
    request = read_seen(question, files, sampling=FrameSampling(given["fps"], given["frames"]))  # before a model is loaded
    captions = tuple(given["captions"] or ())
    pair = common.waiting(config, partial(load_seeing, config, given["chat"], given["view"], captions))
    inputs = pair.inputs([request])
    plain = _plainly(pair, inputs) if given["compare"] else None
    with nullcontext() if given["as_json"] else Flow(pair.decode, given["show_rounds"]) as flow:
        if flow is None:
            with common.progress("caption", config.run.max_new_tokens) as done:
                found = pair.generate(inputs, on_step=lambda step: done(len(step.committed.values[0])))
        else:
            found = pair.generate(inputs, on_step=flow)
    if given["as_json"]:
        common.emit(_as_json(given, pair, files, request.prompt, found, plain))
    elif plain is None:
        common.note(summary(found.stats))
        common.note_cut(found.finish_reasons, "answer", f"--max-new-tokens {config.run.max_new_tokens}")
    else:
        _beside(pair, found, plain)


def _plainly(pair: Any, inputs: dict[str, Any]) -> Any:
    """Decode without a drafter. Both methods have run once before, so that neither is charged for first allocations."""
    plain: dict[str, Any] = {"drafter": None, "tree": None}
    for changes in (plain, {}):
        pair.generate(inputs, **changes, max_new_tokens=2)
    return pair.generate(inputs, **plain)


def _as_json(given: dict[str, Any], pair: Any, files: list[str], prompt: str, found: Any, plain: Any) -> dict[str, Any]:
    from mmspec.text.inputs.clips import is_clip

    ids = _ids(found)
    about = {"model": pair.name, "drafter": pair.drafter_name, "view": given["view"], "settings": asdict(pair.config)}
    clips = [name for name in files if is_clip(name)]
    seen = {"pictures": [name for name in files if name not in clips]} | ({"clips": clips} if clips else {})
    answer = {
        **seen,
        "prompt": prompt,
        "answer": pair.decode(ids),
        "tokens": ids,
        "finish_reason": found.finish_reasons[0],
        **about,
        "stats": found.stats.to_dict(),
    }
    if plain is not None:
        answer["compare"] = {"answer": pair.decode(_ids(plain)), "same": _ids(plain) == ids, "stats": plain.stats.to_dict()}
    return answer


def _ids(found: Any) -> list[int]:
    return found.sequences[0, : found.lengths[0]].tolist()


def _beside(pair: Any, found: Any, plain: Any) -> None:
    """Print plain and speculative decoding, line by line."""
    table = Table("way", "tokens", "calls", "tokens per call", "seconds", Column("exactness", no_wrap=True))
    for name, stats in (("plain", plain.stats), (Path(pair.drafter_name).name, found.stats)):
        figures = [f"{stats.tokens_per_call:.2f}", f"{stats.seconds['total']:.3f}", stats.exactness]
        table.add_row(name, str(stats.tokens), str(stats.row_calls), *figures)
    show = common.console(False)
    show.print(table)
    same = _ids(plain) == _ids(found)
    times = plain.stats.seconds["total"] / max(found.stats.seconds["total"], 1e-9)
    show.print(f"{'the same tokens' if same else 'other tokens: ' + pair.decode(_ids(plain))}; {times:.2f} x plain", soft_wrap=True)


# --- a batch --------------------------------------------------------------------------------------------------------------


def _many(config: "Config", given: dict[str, Any], files: list[str], question: str | None) -> None:
    """Answer about every picture by itself, as a job."""
    for name, value in (("--show-rounds", given["show_rounds"]), ("--compare", given["compare"])):
        if value:
            raise ValueError(f"--out and {name} were both given: give one of them")
    if given["engine"] not in ("local", "ray"):
        raise ValueError(f"unknown engine {given['engine']!r}; valid: local, ray")
    from mmspec.jobs import run
    from mmspec.jobs.captions_job import CaptionJobSpec, job_folder, make_caption_job, one_file
    from mmspec.text.inputs.clips import FrameSampling

    asking = CaptionJobSpec(
        config,
        tuple(files),
        job_folder(given["out"]),
        question,
        given["chat"],
        given["view"],
        tuple(given["captions"] or ()),
        batch_size=given["batch_size"],
        shard_size=given["shard_size"],
        sampling=FrameSampling(given["fps"], given["frames"]),
    )
    report = run(partial(make_caption_job, asking), engine=given["engine"])
    if report is None:  # process 0 of a launch reports
        return
    common.some_output(report, "pictures", "line" if files[0].endswith(".jsonl") else "picture")
    one_file(report, given["out"])
    calls = report.measures["tokens"] / max(1, report.measures["row_calls"])
    if given["as_json"]:
        found = {key: getattr(report, key) for key in ("records", "outputs", "rejects", "shards", "resumed", "seconds", "rate", "measures")}
        common.emit({**found, "out": given["out"], "tokens_per_call": calls})
    else:
        common.console(False).print(f"{report}; {calls:.2f} tokens per call: {given['out']}", soft_wrap=True)
