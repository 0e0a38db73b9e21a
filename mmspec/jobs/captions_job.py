"""Caption jobs: their settings, and what identifies them."""

import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from mmspec.core.rules.base import TOKEN_EXACT
from mmspec.jobs import Job, JsonLines, Processes, Report
from mmspec.jobs.captions import CaptionRecord, load_seeing, source_of
from mmspec.jobs.rows import BATCHING
from mmspec.jobs.text import text_job_identity
from mmspec.run.config import Config
from mmspec.text.inputs.clips import FrameSampling
from mmspec.text.inputs.vision_inputs import DESCRIBE
from mmspec.utils.files import whole
from mmspec.utils.names import unknown

_HELD = 4  # times as many pictures as are asked about at a time are read ahead, so that rows seldom stand empty


@dataclass(frozen=True)
class CaptionJobSpec:
    """Settings of a caption job: `inputs` are pictures and clips, one folder, or one file of JSON lines."""

    config: Config
    inputs: tuple[str, ...]
    out: Path  # the job's folder
    prompt: str | None = None  # None: to describe the picture or the video
    chat: bool | None = None  # None: where there is a template
    view: str | None = None
    captions: tuple[str, ...] = ()
    batch_size: int = 8  # pictures that are asked about at a time
    batching: str | None = None  # None: continuous without a drafter; with one the draft of a full batch was faster
    shard_size: int = 64
    sampling: FrameSampling = field(default_factory=FrameSampling)  # which frames of clips are taken


def make_caption_job(asked: CaptionJobSpec) -> Job:
    """Return the job. ValueError for missing files and invalid settings, before anything is written."""
    from mmspec.utils.provenance import provenance

    if asked.batching not in (None, *BATCHING):
        raise unknown("batching", asked.batching, BATCHING)
    if asked.batch_size < 1:
        raise ValueError(f"batch size is {asked.batch_size}: give at least 1")
    source, root = source_of(asked.inputs)  # what is not there is told before a model is loaded
    target = replace(asked.config.target, device=Processes.here().device(asked.config.target.device))
    pair = load_seeing(replace(asked.config, target=target), asked.chat, asked.view, asked.captions)
    length = pair.config.drafter.length
    if pair.exactness != TOKEN_EXACT and not isinstance(length, int):
        raise ValueError(
            f"accept {asked.config.accept.kind!r} draws otherwise with another draft length, and {length!r} follows the clock: "
            "give --draft-length a number, so that a job that goes on says the same"
        )
    batching = asked.batching or ("continuous" if pair.drafter is None else "static")
    rows, continuous = asked.batch_size, batching == "continuous" and len(asked.captions) < 2  # several are of a batch's pictures
    work = CaptionRecord(pair, asked.prompt, root, asked.sampling, rows=rows, continuous=continuous)
    model, options = text_job_identity(pair)
    sampling = {name: value for name, value in asdict(asked.sampling).items() if value is not None}
    return Job(
        source=source,
        sink=JsonLines(),  # pyright: ignore[reportArgumentType] - its extension is the class's
        work=work,
        check=work.check,
        out=asked.out,
        model=model,
        options=options | sampling | {"prompt": asked.prompt or DESCRIBE, "view": asked.view, "captions": list(asked.captions)},
        batch_size=_HELD * rows if continuous else rows,
        shard_size=asked.shard_size,
        unit="pictures",
        about=provenance(pair.target.device) | {"exactness": pair.exactness, "rows": rows, "batching": batching},
        measures=work.measures,
    )


def job_folder(out: str | Path) -> Path:
    """Return the job's folder for `out`: answers.job beside a file answers.jsonl, else `out` itself.

    Raises:
        ValueError: if `out` is a file of something else.
    """
    path = Path(out)
    if path.suffix != ".jsonl":
        return path
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder: name a file that ends in .jsonl, or a folder without that ending")
    folder = path.with_suffix(".job")
    if path.exists() and not (folder / "manifest.json").exists():
        raise ValueError(f"--out {path} exists, and not from such a job: choose another name, or remove it")
    return folder


def one_file(report: Report, out: str | Path) -> None:
    """Write the job's answers to one file, atomically, if `out` names a file."""
    if Path(out).suffix == ".jsonl":
        with whole(out, binary=True) as sink:
            for part in sorted(report.out.glob("part-*.jsonl")):
                with part.open("rb") as file:
                    shutil.copyfileobj(file, sink)
