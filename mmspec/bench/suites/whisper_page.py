"""The tables of the suite of recognisers, as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmspec.bench.suites.real_page import markdown_table, spread_cell
from mmspec.utils.provenance import machine

_HEADS = ("contender", "tokens per call", "calls", "word errors", "x `generate`", "CPU, x `generate`", "x assisted", "same text")


def whisper_tables(found: Mapping[str, Any]) -> str:
    """Return the tables of what `measure` returned.

    Args:
        found: its result, or the JSON file that holds it.

    Returns:
        Markdown: what was run and where, and for each kind of recordings, and all of them, the contenders.
    """
    about, origin = found["about"], found["provenance"]
    clips = {name for turn in found["turns"] for name in turn["turn"]["prompts"]}
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    parts = [
        f"`{about['model'].rstrip('/').rpartition('/')[2]}`, {about['parameters'] / 1e6:.0f} M parameters, {about['dtype']}; {len(clips)} "
        f"recordings, greedy, at most {about['max_new_tokens']} new tokens. {machine(origin)}; {versions}; {origin['date'][:10]}."
    ]
    for kind, size in dict.fromkeys((row["kind"], row["batch_size"]) for row in found["rows"]):
        rows = [row for row in found["rows"] if (row["kind"], row["batch_size"]) == (kind, size)]
        parts += [f"### Recordings: {kind}, batch {size}", _contenders(rows)]
        parts += [f"- {row['contender']} refused: {row['refused']}" for row in rows if row["refused"]]
    return "\n\n".join(parts) + "\n"


def _contenders(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in (row for row in rows if not row["refused"]):
        calls = [f"{row['tokens_per_call']:.2f}", str(row["target_calls"])] if row["target_calls"] else ["", ""]
        errors = f"{row['word_errors'] / max(1, row['words']):.1%} ({row['word_errors']} of {row['words']})"
        spreads = [spread_cell(row[key]) for key in ("to_plain", "cpu_to_plain", "to_assisted")]
        lines.append([row["contender"], *calls, errors, *spreads, f"{row['same_text']['same']} of {row['same_text']['of']}"])
    return markdown_table(_HEADS, lines)
