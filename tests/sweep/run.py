"""Examine architectures: greedy and coupled x plain, chain, model-free chain, comb, static tree x batch 1 and a ragged batch of 3.

Greedy is compared with the class's own `generate(do_sample=False)` on each row alone; coupled sampling with mmspec's plain decoding of
each row alone with the row's seed.
"""

import copy
import signal
import traceback
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import mmspec
from tests.sweep.case import Case
from tests.sweep.shrink import perturbed

EXACT, NO_TREES, REFUSED, NOT_RUN = "exact", "exact without trees", "refused", "not run"
WRONG, TRACEBACK = "WRONG", "TRACEBACK"
OUTCOMES = (EXACT, NO_TREES, REFUSED, NOT_RUN, WRONG, TRACEBACK)
SEED = 11
LIMIT = 180  # seconds an architecture may take
PACKAGE = str(Path(mmspec.__file__).parent)

LINEAR = {"plain": {}, "chain": {"drafter": "another", "draft_length": 4}, "lookup": {"drafter": "lookup", "draft_length": 4}}
TREES = {
    "comb": {"drafter": "another", "draft_length": 4, "tree": "comb"},
    "tree": {"drafter": "another", "tree": (3, 2, 1)},
}
MODES = {"greedy": {"temperature": 0.0}, "coupled": {"temperature": 1.0, "accept": "coupled"}}


@dataclass(frozen=True)
class Record:
    """The outcome of one architecture and, in one line, why."""

    name: str
    kind: str
    architecture: str
    outcome: str
    reason: str = ""


class Refused(Exception):
    """A ValueError of one line, raised by mmspec itself."""


class Wrong(Exception):
    """Tokens that differ from the reference."""


class Crashed(Exception):
    """Any other exception."""


class OverTime(BaseException):
    """The time limit; no Exception, so that nothing in between takes it for one of its own."""


@contextmanager
def within(seconds: int):
    """Raise OverTime when the block takes longer. Main thread only."""

    def stop(*_: Any) -> None:
        raise OverTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def one_line(error: BaseException, most: int = 240) -> str:
    """`error` in one line of at most `most` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else text[: most - 3] + "..."


def examine(case: Case, pairs: bool = False) -> Record:
    """The outcome of `case`. Never raises, except on KeyboardInterrupt.

    `pairs`: every pair of rule, draft and batch instead of all their combinations.
    """
    try:
        with within(LIMIT):
            return _record(case, *_outcome(case, pairs))
    except OverTime:
        return _record(case, NOT_RUN, f"took more than {LIMIT} s")


def _record(case: Case, outcome: str, reason: str = "") -> Record:
    return Record(case.name, case.kind, case.architecture, outcome, reason)


def _outcome(case: Case, pairs: bool) -> tuple[str, str]:
    try:
        model = case.make()
    except Exception as error:
        return NOT_RUN, f"no small model could be built: {one_line(error)}"
    try:
        alone = [case.alone(model, row) for row in range(3)]
        case.batch(model, 3)
    except Exception as error:
        return NOT_RUN, f"no inputs could be made for the small model: {type(error).__name__}: {one_line(error)}"
    try:
        expected, own = [case.reference(model, inputs, case.tokens) for inputs in alone], ""
    except Exception as error:
        expected, own = [], f"transformers' own generate fails on the small model: {type(error).__name__}: {one_line(error)}"
    try:
        if own:
            _generate(case, model, 1, {"temperature": 0.0})
            return NOT_RUN, own
        return _compared(case, model, expected, pairs)
    except Refused as error:
        return REFUSED, one_line(error)
    except Wrong as error:
        return WRONG, one_line(error)
    except Crashed as error:
        return (NOT_RUN, own) if own else (TRACEBACK, one_line(error))


def _compared(case: Case, model: Any, expected: list[list[int]], pairs: bool) -> tuple[str, str]:
    """Raises Refused, Wrong or Crashed by the first linear draft that is; trees are judged apart."""
    drafter, alone = perturbed(copy.deepcopy(model)), {"greedy": expected}
    _same_everywhere(case, model, drafter, alone, LINEAR, pairs)
    try:
        _same_everywhere(case, model, drafter, alone, TREES, pairs)
    except Refused as error:
        return NO_TREES, one_line(error)
    return EXACT, _notes(expected)


def _notes(expected: list[list[int]]) -> str:
    """Empty, or that the reference is too uniform to prove much."""
    return "" if len({token for row in expected for token in row}) > 3 else "the small model repeats a few tokens"


def _same_everywhere(case: Case, model: Any, drafter: Any, alone: dict[str, list[list[int]]], drafts: dict[str, dict], pairs: bool) -> None:
    """`alone` holds plain decoding's rows by mode; those of coupled sampling are added where they are not there yet."""
    for turn, (mode, sampling) in enumerate(MODES.items()):
        if mode not in alone:
            alone[mode] = [_generate(case, model, row, sampling | {"seed": SEED + row}, alone=True)[0] for row in range(3)]
        for number, (draft, options) in enumerate(drafts.items()):
            options = options | ({"drafter": drafter} if options.get("drafter") == "another" else {})
            for rows in ((1, 3)[(turn + number) % 2],) if pairs else (1, 3):
                found = _generate(case, model, rows, sampling | options | {"seed": SEED})
                _compare(f"{mode}, {draft}, batch {rows}", found, alone[mode][:rows])


def _compare(where: str, found: list[list[int]], expected: list[list[int]]) -> None:
    for row, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours != theirs:
            first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
            raise Wrong(f"{where}: row {row} differs from token {first} on ({ours[first : first + 3]} for {theirs[first : first + 3]})")


def _generate(case: Case, model: Any, rows: int, options: dict, alone: bool = False) -> list[list[int]]:
    """New tokens by mmspec: of the first `rows` rows, or of row `rows` alone."""
    inputs = case.alone(model, rows) if alone else case.batch(model, rows) if rows > 1 else case.alone(model, 0)
    try:
        out = mmspec.text.generate(model, inputs, max_new_tokens=case.tokens, **options)
    except Exception as error:
        raise _judged(error) from error
    return [tokens[:length].tolist() for tokens, length in zip(out.sequences, out.lengths, strict=True)]


def _judged(error: Exception) -> Exception:
    last = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, ValueError) and "\n" not in str(error) and last.filename.startswith(PACKAGE):
        return Refused(str(error))
    place = f"{Path(last.filename).name}:{last.lineno}"
    return Crashed(f"{type(error).__name__} at {place}: {one_line(error)}")


def sweep(cases: Iterable[Case], progress: Callable[[str], None] = print) -> list[Record]:
    """Examine every case, in order."""
    records = []
    for case in cases:
        torch.manual_seed(0)
        record = examine(case)
        progress(f"{record.outcome:20} {record.kind:8} {record.name:28} {record.reason}")
        records.append(record)
    return records
