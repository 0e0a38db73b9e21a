"""`mmspec speech`: synthesize one or several texts to sound files, or every line of a file as a job."""

import os
import sys
from contextlib import ExitStack
from functools import partial
from math import isnan
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mmspec.commands import common
from mmspec.commands.common import DRAWING, FILES, HOW, WHAT, option
from mmspec.utils.files import whole
from mmspec.utils.places import Writes
from mmspec.utils.screen import spinner

EXAMPLES = """Examples:

\b
  mmspec speech "three five seven" --voice jackson --out out.wav
  mmspec speech "three five" "the red bird sings by the river" --voice theo --voice espeak --out out.flac
  mmspec speech "nine zero" --count 4 --seed 7 --drafter vadusa --json
  mmspec speech "please open the old door now" --stream --out door.wav
  mmspec speech --file lines.txt --out sounds/ --voice lucas
  torchrun --nproc-per-node 8 -m mmspec.cli speech --file lines.jsonl --out sounds/
"""
OUT, BATCH, MOST = "mmspec-speech.wav", 8, 1024
_TEXT = "Text to synthesize; several texts make several files; - reads standard input."
_MODEL = "The shipped mini (default), or a folder that mmspec recipe speech/train_target.py wrote."
_DRAFTER = "none, model (the mini's own, default there), vadusa, lookup, ... (mmspec models lists them), or a folder."
_VOICE = "Name of a voice; once, or once a text. The model's first by default."
_OUT = f"The sound file: .wav, .flac or .ogg; {OUT} by default. With --file a new folder, or that of the same job, to go on with it."
_FILE = "Synthesize every line; or JSON lines with text and, optionally, voice and seed."
_STREAM = "Write sound while it is generated: a wav that grows under a temporary name, then is renamed."
_RATE = "Samples a second of the files, resampled; the model's own by default."
_TEMPERATURE = "The model's own by default; 0 is greedy decoding."
_GUIDANCE = "Scale of classifier-free guidance, for models that have it; the model's own by default, 1 for none."
SETTINGS = ("accept", "draft_length", "tree", "temperature", "top_k", "top_p", "repetition_penalty", "guidance", "max_seconds")
_ENGINE = "local (default; also under torchrun) or ray."


def speech(
    texts: Annotated[list[str] | None, typer.Argument(help=_TEXT, metavar="[TEXT]...")] = None,
    model: Annotated[str, option(WHAT, _MODEL, metavar="PATH")] = "mini",
    voice: Annotated[list[str] | None, option(WHAT, _VOICE, metavar="NAME")] = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    drafter: Annotated[str | None, option(HOW, _DRAFTER, metavar="NAME")] = None,
    accept: common.ACCEPT_RULE = None,
    draft_length: common.LENGTH = None,
    tree: common.TREE = None,
    temperature: Annotated[float | None, option(DRAWING, _TEMPERATURE, metavar="T")] = None,
    top_k: common.TOP_K = None,
    top_p: common.TOP_P = None,
    repetition_penalty: common.PENALTY = None,
    guidance: Annotated[float | None, option(DRAWING, _GUIDANCE, metavar="S")] = None,
    seed: Annotated[int, option(DRAWING, "Utterance r is drawn with SEED + r; 0 by default.", metavar="SEED")] = 0,
    max_seconds: Annotated[float | None, option(DRAWING, "Longest duration in seconds.", metavar="S")] = None,
    count: Annotated[int, option(FILES, "Synthesize each text N times, with N seeds.", metavar="N")] = 1,
    file: Annotated[str | None, option(FILES, _FILE, "--file", "--input", metavar="FILE")] = None,
    out: Annotated[str | None, option(FILES, _OUT, metavar="PATH"), Writes()] = None,
    form: Annotated[str | None, option("Bulk", "Of the files of --file: wav (default), flac or ogg.", "--format", metavar="NAME")] = None,
    sample_rate: Annotated[int | None, option(FILES, _RATE, metavar="N")] = None,
    stream: Annotated[bool, option(FILES, _STREAM, "--stream")] = False,
    engine: Annotated[str, option("Bulk", _ENGINE, metavar="NAME")] = "local",
    batch_size: Annotated[int, option("Bulk", "Lines of --file in one batch; 8 by default.", metavar="N")] = BATCH,
    shard_size: Annotated[int, option("Bulk", "Lines a shard, the work that an interruption may lose; 256 by default.", metavar="N")] = 256,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Synthesize speech: the sound of plain decoding, in fewer calls of the target."""
    given = dict(locals())
    given |= {"draft_length": "auto" if draft_length is None else common.length_of(draft_length)}
    given |= {"tree": None if tree is None else common.tree_of(tree), "accept": "exact" if accept is None else accept}
    given |= {"device": "auto" if device is None else device, "dtype": "float32" if dtype is None else dtype}
    _check(given)
    if file is not None:
        _job(given)
    else:
        _few(given)


def _check(given: dict[str, Any]) -> None:
    """Check the options before anything is loaded."""
    if given["file"] is None:
        if not given["texts"]:
            raise ValueError('no text: give one ("three five seven"), - to read standard input, or --file FILE')
        common.refuse_unread("belongs to --file: for a few texts leave it out", "--engine", "--batch-size", "--shard-size")
        if given["form"] is not None:
            raise ValueError("--format belongs to --file: for one text, name the sound file with the ending you want")
    else:
        for name, value in (("a text", given["texts"]), ("--stream", given["stream"]), ("--count", given["count"] != 1)):
            if value:
                raise ValueError(f"--file and {name} were both given: give one of them")
        if given["out"] is None:
            raise ValueError(f"no folder for the sounds of {given['file']}: give --out FOLDER")
        if len(given["voice"] or ()) > 1:
            raise ValueError('--file takes one --voice: for several, give JSON lines with "text" and "voice"')
    from mmspec.run.arguments import check

    check(max_seconds=given["max_seconds"], top_k=given["top_k"], top_p=given["top_p"])
    check(repetition_penalty=given["repetition_penalty"], guidance=given["guidance"])
    common.check_counts(given, "batch_size", "shard_size")
    if given["out"] is not None and not given["out"].strip():
        raise ValueError("--out is empty: give the place of the sound")
    if not 1 <= given["count"] <= MOST:
        raise ValueError(f"--count is {given['count']}: say each text 1 to {MOST} times; for more give --file FILE")
    if given["engine"] not in ("local", "ray"):
        raise ValueError(f"unknown engine {given['engine']!r}; valid: local, ray")


# --- a few texts ----------------------------------------------------------------------------------------------------------


def _few(given: dict[str, Any]) -> None:
    utterances = [sys.stdin.read().strip() if text == "-" else text for text in given["texts"] for _ in range(given["count"])]
    voices = _voices(given["voice"], len(given["texts"]), given["count"])
    path, many = Path(given["out"] or OUT), len(utterances) > 1
    paths = [path.with_stem(f"{path.stem}-{row}") if many else path for row in range(len(utterances))]
    with ExitStack() as stack:  # before heavy imports, so that a place that cannot be written to is reported at once
        sinks = [stack.enter_context(whole(each, binary=True)) for each in paths]
        common.begin(given["verbose"])
        from mmspec.jobs.speech_job import check_format
        from mmspec.speech.sound.files import sound_format

        form = sound_format(path)
        check_format(form, given["sample_rate"])
        if given["stream"] and (form != "wav" or given["sample_rate"]):
            raise ValueError("--stream writes a wav at the model's own rate: end the file in .wav, and leave --sample-rate out")
        loaded, outs, stats = _synthesize(given, utterances, voices, sinks, form)
        for sink in sinks:  # all are on the disk before the first is renamed
            sink.flush()
            os.fsync(sink.fileno())
    rows = [
        {"text": text, "voice": voice or next(iter(loaded.model.voices), None), "seed": given["seed"] + row, "out": str(each), **outs[row]}
        for row, (text, voice, each) in enumerate(zip(utterances, voices, paths, strict=True))
    ]
    _tell(given, loaded, rows, stats)


def _voices(given: list[str] | None, texts: int, count: int) -> list[str | None]:
    """Return a voice for every utterance."""
    if given and len(given) not in (1, texts):
        raise ValueError(f"{len(given)} voices for {texts} texts: give one --voice, or one a text")
    voices: list[str | None] = [None] * texts if not given else [*given] * (texts if len(given) == 1 else 1)
    return [voice for voice in voices for _ in range(count)]


def _synthesize(
    given: dict[str, Any], utterances: list[str], voices: list[Any], sinks: list[Any], form: str
) -> tuple[Any, list[dict[str, Any]], Any]:
    """Synthesize into `sinks`; returns (speaker, figures of every utterance, stats)."""
    from mmspec.core.stats import Stats
    from mmspec.speech import synthesize
    from mmspec.speech.sound.audio import at_rate
    from mmspec.speech.sound.files import GrowingWav, sound_bytes
    from mmspec.utils.devices import device_of

    with spinner(f"loading {given['model']}"):
        loaded = load(given["model"], given["drafter"], given["dtype"], device_of(given["device"]))
    own = loaded.model.rate
    rate, stats, found = given["sample_rate"] or own, Stats(), []
    names = SETTINGS
    options = {name: given[name] for name in names}
    loaded.model.encode(utterances, voices)  # an invalid text is reported before any is synthesized
    for sink in sinks if given["stream"] else ():
        common.note(f"growing in {sink.name}")
    with common.progress("utterance" if len(utterances) == 1 else "utterances", len(utterances)) as done:
        for first in range(0, len(utterances), BATCH):
            part = slice(first, first + BATCH)
            growing = [GrowingWav(sink, own) for sink in sinks[part]] if given["stream"] else []
            out = synthesize(
                loaded.model,
                utterances[part],
                loaded.drafter,
                seed=[given["seed"] + row for row in range(len(utterances))[part]],
                voice=voices[part],
                on_sound=(lambda row, piece, growing=growing: growing[row].add(piece)) if growing else None,
                on_step=_Watch(stats, loaded.model.pace, done),
                **options,
            )
            stats.exactness = out.stats.exactness
            for row, wave in enumerate(out.waveforms):
                if not growing:
                    sinks[first + row].write(sound_bytes(at_rate(wave, own, rate), rate, form))
                found.append(_figures(out, row))
    return loaded, found, stats


def load(*args: Any) -> Any:
    """Import and call `mmspec.loading.speech.load_speaker`. A function of this module, so that importing it stays light."""
    from mmspec.loading.speech import load_speaker

    return load_speaker(*args)


class _Watch:
    """An `on_step` callback that counts every round and updates the progress bar."""

    def __init__(self, stats: Any, pace: float, done: Any):
        self.stats, self.pace, self.done, self.over = stats, pace, done, 0

    def __call__(self, step: Any) -> None:
        self.stats.add(step)
        over = sum(step.committed.ended)
        self.done(over - self.over, f"{self.stats.tokens / self.pace:.1f} s of sound")
        self.over = over


def _figures(out: Any, row: int) -> dict[str, Any]:
    times = {"first_sound": out.first_sound[row], "worst_gap": out.worst_gap[row], "jitter": out.jitter[row]}
    return {
        "seconds": len(out.waveforms[row]) / out.sample_rate,
        **{name: None if isnan(time) else time for name, time in times.items()},
        "underruns": out.underruns[row],
        "tokens": out.tokens[row, : out.lengths[row]].tolist(),
        "work": out.seconds / len(out.waveforms),
        "finish_reason": out.finish_reasons[row],
    }


def _tell(given: dict[str, Any], loaded: Any, rows: list[dict[str, Any]], stats: Any) -> None:
    """Print the figures of a few utterances, as JSON or as a table."""
    from mmspec.bench.report.stream import summary

    work = sum(row.pop("work") for row in rows)
    factor = work / max(1e-9, sum(row["seconds"] for row in rows))
    if given["as_json"]:
        names = (*SETTINGS, "device", "dtype")
        about = {"model": loaded.name, "drafter": loaded.drafter_name, "settings": {name: given[name] for name in names}}
        rate = given["sample_rate"] or loaded.model.rate
        figures = {"sample_rate": rate, "real_time_factor": factor, "seconds": work, "stats": stats.to_dict()}
        common.emit({**about, **figures, "utterances": rows})
        return
    table = Table("file", "voice", "text", "seconds", "first sound", "worst gap")
    for row in rows:
        times = ["-" if row[name] is None else f"{row[name]:.2f} s" for name in ("first_sound", "worst_gap")]
        text = row["text"] if len(row["text"]) <= 40 else f"{row['text'][:37]}..."
        table.add_row(row["out"], row["voice"] or "", text, f"{row['seconds']:.2f}", *times)
    show = common.console(False)
    show.print(table)
    if loaded.model.ends:  # a model of music has no end of its own
        common.note_cut([row["finish_reason"] for row in rows], "sound", _longest(given))
    show.print(f"{summary(stats)}; real-time factor {factor:.2f}", soft_wrap=True)


def _longest(given: dict[str, Any]) -> str:
    """Return what sound is cut at."""
    return "the longest duration of the model" if given["max_seconds"] is None else f"--max-seconds {given['max_seconds']:g}"


# --- a file of texts ------------------------------------------------------------------------------------------------------


def _job(given: dict[str, Any]) -> None:
    common.begin(given["verbose"])
    from mmspec.jobs import run
    from mmspec.jobs.speech_job import SpeechJobSpec, make_speech_job

    names = ("model", "drafter", *SETTINGS, "sample_rate")
    names += ("seed", "batch_size", "shard_size", "device", "dtype")
    places = {"texts": Path(given["file"]), "out": Path(given["out"]), "form": "wav" if given["form"] is None else given["form"]}
    spec = SpeechJobSpec(**places, voice=next(iter(given["voice"] or ()), None), **{name: given[name] for name in names})
    report = run(partial(make_speech_job, spec), engine=given["engine"])
    if report is None:  # process 0 of a launch reports
        return
    common.some_output(report, "texts", "line")
    counted = report.measures
    factor, calls = counted["work"] / max(1e-9, counted["sound"]), counted["tokens"] / max(1, counted["row_calls"])
    if given["as_json"]:
        found = {key: getattr(report, key) for key in ("records", "outputs", "rejects", "shards", "resumed", "seconds", "rate", "measures")}
        common.emit({**found, "out": given["out"], "real_time_factor": factor, "tokens_per_call": calls})
    else:
        sound = f"{counted['sound']:.1f} s of sound, {calls:.2f} tokens per call, real-time factor {factor:.2f}"
        cut = int(counted.get("cut", 0))
        common.note_cut(["length"] * cut + ["stop"] * (report.outputs - cut), "sound", _longest(given))
        common.console(False).print(f"{report}; {sound}", soft_wrap=True)
