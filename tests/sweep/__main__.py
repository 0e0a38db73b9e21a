"""python -m tests.sweep [--only KIND] [--name REGEX] [--write docs/families.md]: examine architectures and write their table."""

import argparse
import importlib
import re
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch
import transformers

from mmspec.models.proof.require import Proof
from mmspec.text import generation
from tests.sweep.case import Case
from tests.sweep.defaults import check_defaults
from tests.sweep.page import merged, page_of, read
from tests.sweep.positions import check_positions
from tests.sweep.run import TRACEBACK, WRONG, sweep

MODULES = ("causal", "seq2seq", "image", "audio", "speech")


def cases(only: str | None = None, name: str | None = None) -> list[Case]:
    """The cases of every module that exists, or of the module `only`, whose names match `name`."""
    found = []
    for module in MODULES if only is None else (only,):
        if importlib.util.find_spec(f"tests.sweep.{module}") is not None:
            found += importlib.import_module(f"tests.sweep.{module}").cases()
    return [case for case in found if name is None or re.search(name, case.name)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("--only", choices=MODULES, help="architectures of one kind")
    parser.add_argument("--name", help="architectures whose model type matches this regular expression")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the rows into this page; rows not examined stay")
    parser.add_argument("--defaults", action="store_true", help="the self-test's small copies of default configs instead: see defaults.py")
    parser.add_argument("--without-proof", action="store_true", help="leave out the self-test, to see what the families alone get right")
    parser.add_argument("--positions", action="store_true", help="every exact class as a drafter with few positions: see positions.py")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if given.defaults:
        return check_defaults(given.name, lambda line: print(line, flush=True))
    if given.positions:
        return check_positions(given.name, lambda line: print(line, flush=True))
    if given.without_proof:
        generation.require = lambda model, family=None, *, trees=False: Proof(True, True)
    records = sweep(cases(given.only, given.name), lambda line: print(line, flush=True))
    counts = Counter(record.outcome for record in records)
    print(", ".join(f"{outcome} {count}" for outcome, count in counts.most_common()) or "no architecture matches")
    if given.write is not None:
        old = [] if given.only is None and given.name is None else read(given.write)
        given.write.write_text(page_of(merged(old, records)), encoding="utf-8")
    return 1 if counts[WRONG] or counts[TRACEBACK] else 0


if __name__ == "__main__":
    sys.exit(main())
