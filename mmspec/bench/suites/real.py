"""Real models: transformers' ways to generate against mmspec's drafters, on eight kinds of prompts, greedy and sampled, batch 1 and 4.

All contenders run in one process and take turns batch by batch, another one first every time, so that ratios are paired. With `output`
every batch is added to a file of JSON lines when it is done, and a run that was stopped continues there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mmspec import minis
from mmspec.bench.suites.contenders import Measured, Run, named_contenders, real_contenders
from mmspec.bench.suites.journal import Journal
from mmspec.bench.suites.prompts import BenchPrompt, kinds_of, prompts_of, spread_out
from mmspec.bench.suites.real_page import real_tables as render
from mmspec.bench.suites.summary import turn_rows
from mmspec.loading.text import MINIS, Pair, load_pair
from mmspec.loading.wheels import model_folder
from mmspec.run.config import Config, DrafterSection, RunSection, TargetSection
from mmspec.utils.provenance import provenance

__all__ = ["measure", "render"]

NAME = "gemma-3-270m"
SETTINGS = ((0.0, None), (0.7, 0.9))
"""Temperature and top-p of the runs, unless they are given."""
BATCH_SIZES = (1, 4)
_WARM_UP = 4  # new tokens of each contender before the first batch: allocations and self-tests are not timed


@dataclass(frozen=True)
class Turn:
    """Prompts that every contender runs together, under one setting."""

    temperature: float
    top_p: float | None
    batch_size: int
    kind: str
    prompts: tuple[BenchPrompt, ...]

    @property
    def key(self) -> dict[str, Any]:
        """What tells turns apart, ready for JSON."""
        return {**asdict(replace(self, prompts=())), "prompts": [prompt.name for prompt in self.prompts]}


def measure(
    *,
    model: str | None = None,
    device: str = "auto",
    dtype: str = "float32",
    drafter: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int = 0,
    max_new_tokens: int = 64,
    limit: int = 2,
    kinds: str | None = None,
    contenders: str | None = None,
    batch_size: int | None = None,
    max_prompt_tokens: int = 1024,
    output: str | None = None,
    note: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Run the suite.

    Args:
        model: a folder, a GGUF file, a hub name or a mini; the Gemma 3 270M that text/fetch_model.py keeps, by default.
        device: where the models run.
        dtype: of weights.
        drafter: small models and trained drafters, separated by commas, each a contender of its own.
        temperature: of the only run; greedy and 0.7 with top-p 0.9 by default.
        top_p: of that run.
        seed: of the first row of every batch.
        max_new_tokens: per prompt.
        limit: prompts of each kind, rounded up to whole batches.
        kinds: kinds of prompts, separated by commas; all eight by default.
        contenders: names as the tables have them, separated by commas; all by default. `generate` always runs.
        batch_size: of the only run; 1 and 4 by default.
        max_prompt_tokens: longer prompts are left out.
        output: the JSON file that the command writes; batches are added to the same name with the ending .jsonl.
        note: called with a line after every contender.

    Returns:
        Settings, provenance, the rows of `summary.turn_rows`, and every turn, ready for JSON.

    Raises:
        ValueError: for options that contradict each other, a model or drafter that cannot be loaded, unknown contenders, and an `output` of
            other settings.
    """
    asked, settings = kinds_of(kinds), _settings(temperature, top_p, max_new_tokens)
    pair, mini = _target(model, device, dtype)
    drafters = [name.strip() for name in drafter.split(",")] if drafter else []
    runs = named_contenders(real_contenders(pair, drafters, mini), contenders)
    about = {
        "model": pair.name,
        "parameters": sum(weight.numel() for weight in pair.target.parameters()),
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        "drafters": drafters,
        "contenders": list(runs),
        "seed": seed,
        "max_new_tokens": max_new_tokens,
        "max_prompt_tokens": max_prompt_tokens,
        "chat": pair.chat,
    }
    origin = provenance(pair.target.device)
    fixed = about | {key: origin[key] for key in ("git", "versions", "device", "threads")}
    journal = Journal(None if output is None else Path(output), fixed)
    found = {kind: _fitting(pair, prompts_of(kind), max_prompt_tokens) for kind in asked}
    _note_prompts(found, note)
    sizes = BATCH_SIZES if batch_size is None else (batch_size,)
    turns = [turn for setting in settings for size in sizes for turn in _turns(*setting, size, found, limit)]
    run_turns(pair, runs, turns, journal, seed, max_new_tokens, note, lambda turn: pair.inputs([prompt.text for prompt in turn.prompts]))
    done = [line for turn in turns if (line := journal.found(turn.key)) is not None]
    return {"suite": "real", "about": about, "provenance": origin, "rows": turn_rows(done), "turns": done}


def _settings(temperature: float | None, top_p: float | None, new: int) -> tuple[tuple[float, float | None], ...]:
    """Temperature and top-p of every run, once they are valid."""
    if top_p is not None and temperature is None:
        raise ValueError("--top-p needs --temperature: without it the suite runs greedy and at temperature 0.7 with top-p 0.9")
    settings = SETTINGS if temperature is None else ((temperature, top_p),)
    for each, top in settings:
        RunSection(max_new_tokens=new, temperature=each, top_p=top)
    return settings


def _target(model: str | None, device: str, dtype: str) -> tuple[Pair, Any]:
    """The target, without a drafter, and its mini, if it is one's."""
    name = model or str(model_folder(NAME))
    if model is None and not (Path(name) / "config.json").exists():
        raise ValueError(f"{name} does not exist: fetch it as mmspec recipe text/fetch_model.py tells, or give --model")
    if name in MINIS and MINIS[name] != "text":
        raise ValueError(f"mini {name} reads pictures, and this suite asks in words: give another --model")
    pair = load_pair(Config(target=TargetSection(path=name, device=device, dtype=dtype), drafter=DrafterSection(kind="none")))  # type: ignore[arg-type]
    if pair.hears or pair.sees:
        raise ValueError(f"{name} reads sound or pictures, and this suite asks in words: give another --model")
    return replace(pair, chat=getattr(pair.tokenizer, "chat_template", None) is not None), minis.load("text") if name in MINIS else None


def _fitting(pair: Pair, prompts: Sequence[BenchPrompt], most: int) -> list[BenchPrompt]:
    """Prompts of at most `most` tokens."""
    return [each for each in prompts if len(pair.tokenizer(pair.wrapped(each.text), add_special_tokens=not pair.chat)["input_ids"]) <= most]


def _note_prompts(found: dict[str, list[BenchPrompt]], note: Callable[[str], Any]) -> None:
    for kind, prompts in found.items():
        if not prompts:
            raise ValueError(f"no prompt of kind {kind} is short enough: raise --max-prompt-tokens")
    own = [kind for kind, prompts in found.items() if prompts[0].name.startswith("own/")]
    if own:
        note(f"no data for {', '.join(own)}: short prompts of our own are used; set MMSPEC_DATA to the folder of data sets")


def _turns(temperature: float, top_p: float | None, size: int, found: dict[str, list[BenchPrompt]], limit: int) -> Iterator[Turn]:
    """Every batch of one setting: `limit` prompts of each kind, rounded up to whole batches."""
    for kind, prompts in found.items():
        chosen = spread_out(prompts, -(-limit // size) * size)
        for first in range(0, len(chosen), size):
            yield Turn(temperature, top_p, size, kind, tuple(chosen[first : first + size]))


def run_turns(
    pair: Pair,
    runs: dict[str, Run],
    turns: Sequence[Turn],
    journal: Journal,
    seed: int,
    new: int,
    note: Callable[[str], Any],
    inputs_of: Callable[[Turn], dict[str, Any]],
) -> None:
    """Run every turn that the journal does not hold, and add it there.

    Args:
        pair: the target.
        runs: the contenders.
        turns: every turn.
        journal: where results are kept.
        seed: of the first row of every batch.
        new: most new tokens.
        note: called with a line after every contender.
        inputs_of: the target's inputs of a turn.
    """
    left = [(place, turn) for place, turn in enumerate(turns) if journal.found(turn.key) is None]
    for done, (place, turn) in enumerate(left):
        inputs = inputs_of(turn)
        if done == 0:
            _take_turns(_under(pair, turn, _WARM_UP), runs, inputs, seed, 0, lambda line: None)
        setting = "greedy" if turn.temperature == 0 else f"temperature {turn.temperature}"
        head = f"[{place + 1}/{len(turns)}] {setting}, batch {turn.batch_size}, {turn.kind}"
        outcomes = _take_turns(_under(pair, turn, new), runs, inputs, seed, place, lambda line, head=head: note(f"{head}: {line}"))
        journal.add(turn.key, {name: outcome.to_dict() for name, outcome in outcomes.items()})


def _take_turns(
    pair: Pair, runs: dict[str, Run], inputs: dict[str, Any], seed: int, place: int, note: Callable[[str], Any]
) -> dict[str, Measured]:
    """Run all contenders on the same inputs, the one at `place` first."""
    names, found = list(runs), {}
    for name in names[place % len(names) :] + names[: place % len(names)]:
        found[name] = done = runs[name](pair, inputs, seed)
        note(f"{name} refused: {done.refused}" if done.refused else f"{name} {done.count} tokens, {done.calls} calls, {done.seconds:.1f} s")
    return {name: found[name] for name in names}


def _under(pair: Pair, turn: Turn, new: int) -> Pair:
    """`pair` with the settings of a turn."""
    run = RunSection(max_new_tokens=new, temperature=turn.temperature, top_p=turn.top_p)
    return replace(pair, config=replace(pair.config, run=run))
