"""The tables of the suite of real models, as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmspec.bench.suites.summary import ALL
from mmspec.utils.provenance import machine

Rows = Sequence[Mapping[str, Any]]


def real_tables(found: Mapping[str, Any]) -> str:
    """Return the tables of what `measure` returned.

    Args:
        found: its result, or the JSON file that holds it.

    Returns:
        Markdown: what was run and where, and for each temperature and batch size the contenders over all kinds of prompts, their speed by
        kind, against `generate` and transformers' prompt lookup, and their tokens per call by kind.
    """
    parts = [_about(found)]
    for setting in dict.fromkeys(_setting(row) for row in found["rows"]):
        rows = [row for row in found["rows"] if _setting(row) == setting]
        temperature, top_p, size = setting
        top = "" if top_p is None else f", top-p {top_p}"
        parts.append(f"### {'Greedy' if temperature == 0 else f'Temperature {temperature}{top}'}, batch {size}")
        parts += _tables(rows)
    return "\n\n".join(parts) + "\n"


def _setting(row: Mapping[str, Any]) -> tuple[float, float | None, int]:
    return row["temperature"], row["top_p"], row["batch_size"]


def _about(found: Mapping[str, Any]) -> str:
    about, origin = found["about"], found["provenance"]
    names = {name for turn in found["turns"] for name in turn["turn"]["prompts"]}
    own = sum(name.startswith("own/") for name in names)
    source = "" if not own else f" ({own} of them our own, for want of the data sets)"
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    name = about["model"].rstrip("/").rpartition("/")[2]
    return (
        f"`{name}`, {about['parameters'] / 1e6:.0f} M parameters, {about['dtype']}; {len(names)} prompts"
        f"{source} of at most {about['max_prompt_tokens']} tokens, {about['max_new_tokens']} new tokens. {machine(origin)}; {versions}; "
        f"{origin['date'][:10]}."
    )


def _tables(rows: Rows) -> list[str]:
    """Contenders over all kinds, and by kind."""
    kinds = [kind for kind in dict.fromkeys(row["kind"] for row in rows) if kind != ALL]
    whole = [row for row in rows if row["kind"] == (ALL if len(kinds) > 1 else kinds[0])]
    ran = [row["contender"] for row in whole if not row["refused"]]
    refused = [f"- {row['contender']} refused: {row['refused']}" for row in whole if row["refused"]]
    parts = [_contenders([row for row in whole if not row["refused"]])]
    if refused:
        parts.append("\n".join(refused))
    if len(kinds) > 1:
        parts.append("Times the speed of `generate`, by kind of prompt (medians):")
        parts.append(_by_kind(rows, kinds, ran, lambda row: _median(row["to_plain"])))
        if any(row["to_lookup"] for row in whole if not row["refused"]):
            parts.append("Times the speed of transformers' prompt lookup, by kind of prompt (medians):")
            parts.append(_by_kind(rows, kinds, ran, lambda row: _median(row["to_lookup"])))
        parts.append("Tokens per call of the model, by kind of prompt:")
        parts.append(_by_kind(rows, kinds, ran, lambda row: f"{row['tokens_per_call']:.2f}"))
    return parts


def _contenders(rows: Rows) -> str:
    heads = ("contender", "tokens per call", "calls", "x `generate`", "CPU, x `generate`", "x prompt lookup", "same text")
    lines = []
    for row in rows:
        same = "" if row["same_text"] is None else f"{row['same_text']['same']} of {row['same_text']['of']}"
        spreads = [spread_cell(row[key]) for key in ("to_plain", "cpu_to_plain", "to_lookup")]
        lines.append([row["contender"], f"{row['tokens_per_call']:.2f}", str(row["target_calls"]), *spreads, same])
    return markdown_table(heads, lines)


def _by_kind(rows: Rows, kinds: Sequence[str], names: Sequence[str], cell: Callable[[Mapping[str, Any]], str]) -> str:
    cells = {(row["contender"], row["kind"]): "refused" if row["refused"] else cell(row) for row in rows}
    return markdown_table(("contender", *kinds), [[name, *(cells[name, kind] for kind in kinds)] for name in names])


def markdown_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _median(spread: Mapping[str, float] | None) -> str:
    return "" if spread is None else f"{spread['median']:.2f}"


def spread_cell(spread: Mapping[str, float] | None) -> str:
    """Return median and quartiles as the cell of a table; empty for None."""
    return "" if spread is None else f"{spread['median']:.2f} ({spread['low']:.2f}-{spread['high']:.2f})"
