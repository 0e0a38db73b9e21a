"""Recognisers: transformers' `generate`, plain and assisted, and faster-whisper against mmspec, on recordings; greedy, in English.

All contenders but faster-whisper get the same features. They take turns as in the suite of real models, and a run that was stopped
continues.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmspec.bench.suites.contenders import ENGINE, PLAIN, Measured, Run, drafter_contenders, mmspec_run, named_contenders, transformers_run
from mmspec.bench.suites.faster_whisper import NAME, ClipInputs, faster_whisper_run
from mmspec.bench.suites.journal import Journal
from mmspec.bench.suites.prompts import BenchPrompt, spread_out
from mmspec.bench.suites.real import Turn, run_turns
from mmspec.bench.suites.recordings import Recording, compared_words, recorded_kinds, recordings_of
from mmspec.bench.suites.summary import ALL, paired_ratio, turn_rows
from mmspec.bench.suites.whisper_page import whisper_tables as render
from mmspec.loading.text import Pair, load_pair
from mmspec.loading.wheels import model_folder
from mmspec.run.config import Config, DrafterSection, RunSection, TargetSection
from mmspec.run.settings.processors import end_ids
from mmspec.speech.sound.recogniser import word_errors
from mmspec.utils.provenance import provenance

__all__ = ["measure", "render"]

TARGET, DRAFTER = "whisper-base", "whisper-tiny.en"
_PART = 16384  # draft tokens of a lighter drafter's vocabulary: GPT-2's tokens, which Whisper's are, have the frequent ones first
_LIGHTER: dict[str, dict[str, Any]] = {
    "cropped": {"view": "cropped"},
    "cropped + part": {"view": "cropped", "vocabulary": _PART},
    "cropped + int8": {"view": "cropped", "int8": True},
    "cropped + part + int8": {"view": "cropped", "vocabulary": _PART, "int8": True},
}
"""What lighter drafters are called, and the options of `mmspec.text.aligned_drafter` that make them."""


def measure(
    *,
    model: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    drafter: str | None = None,
    max_new_tokens: int = 128,
    limit: int = 8,
    kinds: str | None = None,
    contenders: str | None = None,
    batch_size: int = 1,
    output: str | None = None,
    note: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Run the suite.

    Args:
        model: a recogniser's folder or hub name; the Whisper base that speech/fetch_whisper.py keeps, by default.
        device: where the models run.
        dtype: of weights.
        drafter: recognisers, and names of other drafters, separated by commas, each a contender of its own; tiny.en by default.
        max_new_tokens: per recording.
        limit: recordings of each kind, rounded up to whole batches.
        kinds: kinds of recordings, separated by commas; all by default.
        contenders: names as the tables have them, separated by commas; all by default. `generate` always runs.
        batch_size: recordings that run together.
        output: the JSON file that the command writes; batches are added to the same name with the ending .jsonl.
        note: called with a line after every contender.

    Returns:
        Settings, provenance, rows as in `summary.turn_rows` with word errors and speed relative to assisted generation, and every turn,
        ready for JSON.

    Raises:
        ValueError: for models that cannot be loaded or hear nothing, recordings that are not there, and an `output` of other settings.
    """
    asked = recorded_kinds(kinds)
    RunSection(max_new_tokens=max_new_tokens)
    pair = _recogniser(model or _kept(TARGET), device, dtype)
    drafters = [name.strip() for name in drafter.split(",")] if drafter else [_kept(DRAFTER)]
    runs = named_contenders(recogniser_contenders(pair, drafters), contenders)
    about = {
        "model": pair.name,
        "parameters": sum(weight.numel() for weight in pair.target.parameters()),
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        "drafters": drafters,
        "contenders": list(runs),
        "max_new_tokens": max_new_tokens,
    }
    origin = provenance(pair.target.device)
    journal = Journal(
        None if output is None else Path(output), about | {key: origin[key] for key in ("git", "versions", "device", "threads")}
    )
    rate = pair.processor.feature_extractor.sampling_rate
    heard = {each.name: each for kind in asked for each in recordings_of(kind, rate)}
    turns = [turn for kind in asked for turn in _turns([each for each in heard.values() if each.kind == kind], limit, batch_size)]
    run_turns(pair, runs, turns, journal, 0, max_new_tokens, note, lambda turn: _inputs(pair, [heard[each.name] for each in turn.prompts]))
    done = [line for turn in turns if (line := journal.found(turn.key)) is not None]
    rows = [_with_words(row, done, pair, {name: each.text for name, each in heard.items()}) for row in turn_rows(done)]
    return {"suite": "whisper", "about": about, "provenance": origin, "rows": rows, "turns": done}


def recogniser_contenders(pair: Pair, drafters: Sequence[str]) -> dict[str, Run]:
    """Return every contender by name. Rows that came to their end have an end token, which some contenders leave out.

    Args:
        pair: the target, without a drafter.
        drafters: folders or names.

    Raises:
        ValueError: for a drafter that cannot be loaded.
    """
    found: dict[str, Run] = {PLAIN: transformers_run({})}
    found[NAME] = faster_whisper_run(model_folder(f"{_called(pair.name)}-ctranslate2"))
    found[ENGINE] = mmspec_run(None)
    for name in drafters:
        found |= drafter_contenders(pair, name, _called(name), other_ids=True, lighter=_LIGHTER)
    return {name: _ended(run) for name, run in found.items()}


def _ended(run: Run) -> Run:
    def wrapped(pair: Pair, inputs: dict[str, Any], seed: int) -> Measured:
        done, ends, most = run(pair, inputs, seed), end_ids(pair.target.generation_config), pair.config.run.max_new_tokens
        rows = [ids if len(ids) >= most or ids[-1:] == ends[:1] else [*ids, *ends[:1]] for ids in done.tokens]
        return replace(done, tokens=rows)

    return wrapped


def _called(name: str) -> str:
    """A model's name without the folder that it stands in."""
    return name.rstrip("/").rpartition("/")[2]


def _kept(name: str) -> str:
    """The folder of a Whisper that the recipe keeps. ValueError if it is not there."""
    folder = model_folder(name)
    if not (folder / "config.json").exists():
        size = name.removeprefix("whisper-")
        raise ValueError(f"{folder} does not exist: fetch it with mmspec recipe speech/fetch_whisper.py -- --size {size}, or give another")
    return str(folder)


def _recogniser(name: str, device: str, dtype: str) -> Pair:
    """The target, without a drafter, told to write down English."""
    pair = load_pair(Config(target=TargetSection(path=name, device=device, dtype=dtype), drafter=DrafterSection(kind="none")))  # type: ignore[arg-type]
    if not pair.hears:
        raise ValueError(f"{name} reads text, and this suite is of recordings: give another --model")
    config = pair.target.generation_config
    if getattr(
        config, "is_multilingual", False
    ):  # transformers detects the language of each clip anew otherwise, and may take silence for another
        config.language, config.task = "en", "transcribe"
    return pair


def _turns(found: Sequence[Recording], limit: int, size: int) -> Iterator[Turn]:
    """Every batch of one kind: `limit` recordings, rounded up to whole batches."""
    prompts = [BenchPrompt(each.kind, each.name, each.text) for each in found]
    chosen = spread_out(prompts, -(-limit // size) * size)
    for first in range(0, len(chosen), size):
        yield Turn(0.0, None, size, chosen[first].kind, tuple(chosen[first : first + size]))


def _inputs(pair: Pair, clips: Sequence[Recording]) -> ClipInputs:
    """The features of some clips, on the target's device."""
    extractor = pair.processor.feature_extractor
    found = extractor([clip.wave.numpy() for clip in clips], sampling_rate=extractor.sampling_rate, return_tensors="pt")
    features = found["input_features"].to(pair.target.device, pair.target.dtype)
    return ClipInputs({"input_features": features}, [clip.wave for clip in clips])


def _with_words(row: dict[str, Any], turns: Sequence[dict[str, Any]], pair: Pair, texts: dict[str, str]) -> dict[str, Any]:
    """`row` with word errors, and speed relative to the first assisted generation."""
    if row["refused"]:
        return row
    own = [turn for turn in turns if row["kind"] in (ALL, turn["turn"]["kind"])]
    said = [compared_words(texts[name]) for turn in own for name in turn["turn"]["prompts"]]
    written = [compared_words(pair.decode(ids)) for turn in own for ids in turn["outcomes"][row["contender"]]["tokens"]]
    assisted = next((name for name in own[0]["outcomes"] if name.startswith("transformers assisted")), None)
    return row | {
        "word_errors": sum(word_errors(said, written)),
        "words": sum(len(text.split()) for text in said),
        "to_assisted": None if assisted is None else paired_ratio(own, row["contender"], assisted, "seconds"),
    }
