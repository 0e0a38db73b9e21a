"""Questions about pictures and clips, one request or a job of many: used by `mmspec caption` and `text/caption_batch.py`."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from mmspec.core.rules.base import TOKEN_EXACT
from mmspec.core.stats import Stats
from mmspec.drafters.model.ensemble import Views
from mmspec.drafters.views.text_views import retold
from mmspec.jobs import Facts, Job, JsonLines, Lines, Processes, Reject, Report
from mmspec.jobs.text import COUNTED, text_job_identity
from mmspec.loading.text import Pair, load_pair
from mmspec.run.config import Config
from mmspec.text.inputs.clips import FrameSampling
from mmspec.text.inputs.pictures import pictures_and_clips_in
from mmspec.text.inputs.vision_inputs import DESCRIBE, VisionPrompt, default_prompt, has_template, read_seen, reads_clips
from mmspec.text.views import brackets, encoded, ensemble, view
from mmspec.utils.files import whole

_PREFIX = "image: "  # what a caption is introduced by
Asking = tuple[dict[str, Any], VisionPrompt]
"""What is told of a record, and what is asked of the target."""


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
    batch_size: int = 8
    shard_size: int = 64
    sampling: FrameSampling = field(default_factory=FrameSampling)  # which frames of clips are taken


def load_seeing(config: Config, chat: bool | None = None, views: str | None = None, captions: Sequence[str] = ()) -> Pair:
    """Return the pair of `config`. ValueError if it reads no pictures, or the view is not available."""
    if captions and "caption" not in (views or "").split("+"):
        raise ValueError("--caption is what the caption view reads: give --view caption too")
    pair = load_pair(config)
    if not pair.sees:
        from mmspec.models.families.registry import SEES

        raise ValueError(f"{pair.name} reads no pictures: give a model that does, such as {', '.join(list(SEES)[:6])}")
    pair = replace(pair, chat=has_template(pair.processor) if chat is None else chat)
    if views is not None and pair.model is None:
        raise ValueError(f"--view is what a drafter's model reads, and {pair.drafter_name!r} is none: draft with a model, or leave it out")
    if pair.own_tokenizer is not None:  # a drafter of another vocabulary has its view with it
        own = view_named(views or "drop", pair.processor, captions)
        if not callable(own) or isinstance(own, Views):
            raise ValueError(f"view {views!r} is not for a drafter of another vocabulary: give drop, newline or caption")
        return replace(pair, drafter=replace(pair.drafter, view=own))
    return pair if views is None else replace(pair, view=view_named(views, pair.processor, captions))


def view_named(names: str, processor: Any, captions: Sequence[str] = ()) -> Any:
    """Return the view called `names`, or the ensemble of several joined by +. `captions`: one for all pictures, or one each."""

    def one(name: str) -> Any:
        if name != "caption":
            return view(name, processor)
        if not captions:
            raise ValueError("view 'caption' reads a caption in place of each picture: give --caption TEXT")
        if len(captions) == 1:
            return SameCaption(tuple(encoded(processor.tokenizer, _PREFIX + captions[0])), brackets(processor))
        return view(name, processor, captions=captions)

    found = [one(name.strip()) for name in names.split("+")]
    return found[0] if len(found) == 1 else ensemble(*found)


@dataclass(frozen=True)
class SameCaption:
    """View with the same caption for every picture."""

    ids: tuple[int, ...]
    brackets: tuple[int, ...] = ()

    def __call__(self, prompt: Any, session: Any) -> Any:
        """Return `input_ids` and `attention_mask` of the text with the caption for every picture."""
        return retold(prompt, session, lambda count: [list(self.ids)] * count, self.brackets)


@dataclass(frozen=True)
class PictureFolder:
    """Source of pictures and clips: a record {"file": path} each. The fingerprint reads names below `root` and bytes."""

    files: tuple[str, ...]
    root: Path = Path()
    unit: ClassVar[str] = "picture"

    def facts(self) -> Facts:
        """Return the number of files and the digest of their names and bytes."""
        digest = hashlib.sha256(b"pictures\n")
        for name in self.files:
            path = self.root / name
            own = hashlib.sha256()
            if path.is_file():
                with path.open("rb") as file:
                    while chunk := file.read(1 << 20):
                        own.update(chunk)
            digest.update(json.dumps([name, own.hexdigest()]).encode())
        return Facts(len(self.files), digest.hexdigest())

    def read(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
        """Yield the records of wanted files; see `Source.read`."""
        for index, name in enumerate(self.files):
            if wanted(index):
                yield index, {"file": name}

    def place(self, index: int) -> dict[str, Any]:
        """Return the place of a record; see `Lines.place`."""
        return {"file": self.files[index], self.unit: index + 1}


def source_of(inputs: Sequence[str]) -> tuple[Any, Path]:
    """Return the source, and the folder its files are relative to. ValueError for missing files."""
    if len(inputs) == 1 and Path(inputs[0]).is_dir():
        return PictureFolder(tuple(pictures_and_clips_in(inputs[0])), Path(inputs[0])), Path(inputs[0])
    if len(inputs) == 1 and Path(inputs[0]).suffix == ".jsonl":
        return Lines(Path(inputs[0])), Path(inputs[0]).parent
    for each in inputs:
        if Path(each).is_dir() or Path(each).suffix == ".jsonl":
            raise ValueError(f"{each} was given with other pictures: give one folder, one file of JSON lines, or pictures and clips")
        if not Path(each).exists():
            raise ValueError(f"picture {each} does not exist: give the path of one that does")
    return PictureFolder(tuple(inputs)), Path()


@dataclass(frozen=True)
class CaptionRecord:
    """Worker that answers a record's "prompt", or else `prompt`, about its "file" or "files"; adds "answer" and "tokens".

    Record i draws with seed + i, so under an exact rule its output does not depend on its batch. Requests with pictures, with clips and
    with both are decoded separately, because processors pad clips to one length or refuse to mix them.
    """

    pair: Pair
    prompt: str | None = None
    root: Path = Path()
    sampling: FrameSampling = field(default_factory=FrameSampling)
    stats: Stats = field(default_factory=Stats)

    def check(self, record: dict[str, Any]) -> Asking:
        """Return (the record, the request). ValueError, the reason of a reject, for pictures that cannot be read."""
        files: Any = record["files"] if "files" in record else [record.get("file")]
        if not isinstance(files, list) or not files or not all(isinstance(each, str) and each for each in files):
            raise ValueError('no "file" with the path of a picture in it, nor "files" with a list of them')
        prompt = record.get("prompt", self.prompt or default_prompt(files))
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError('"prompt" has no text in it: ask something, or leave it out')
        request = read_seen(prompt, [self.root / each for each in files], files, self.sampling)
        return {**record, "prompt": prompt}, request

    def __call__(self, batch: Sequence[tuple[int, Asking]]) -> Iterator[dict[str, Any] | Reject]:
        """Answer a batch of (index, request) and yield its records, or rejects, in order."""
        found: dict[int, list[int] | Reject] = {}
        for rows in self._groups(batch):
            found |= self._found(rows)
        for index, (record, _) in batch:
            ids = found[index]
            yield ids if isinstance(ids, Reject) else record | {"answer": self.pair.decode(ids), "tokens": ids}

    def _groups(self, batch: Sequence[tuple[int, Asking]]) -> Iterator[list[tuple[int, VisionPrompt]]]:
        """The requests of a batch that are decoded together, each with its index."""
        groups: dict[Any, list[tuple[int, VisionPrompt]]] = {}
        for index, (_, request) in batch:
            lengths = frame_counts(self.pair.processor, request)
            groups.setdefault((bool(request.pictures), lengths), []).append((index, request))
        yield from groups.values()

    def _found(self, rows: Sequence[tuple[int, VisionPrompt]]) -> dict[int, list[int] | Reject]:
        """The answers of `rows` by index. If they cannot be processed together, each half is tried, down to single requests to reject."""
        try:
            inputs = self._looked([request for _, request in rows])
        except ValueError as error:
            if len(rows) == 1:
                return {rows[0][0]: Reject(str(error))}
            half = len(rows) // 2
            return self._found(rows[:half]) | self._found(rows[half:])
        answers = self._answers(inputs, [self.pair.config.run.seed + index for index, _ in rows])
        return {index: ids for (index, _), ids in zip(rows, answers, strict=True)}

    def _answers(self, inputs: dict[str, Any], seeds: list[int]) -> list[list[int]]:
        out = self.pair.generate(inputs, seed=seeds, on_step=self.stats.add)
        self.stats.exactness = out.stats.exactness
        return [ids[:length].tolist() for ids, length in zip(out.sequences, out.lengths, strict=True)]

    def _looked(self, requests: Sequence[VisionPrompt]) -> dict[str, Any]:
        """The target's inputs. ValueError if the requests do not fit together or one is too long."""
        from mmspec.models.families.registry import positions_of

        inputs = self.pair.inputs(requests)
        longest = int(inputs["attention_mask"].sum(1).max())
        limit, most = positions_of(self.pair.target), self.pair.config.run.max_new_tokens
        if limit is not None and longest + most > limit:
            raise ValueError(
                f"has {longest} tokens with its pictures, and {most} new ones exceed the model's {limit} positions: ask for fewer"
            )
        return inputs

    def measures(self) -> dict[str, float]:
        """Return the counts so far."""
        return {name: getattr(self.stats, name) for name in COUNTED}


def frame_counts(processor: Any, request: VisionPrompt) -> tuple[int, ...]:
    """Return how many frames are taken of each clip, where clips of one batch need equal numbers; else 0 for each.

    Models with a grid of patches for each clip (Qwen-VL, GLM-4V) allow clips of any length in one batch.
    """
    if not reads_clips(processor):
        return (0,) * len(request.clips)
    video = processor.video_processor
    if "video_grid_thw" in video.model_input_names:
        return (0,) * len(request.clips)
    try:
        return tuple(len(clip.indices(video)) for clip in request.clips)
    except ValueError:  # what cannot be sampled is rejected when it is looked at
        return (0,) * len(request.clips)


def make_caption_job(asked: CaptionJobSpec) -> Job:
    """Return the job. ValueError for missing files and invalid settings, before anything is written."""
    from mmspec.utils.provenance import provenance

    source, root = source_of(asked.inputs)  # what is not there is told before a model is loaded
    target = replace(asked.config.target, device=Processes.here().device(asked.config.target.device))
    pair = load_seeing(replace(asked.config, target=target), asked.chat, asked.view, asked.captions)
    length = pair.config.drafter.length
    if pair.exactness != TOKEN_EXACT and not isinstance(length, int):
        raise ValueError(
            f"accept {asked.config.accept.kind!r} draws otherwise with another draft length, and {length!r} follows the clock: "
            "give --draft-length a number, so that a job that goes on says the same"
        )
    work = CaptionRecord(pair, asked.prompt, root, asked.sampling)
    model, options = text_job_identity(pair)
    seen = {"pictures": processor_digest(pair.processor.image_processor)}
    seen |= {"clips": processor_digest(pair.processor.video_processor)} if reads_clips(pair.processor) else {}
    sampling = {name: value for name, value in asdict(asked.sampling).items() if value is not None}
    return Job(
        source=source,
        sink=JsonLines(),  # pyright: ignore[reportArgumentType] - its extension is the class's
        work=work,
        check=work.check,
        out=asked.out,
        model=model | seen,
        options=options | sampling | {"prompt": asked.prompt or DESCRIBE, "view": asked.view, "captions": list(asked.captions)},
        batch_size=asked.batch_size,
        shard_size=asked.shard_size,
        unit="pictures",
        about=provenance(pair.target.device) | {"exactness": pair.exactness},
        measures=work.measures,
    )


def processor_digest(processor: Any) -> str:
    """A digest of all settings of an image or video processor."""
    return hashlib.sha256(json.dumps(processor.to_dict(), sort_keys=True, default=str).encode()).hexdigest()


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
