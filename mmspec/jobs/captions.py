"""Questions about pictures and clips, one request or a job of many: used by `mmspec caption` and `text/caption_batch.py`."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from mmspec.core.stats import Stats
from mmspec.drafters.model.ensemble import Views
from mmspec.drafters.views.text_views import retold
from mmspec.jobs import Facts, Lines, Reject
from mmspec.jobs.rows import continued
from mmspec.jobs.text import COUNTED, joinable_model
from mmspec.loading.text import Pair, load_pair
from mmspec.run.config import Config
from mmspec.serving.models.text import TextModel, TextOptions, TextWork
from mmspec.text.inputs.clips import FrameSampling
from mmspec.text.inputs.pictures import pictures_and_clips_in
from mmspec.text.inputs.vision_inputs import VisionPrompt, default_prompt, has_template, read_seen, reads_clips
from mmspec.text.views import brackets, encoded, ensemble, view
from mmspec.utils.weights import is_file

_PREFIX = "image: "  # what a caption is introduced by
Asking = tuple[dict[str, Any], VisionPrompt]
"""What is told of a record, and what is asked of the target."""
Answer = tuple[list[int], str | None]
"""The ids of an answer, and why it ended."""


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
            digest.update(json.dumps([name, _bytes_of(self.root / name)]).encode())
        return Facts(len(self.files), digest.hexdigest())

    def read(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
        """Yield the records of wanted files; see `Source.read`."""
        for index, name in enumerate(self.files):
            if wanted(index):
                yield index, {"file": name}

    def place(self, index: int) -> dict[str, Any]:
        """Return the place of a record; see `Lines.place`."""
        return {"file": self.files[index], self.unit: index + 1}


@dataclass(frozen=True)
class PictureLines(Lines):
    """Source of JSON lines that name pictures and clips. The fingerprint reads their bytes, too."""

    def facts(self) -> Facts:
        """Return the number of lines, and the digest of the file and of the files that it names."""
        lines = super().facts()
        digest, root = hashlib.sha256(f"{lines.fingerprint}\n".encode()), self.path.parent
        for index, record in self.read(lambda index: True):
            for name in () if isinstance(record, Reject) else record.get("files") or [record.get("file")]:
                if isinstance(name, str):
                    digest.update(json.dumps([index, _bytes_of(root / name)]).encode())
        return Facts(lines.records, digest.hexdigest())


def _bytes_of(path: Path) -> str:
    """The SHA-256 of a file's bytes; that of none for what is no file."""
    from mmspec.utils import fingerprints

    return fingerprints.file(path) if is_file(path) else ""


def source_of(inputs: Sequence[str]) -> tuple[Any, Path]:
    """Return the source, and the folder its files are relative to. ValueError for missing files."""
    if len(inputs) == 1 and Path(inputs[0]).is_dir():
        return PictureFolder(tuple(pictures_and_clips_in(inputs[0])), Path(inputs[0])), Path(inputs[0])
    if len(inputs) == 1 and Path(inputs[0]).suffix == ".jsonl":
        return PictureLines(Path(inputs[0])), Path(inputs[0]).parent
    for each in inputs:
        if Path(each).is_dir() or Path(each).suffix == ".jsonl":
            raise ValueError(f"{each} was given with other pictures: give one folder, one file of JSON lines, or pictures and clips")
        if not Path(each).exists():
            raise ValueError(f"picture {each} does not exist: give the path of one that does")
    return PictureFolder(tuple(inputs)), Path()


@dataclass(frozen=True)
class CaptionRecord:
    """Worker that answers a record's "prompt", or else `prompt`, about its "file" or "files"; adds "answer", "tokens"
    and "finish_reason".

    Record i draws with seed + i, so under an exact rule its output does not depend on its batch. In batches that begin and end together,
    requests with pictures, with clips and with both are decoded separately, because processors pad clips to one length or refuse to mix
    them.

    Args:
        pair: target, drafter and settings.
        prompt: what is asked where a record does not say; None to describe the picture or the video.
        root: folder that files are relative to.
        sampling: which frames of clips are taken.
        stats: counts over everything that was run.
        rows: most records that run at a time, of batches that may be larger; None for whole batches.
        continuous: let records join as others end, where the pair allows it; else, and where `rows` is None, batches begin and end
            together.
    """

    pair: Pair
    prompt: str | None = None
    root: Path = Path()
    sampling: FrameSampling = field(default_factory=FrameSampling)
    stats: Stats = field(default_factory=Stats)
    rows: int | None = None
    continuous: bool = True

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
        model = None if self.rows is None or not self.continuous else self._model
        found = self._together(batch) if model is None else self._joining(model, batch)
        for index, (record, _) in batch:
            answer = found[index]
            if isinstance(answer, Reject):
                yield answer
            else:
                ids, reason = answer
                yield record | {"answer": self.pair.decode(ids), "tokens": ids, "finish_reason": reason}

    @cached_property
    def _model(self) -> TextModel | None:
        return joinable_model(self.pair)

    def _together(self, batch: Sequence[tuple[int, Asking]]) -> dict[int, Answer | Reject]:
        """The answers by index, from batches that begin and end together."""
        size, found = self.rows or max(1, len(batch)), {}
        for part in (batch[first : first + size] for first in range(0, len(batch), size)):
            for rows in self._groups(part):
                found |= self._found(rows)
        return found

    def _joining(self, model: TextModel, batch: Sequence[tuple[int, Asking]]) -> dict[int, Answer | Reject]:
        """The answers by index, from one generation that requests join and leave."""
        run = self.pair.config.run
        settings = (run.temperature, run.top_k, run.top_p, run.repetition_penalty)
        self.stats.exactness = model.rule.exactness
        found: dict[int, Answer | Reject] = {}
        begun: list[int] = []

        def works() -> Iterator[TextWork]:
            for index, (_, request) in batch:
                try:
                    inputs = self._looked([request])
                except ValueError as error:
                    found[index] = Reject(str(error))
                    continue
                begun.append(index)
                yield model.read(inputs, TextOptions(run.max_new_tokens, run.seed + index, *settings))

        for number, out in enumerate(continued(model, works(), self.rows or 1, self.stats.add)):
            found[begun[number]] = out.tokens[0].tolist(), out.finish_reasons[0]
        return found

    def _groups(self, batch: Sequence[tuple[int, Asking]]) -> Iterator[list[tuple[int, VisionPrompt]]]:
        """The requests of a batch that are decoded together, each with its index."""
        groups: dict[Any, list[tuple[int, VisionPrompt]]] = {}
        for index, (_, request) in batch:
            lengths = frame_counts(self.pair.processor, request)
            groups.setdefault((bool(request.pictures), lengths), []).append((index, request))
        yield from groups.values()

    def _found(self, rows: Sequence[tuple[int, VisionPrompt]]) -> dict[int, Answer | Reject]:
        """The answers of `rows` by index. If they cannot be processed together, each half is tried, down to single requests to reject."""
        try:
            inputs = self._looked([request for _, request in rows])
        except ValueError as error:
            if len(rows) == 1:
                return {rows[0][0]: Reject(str(error))}
            half = len(rows) // 2
            return self._found(rows[:half]) | self._found(rows[half:])
        answers = self._answers(inputs, [self.pair.config.run.seed + index for index, _ in rows])
        return {index: answer for (index, _), answer in zip(rows, answers, strict=True)}

    def _answers(self, inputs: dict[str, Any], seeds: list[int]) -> list[Answer]:
        out = self.pair.generate(inputs, seed=seeds, on_step=self.stats.add)
        self.stats.exactness = out.stats.exactness
        rows = zip(out.sequences, out.lengths, out.finish_reasons, strict=True)
        return [(ids[:length].tolist(), reason) for ids, length, reason in rows]

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
