"""docs/families.md: one row for every architecture of the sweep."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import transformers

from tests.families import named_families
from tests.sweep.run import OUTCOMES, Record

PAGE = Path(__file__).parents[2] / "docs" / "families.md"
_HEAD = "| model type | class | kind | outcome | reason |"


def read(page: Path = PAGE) -> list[Record]:
    """The records of a page; none where it has no table of the sweep."""
    lines = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    if _HEAD not in lines:
        return []
    found = []
    for line in lines[lines.index(_HEAD) + 2 :]:
        if not line.startswith("| "):
            break
        name, architecture, kind, outcome, reason = (cell.strip().replace("\\|", "|") for cell in line[2:-1].split(" | "))
        found.append(Record(name, kind, architecture, outcome, reason))
    return found


def merged(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """`old` with the rows of `new` in place of those with the same kind and name."""
    rows = {(record.kind, record.name): record for record in (*old, *new)}
    return [rows[key] for key in sorted(rows)]


def page_of(records: Iterable[Record]) -> str:
    """The whole page."""
    records = list(records)
    kinds = sorted({record.kind for record in records})
    counts = {kind: Counter(record.outcome for record in records if record.kind == kind) for kind in kinds}
    total = Counter(record.outcome for record in records)
    lines = [
        "# Architectures",
        "",
        "After this page you know whether an architecture was tested, and why one is refused.",
        "",
        f"Every architecture of transformers {transformers.__version__} that generates text is built small, with random weights, and",
        "decoded greedily and by coupled sampling: as plain decoding, chain, model-free chain, comb and static tree, alone and in a ragged",
        "batch of three. Greedy tokens are compared with the class's own `generate` on each row alone, sampled ones with plain decoding",
        "of each row alone. Written by `python -m tests.sweep --write docs/families.md`; `--only KIND` and `--name REGEX` examine a part.",
        "",
        "- exact: every token equal.",
        "- exact without trees: chains are equal, branching drafts are refused in one line.",
        "- refused: a ValueError of one line, before anything is generated.",
        "- not run: no small model could be built, or transformers' own `generate` fails on it.",
        "",
        "| kind | architectures | " + " | ".join(OUTCOMES) + " |",
        "|---|" + "---|" * (len(OUTCOMES) + 1),
    ]
    for kind in kinds:
        lines.append(f"| {kind} | {counts[kind].total()} | " + " | ".join(str(counts[kind][outcome]) for outcome in OUTCOMES) + " |")
    lines.append(f"| all | {total.total()} | " + " | ".join(str(total[outcome]) for outcome in OUTCOMES) + " |")
    lines += ["", "## Every architecture", "", _HEAD, "|---|---|---|---|---|"]
    lines += [_row(record) for record in records]
    return "\n".join([*lines, "", *named_families(), ""])


def _row(record: Record) -> str:
    reason = record.reason.replace("|", "\\|")
    return f"| {record.name} | {record.architecture} | {record.kind} | {record.outcome} | {reason} |"
