"""The benchmark's figures as a page."""

from html import escape
from typing import Any

from mmspec.bench.compare.peers import DRAFTED, ENGINE, PLAIN
from mmspec.bench.report.charts import ratios, split
from mmspec.bench.report.page import cards, page, table
from mmspec.core.stats import PHASES

_HEAD = ("contender", "tokens", "target calls", "tokens per call", "tok/s", "times plain", "times assisted", "same text")


def bench_page(found: dict[str, Any]) -> str:
    """The report of what `mmspec bench` measured."""
    rows = {row["contender"]: row for row in found["contenders"]}
    ran = [row for row in rows.values() if not row["refused"]]
    best = rows.get(DRAFTED, rows[ENGINE])
    ratio = best["ratio_to_plain"]
    figures = [
        (f"{best['tokens_per_call']:.2f}", "tokens per target call: a count, the same on every machine"),
        (f"{ratio['median']:.2f}&times;", f"plain generate's speed on this machine (quartiles {ratio['low']:.2f} to {ratio['high']:.2f})"),
    ]
    if best["same_text"]:
        figures.append((f"{best['same_text']['same']} of {best['same_text']['of']}", "outputs token for token those of plain generate"))
    settings = found["settings"]
    lead = (
        f"{settings['target']['path']} with drafter {settings['drafter']['path'] or settings['drafter']['kind']}: "
        f"{found['prompts']} prompts, "
        f"{found['repeats']} repeats, batch {found['batch_size']}, temperature {settings['run']['temperature']:g}, {found['exactness']}"
    )
    bars = [
        (row["contender"], *(row["ratio_to_plain"][key] for key in ("median", "low", "high"))) for row in ran if row["contender"] != PLAIN
    ]
    phases = tuple(phase for phase in PHASES if phase != "total")
    times = {row["contender"]: row["seconds"] for row in ran if row["seconds"]}
    body = [
        cards(figures),
        table(_HEAD, [_row(row) for row in rows.values()]),
        '<p class="note">Contenders took turns prompt by prompt in one process. '
        "Ratios are paired by prompt and repeat: medians with quartiles.</p>",
        f'<h2>Speed against plain generate</h2><div class="panel">{ratios(bars)}'
        '<p class="note">Medians with quartiles; the dashed line is plain generate.</p></div>'
        if bars
        else "",
        f'<h2>Where mmspec spends its time</h2><div class="panel">{split(times, phases)}</div>',
    ]
    return page("mmspec bench", lead, body, found["provenance"])


def _row(row: dict[str, Any]) -> list[str]:
    name = escape(row["contender"])
    if row["refused"]:
        return [f"{name}<small>refused: {escape(row['refused'])}</small>", *[""] * (len(_HEAD) - 1)]
    same = "" if row["same_text"] is None else f"{row['same_text']['same']} of {row['same_text']['of']}"
    spreads = [_spread(row[key], digits) for key, digits in (("tokens_per_second", 0), ("ratio_to_plain", 2), ("ratio_to_assisted", 2))]
    return [name, str(row["tokens"]), str(row["target_calls"]), f"{row['tokens_per_call']:.2f}", *spreads, same]


def _spread(spread: dict[str, float] | None, digits: int) -> str:
    if spread is None:
        return ""
    return f"{spread['median']:.{digits}f}<small>{spread['low']:.{digits}f} to {spread['high']:.{digits}f}</small>"
