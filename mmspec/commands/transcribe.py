"""`mmspec transcribe`: recordings to text, subtitles or JSON."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.commands import common
from mmspec.commands.common import DRAWING, FILES, HOW, WHAT, option
from mmspec.utils.files import whole

EXAMPLES = """Examples:

\b
  mmspec transcribe talk.flac --model openai/whisper-base --drafter openai/whisper-tiny
  mmspec transcribe talk.wav --model ./whisper-base --format srt
  mmspec transcribe interview.ogg --model ./whisper-base --language de --task translate
  mmspec transcribe recordings/ --model ./whisper-base --timestamps word --format json --out texts/
"""
ENDINGS = (".wav", ".flac", ".ogg", ".mp3")
_FORMATS = {"text": "txt", "srt": "srt", "vtt": "vtt", "json": "json"}
_SETTINGS = "transcribe.json"
PART = 64
"""Recordings whose sound is in memory at once."""
_FILES = "Sound files (WAV, FLAC, OGG, MP3), or folders of them."
_MODEL = "Whisper: a folder or a hub name; python speech/fetch_whisper.py keeps one."
_DRAFTER = "none (default), a smaller Whisper's path, lookup, suffix, ... (mmspec models lists them)."
_THRESHOLD = "Keep draft tokens unchecked while the drafter's probability is at least TAU: fewer calls, other words (lossy)."
_LANGUAGE = "What is spoken: auto (default) detects it for every file; else a code or name, such as en."
_TIMES = "none, segment or word; segment for subtitles, none otherwise by default."
_FALLBACK = "Decode a window again at higher temperatures where its text repeats itself or is unlikely."
_OUT = "Write one file a recording into this folder; what it already has is left as it is."


def transcribe(
    files: Annotated[list[str] | None, typer.Argument(help=_FILES, metavar="[FILE]...")] = None,
    model: Annotated[str | None, option(WHAT, _MODEL, metavar="PATH")] = None,
    device: common.DEVICE = None,
    dtype: common.DTYPE = None,
    language: Annotated[str, option(WHAT, _LANGUAGE, metavar="NAME")] = "auto",
    task: Annotated[str, option(WHAT, "transcribe (default), or translate: into English.", metavar="NAME")] = "transcribe",
    prompt: Annotated[str | None, option(WHAT, "Text to be read as if it came before, such as names.", metavar="TEXT")] = None,
    drafter: Annotated[str, option(HOW, _DRAFTER, metavar="NAME")] = "none",
    accept: common.ACCEPT_RULE = None,
    threshold: Annotated[float | None, option(HOW, _THRESHOLD, metavar="TAU")] = None,
    draft_length: common.LENGTH = None,
    tree: common.TREE = None,
    fallback: Annotated[bool, option(DRAWING, _FALLBACK, "--fallback")] = False,
    condition: Annotated[bool, option(DRAWING, "Windows behind the first read the text before them.", "--condition")] = False,
    seed: common.SEED = None,
    timestamps: Annotated[str | None, option(FILES, _TIMES, metavar="NAME")] = None,
    text_format: Annotated[str, option(FILES, "text (default), srt, vtt or json.", "--format", metavar="NAME")] = "text",
    vad: Annotated[bool, option(FILES, "Cut long recordings at pauses, and decode the parts together.", "--vad")] = False,
    out: Annotated[str | None, option(FILES, _OUT, metavar="FOLDER")] = None,
    batch_size: Annotated[int, option(FILES, "Recordings, or parts of them, decoded together; 8 by default.", metavar="N")] = 8,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Write down recordings: Whisper's own text and times, in fewer calls of its decoder."""
    given = dict(locals())
    common.check_counts(given, "batch_size")
    found = sounds_in(files or [])
    given["timestamps"] = _times(timestamps, text_format, as_json)
    given["accept"] = _rule(given)
    if model is None:
        raise ValueError("no model: give --model, such as the folder that mmspec recipe speech/fetch_whisper.py keeps")
    if as_json and text_format != "text":
        raise ValueError("--json and --format were both given: --json has texts, times and figures")
    if out is None:
        _run(given, found, {}, {})
        return
    folder = Path(out)
    targets = {path: folder / f"{name}.{_FORMATS[text_format]}" for path, name in _names(found).items()}
    settings = _settings(folder, given)
    left = [path for path in found if not targets[path].exists()]
    if len(left) < len(found):
        common.note(f"{len(found) - len(left)} of {len(found)} recordings were there already")
    if left:
        _run(given, left, targets, settings)


def sounds_in(given: list[str]) -> list[Path]:
    """Return the sound files that were named, and those in folders that were named.

    Raises:
        ValueError: if nothing was named, or a folder holds no sound.
        FileNotFoundError: for a file that does not exist.
    """
    if not given:
        raise ValueError("no recording: give sound files or folders of them")
    found: list[Path] = []
    for name in given:
        path = Path(name)
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.suffix.lower() in ENDINGS)
            if not inside:
                raise ValueError(f"{path} holds no sound: it has no file ending in {', '.join(ENDINGS)}")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise FileNotFoundError(f"audio file {path} does not exist: give a WAV, FLAC, OGG or MP3 file, or a folder of them")
    return list(dict.fromkeys(found))


def _times(given: str | None, form: str, as_json: bool) -> str | None:
    """Return the timestamps to ask for. ValueError for subtitles without them, and for times that the format does not have."""
    if form not in _FORMATS:
        raise ValueError(f"unknown format {form!r}; valid: {', '.join(_FORMATS)}")
    if given is None:
        return "segment" if form in ("srt", "vtt") else None
    if given not in ("none", "segment", "word"):
        raise ValueError(f"unknown timestamps {given!r}; valid: none, segment, word")
    if form in ("srt", "vtt") and given != "segment":
        raise ValueError(f"--format {form} has the times of segments: leave --timestamps {given} out, or give --format json")
    if form == "text" and given != "none" and not as_json:
        raise ValueError(f"--format text has no times: leave --timestamps {given} out, or give --format srt, vtt or json")
    return None if given == "none" else given


def _rule(given: dict[str, Any]) -> Any:
    """Return the accept rule to ask for. ValueError for a threshold beside another rule, out of range, or without a drafter."""
    if given["threshold"] is None:
        return given["accept"]
    if given["accept"] is not None:
        raise ValueError("--threshold and --accept were both given: --threshold is a rule of its own")
    if given["drafter"] == "none":
        raise ValueError("--threshold needs a drafter: give --drafter, such as the folder that speech/train_heads.py wrote")
    if not 0 <= given["threshold"] <= 1:
        raise ValueError(f"threshold is {given['threshold']:g}: give a probability between 0 and 1")
    from mmspec.core.rules.lossy.always_accept import Threshold

    return Threshold(given["threshold"])


def _names(found: list[Path]) -> dict[Path, str]:
    """Return a name for each recording's output. ValueError if two would have the same."""
    names: dict[str, Path] = {}
    for path in found:
        if path.stem in names:
            raise ValueError(f"{names[path.stem]} and {path} would both be written to {path.stem}: rename one, or run them apart")
        names[path.stem] = path
    return {path: name for name, path in names.items()}


def _settings(folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Return what shapes the texts in `folder`. ValueError if its texts were made with other settings."""
    keys = ("model", "dtype", "language", "task", "prompt", "accept", "fallback", "condition", "seed", "timestamps", "text_format", "vad")
    if given["accept"] not in (None, "exact"):
        keys += ("drafter", "draft_length", "tree")
    own = {key: given[key] for key in keys} | {
        "accept": given["accept"] if given["threshold"] is None else f"threshold {given['threshold']:g}"
    }
    place = folder / _SETTINGS
    if place.exists():
        before = json.loads(place.read_text(encoding="utf-8"))
        changed = [key for key in keys if before.get(key) != own[key]]
        if changed:
            key = changed[0]
            raise ValueError(
                f"{folder} holds texts made with {key} {before.get(key)!r}, not {own[key]!r}: give another --out, or the same settings"
            )
    return own


def _run(given: dict[str, Any], files: list[Path], targets: dict[Path, Path], settings: dict[str, Any]) -> None:
    """Transcribe `files`; each text goes to its target as soon as it is there, or to standard output."""
    common.begin(given["verbose"])
    from mmspec.bench.report.stream import summary
    from mmspec.core.stats import Stats
    from mmspec.loading.hearing import load_transcriber
    from mmspec.speech import transcribe as write_down
    from mmspec.speech.sound.audio import check_sound

    for path in files:  # before a model is loaded
        check_sound(path)
    pair = load_transcriber(given["model"], given["drafter"], given["device"] or "auto", given["dtype"] or "float32")
    if settings:
        folder = Path(given["out"])
        folder.mkdir(parents=True, exist_ok=True)
        with whole(folder / _SETTINGS) as file:
            json.dump(settings, file, indent=1)
    options, stats, rows, seconds = _options(given), Stats(), [], 0.0
    with common.progress("recordings", len(files)) as done:
        for first in range(0, len(files), PART):
            part = files[first : first + PART]

            def keep(row: int, transcript: Any, part: list[Path] = part) -> None:
                if targets:
                    with whole(targets[part[row]]) as file:
                        file.write(transcript.formatted(given["text_format"]))
                done(1)

            found = write_down(pair.target, pair.processor, part, pair.drafter, on_transcript=keep, on_step=stats.add, **options)
            stats.exactness = found.stats.exactness
            rows += found.transcripts
            seconds += found.seconds
    factor = seconds / max(1e-9, sum(each.seconds for each in rows))
    if given["as_json"]:
        told = [{"file": str(path), **json.loads(each.formatted("json"))} for path, each in zip(files, rows, strict=True)]
        about = {"model": pair.name, "drafter": given["drafter"], "seconds": seconds, "real_time_factor": factor}
        common.emit({"recordings": told, **about, "stats": stats.to_dict()})
        return
    for path, each in zip(files, rows, strict=True):
        if not targets:
            print((f"{path}\n" if len(files) > 1 and given["text_format"] == "text" else "") + each.formatted(given["text_format"]), end="")
    common.note_cut([each.finish_reason for each in rows], "transcript", "the most tokens of a window")
    common.note(f"{summary(stats)}; {factor:.2f} seconds of work per second of sound")


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `mmspec.speech.transcribe`."""
    names = ("task", "timestamps", "fallback", "condition", "prompt", "vad", "batch_size")
    return {
        **{name: given[name] for name in names},
        "language": None if given["language"] == "auto" else given["language"],
        "seed": given["seed"] or 0,
        "accept": given["accept"] or "exact",
        "draft_length": "auto" if given["draft_length"] is None else common.length_of(given["draft_length"]),
        "tree": None if given["tree"] is None else common.tree_of(given["tree"]),
    }
