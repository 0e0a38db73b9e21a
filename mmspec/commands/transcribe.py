"""`mmspec transcribe`: recordings to text, subtitles or JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mmspec.commands import common
from mmspec.commands.common import DRAWING, FILES, HOW, WHAT, option
from mmspec.speech.sound.containers import SUFFIXES as CONTAINERS
from mmspec.utils.files import listed, note_skipped, whole, write_json
from mmspec.utils.places import Writes

EXAMPLES = """Examples:

\b
  mmspec transcribe talk.flac --model openai/whisper-base --drafter openai/whisper-tiny
  mmspec transcribe talk.wav --model ./whisper-base --format srt
  mmspec transcribe interview.ogg --model ./whisper-base --language de --task translate
  mmspec transcribe recordings/ --model ./whisper-base --timestamps word --format json --out texts/
"""
ENDINGS = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".mp2", ".aiff", ".aif", ".aifc", ".au", ".snd", ".caf", ".w64", ".rf64")
"""What sound files of a folder end in, beside those of `mmspec.speech.sound.containers`."""
_FORMATS = {"text": "txt", "srt": "srt", "vtt": "vtt", "json": "json"}
_SETTINGS, _REJECTS = "transcribe.json", "rejects.jsonl"
PART = 64
"""Recordings whose sound is in memory at once."""
_FILES = "Sound files (WAV, FLAC, OGG, Opus, MP3, AIFF; M4A, AAC and others with mmspec[video]), or folders of them."
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
    out: Annotated[str | None, option(FILES, _OUT, metavar="FOLDER"), Writes(keeps=True, beside=("files",))] = None,
    batch_size: Annotated[int, option(FILES, "Recordings, or parts of them, decoded together; 8 by default.", metavar="N")] = 8,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Write down recordings: Whisper's own text and times, in fewer calls of its decoder."""
    given = dict(locals())
    common.check_counts(given, "batch_size")
    found, skipped = sounds_in(files or [])
    given["timestamps"] = _times(timestamps, text_format, as_json)
    given["accept"] = _rule(given)
    if model is None:
        raise ValueError("no model: give --model, such as the folder that mmspec recipe speech/fetch_whisper.py keeps")
    if as_json and text_format != "text":
        raise ValueError("--json and --format were both given: --json has texts, times and figures")
    if out is None:
        _run(given, found, {}, {}, skipped)
        return
    folder = Path(out)
    targets = {path: folder / f"{name}.{_FORMATS[text_format]}" for path, name in _names(found).items()}
    settings = _settings(folder, given)
    left = [path for path in found if not _written(path, targets[path], settings)]
    if len(left) < len(found):
        common.note(f"{len(found) - len(left)} of {len(found)} recordings were there already")
    if left:
        _run(given, left, targets, settings, skipped)


def sounds_in(given: list[str]) -> tuple[list[Path], list[Path]]:
    """Return the sound files that were named and those in folders that were named, and the other files of these folders, which
    are named on stderr.

    Raises:
        ValueError: if nothing was named, or a folder holds no sound.
        FileNotFoundError: for a file that does not exist.
    """
    if not given:
        raise ValueError("no recording: give sound files or folders of them")
    found: list[Path] = []
    others: list[Path] = []
    for name in given:
        path = Path(name)
        if path.is_dir():
            sounds = [each for each in listed(path) if each.suffix.lower() in (*ENDINGS, *CONTAINERS)]
            if not sounds:
                raise ValueError(f"{path} holds no sound: it has no file ending in {', '.join((*ENDINGS, *CONTAINERS))}")
            found += sounds
            others += note_skipped(path, sounds, "not sound by its ending")
        elif path.is_file():
            found.append(path)
        else:
            raise FileNotFoundError(f"audio file {path} does not exist: give a WAV, FLAC, OGG or MP3 file, or a folder of them")
    return list(dict.fromkeys(found)), list(dict.fromkeys(others))


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
        "accept": given["accept"] if given["threshold"] is None else f"threshold {given['threshold']:g}",
        "weights": _content(given["model"]),
    }
    from mmspec.utils.weights import read_mapping

    before = read_mapping(place, "") if (place := folder / _SETTINGS).exists() else None
    if before is not None and (changed := [key for key in own if key in before and before[key] != own[key]]):
        key = changed[0]
        raise ValueError(
            f"{folder} holds texts made with {key} {before[key]!r}, not {own[key]!r}: give another --out, or the same settings"
        )
    return own | {"recordings": (before or {}).get("recordings", {})}


def _content(model: str) -> str:
    """A digest of the files of a model's folder; of a hub name its own, as what it leads to is not changed."""
    from mmspec.utils import fingerprints

    home = Path(model).expanduser()
    return fingerprints.data([[str(path.relative_to(home)), fingerprints.file(path)] for path in listed(home)] if home.is_dir() else model)


def _written(path: Path, target: Path, settings: dict[str, Any]) -> bool:
    """Whether a recording's text is there. ValueError if it was made of other bytes than the recording has now."""
    from mmspec.utils import fingerprints

    if not target.exists():
        return False
    if settings["recordings"].get(target.name) not in (None, fingerprints.file(path)):
        raise ValueError(f"{path} has changed since {target} was written: delete that text, or give another --out")
    return True


def _run(
    given: dict[str, Any], files: list[Path], targets: dict[Path, Path], settings: dict[str, Any], skipped: Sequence[Path] = ()
) -> None:
    """Transcribe `files`; each text goes to its target as soon as it is there, or to standard output. What cannot be read is rejected."""
    common.begin(given["verbose"])
    from mmspec.bench.report.stream import summary
    from mmspec.core.stats import Stats
    from mmspec.loading.hearing import load_transcriber
    from mmspec.speech import transcribe as write_down
    from mmspec.speech.recognition.prompted import extractor_of
    from mmspec.utils import fingerprints

    rejects: dict[Path, str] = {}
    files = _readable(files, rejects)  # before a model is loaded
    pair = load_transcriber(given["model"], given["drafter"], given["device"] or "auto", given["dtype"] or "float32")
    folder = Path(given["out"] or ".")
    if settings:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / _SETTINGS, settings)
    options, stats, done_files, rows, seconds = _options(given), Stats(), [], [], 0.0
    rate = extractor_of(pair.processor).sampling_rate
    with common.progress("recordings", len(files)) as done:
        for first in range(0, len(files), PART):
            waves = _waves(files[first : first + PART], rate, rejects)
            part = list(waves)
            if not part:
                continue

            def keep(row: int, transcript: Any, part: list[Path] = part) -> None:
                if targets:
                    with whole(targets[part[row]]) as file:
                        file.write(transcript.formatted(given["text_format"]))
                done(1)

            sounds = list(waves.values())
            found = write_down(pair.target, pair.processor, sounds, pair.drafter, on_transcript=keep, on_step=stats.add, **options)
            if settings:
                settings["recordings"] |= {targets[path].name: fingerprints.file(path) for path in part}
                write_json(folder / _SETTINGS, settings)
            stats.exactness = found.stats.exactness
            done_files += part
            rows += found.transcripts
            seconds += found.seconds
    told = [{"file": str(path), "reason": reason} for path, reason in rejects.items()]
    if settings:
        with whole(folder / _REJECTS) as file:
            file.writelines(json.dumps(reject, ensure_ascii=False) + "\n" for reject in told)
    if not rows:
        raise ValueError(f"all {len(rejects)} recordings were rejected, such as {told[0]['file']}: {told[0]['reason']}")
    factor = seconds / max(1e-9, sum(each.seconds for each in rows))
    if given["as_json"]:
        texts = [{"file": str(path), **json.loads(each.formatted("json"))} for path, each in zip(done_files, rows, strict=True)]
        about = {"model": pair.name, "drafter": given["drafter"], "seconds": seconds, "real_time_factor": factor}
        common.emit({"recordings": texts, "rejects": told, "skipped": [*map(str, skipped)], **about, "stats": stats.to_dict()})
        return
    for path, each in zip(done_files, rows, strict=True):
        if not targets:
            named_first = len(files) > 1 and given["text_format"] == "text"
            print((f"{path}\n" if named_first else "") + each.formatted(given["text_format"]), end="")
    for reject in told:
        common.note(f"rejected: {reject['file']}: {reject['reason']}")
    common.note_cut([each.finish_reason for each in rows], "transcript", "the most tokens of a window")
    counts = f"{len(rows)} recordings done, {len(told)} rejected, {len(skipped)} other files skipped; " if told or skipped else ""
    common.note(f"{counts}{summary(stats)}; {factor:.2f} seconds of work per second of sound")


def _readable(files: list[Path], rejects: dict[Path, str]) -> list[Path]:
    """The files whose headers are sound's; others are rejected. ValueError where none is left."""
    from mmspec.speech.sound.audio import check_sound

    kept = []
    for path in files:
        try:
            check_sound(path)
            kept.append(path)
        except (ValueError, OSError) as error:
            rejects[path] = str(error)
    if not kept:
        path, reason = next(iter(rejects.items()))
        raise ValueError(reason if len(files) == 1 else f"all {len(files)} recordings were rejected, such as {path}: {reason}")
    return kept


def _waves(files: list[Path], rate: int, rejects: dict[Path, str]) -> dict[Path, Any]:
    """The sound of files, float32 [T]; what cannot be read, or holds nothing, is rejected."""
    from mmspec.speech.sound.audio import read_sound

    waves = {}
    for path in files:
        try:
            wave = read_sound(path, rate)
        except (ValueError, OSError) as error:
            rejects[path] = str(error)
            continue
        if len(wave):
            waves[path] = wave
        else:
            rejects[path] = f"audio file {path} holds no samples"
    return waves


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
