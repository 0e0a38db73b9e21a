"""The recommendations' section as HTML: figures, and for some users what they had, what they get, and how few calls it took."""

from collections.abc import Sequence
from html import escape
from math import exp
from typing import Any

from mmspec.bench.report.page import table, tally

_HEAD = ("way", "exactness", "calls a user", "levels a call", "kept", "ms a user", "&times; plain", "&times; generate", "same items")
_SHOWN = 4
_COLOURS = ("var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)")


def section_html(found: Any, rows: Sequence[dict[str, Any]]) -> str:
    """`found`: runs by way; `rows`: the table's figures."""
    mini = found.mini
    size = sum(parameter.numel() for parameter in mini.target.parameters()) / 1e6
    items, levels = len(mini.catalogue), mini.catalogue.levels
    users = "".join(_user(found, number) for number in range(min(_SHOWN, len(found.users))))
    return f"""<h2>Recommendations</h2>
<p class="soft">A target of {size:.1f} M parameters over a made-up shop of {items:,} items, each written as {levels} codes.
Beam search finds the ten best items of {len(found.users)} users it has not seen.</p>
{table(_HEAD, [_row(row) for row in rows], words=2)}
<p class="note">Calls are target forwards a user, the same on every machine: plain search makes one a level. Kept is the share
of drafted levels whose beams were all drafted. Milliseconds are this machine's, one user at a time, and ways took turns;
&times; generate compares with transformers' constrained beam search. All must find plain search's very items, in order.</p>
<h3>What they had, what they get</h3>
<div class="two">{users}</div>"""


def _row(row: dict[str, Any]) -> list[str]:
    same = row["same_items"]
    return [
        f"{escape(row['way'])}<small>{escape(row['what'])}</small>",
        f'<span style="white-space:nowrap">{escape(row["exactness"])}</span>',
        f"{row['forwards']:.2f}",
        f"{row['tokens_per_call']:.2f}",
        "" if row["acceptance"] is None else f"{row['acceptance']:.0%}",
        f"{1000 * row['seconds']:.1f}",
        f"{row['times_plain']:.2f}",
        f"{row['times_generate']:.2f}",
        "" if same is None else tally(**same),
    ]


def _user(found: Any, number: int) -> str:
    catalogue, plain = found.mini.catalogue, found.runs["plain"][number]
    had = "".join(f"<li>{escape(catalogue.name(item))}</li>" for item in found.users[number][-8:])
    most = max(plain.scores)
    lines = "".join(
        f"<span>{escape(catalogue.name(item))}</span>{_bar(exp(catalogue.levels * (score - most)))}"
        f'<span class="num">{catalogue.levels * score:.2f}</span>'
        for item, score in zip(plain.items, plain.scores, strict=True)
    )
    calls = "".join(f"<span>{escape(way.name)}</span>{_levels(found.runs[way.name][number].committed)}" for way in found.ways)
    return f"""<div class="panel"><h3>User {number + 1}</h3><p class="note">Their last {min(8, len(found.users[number]))} items</p>
<ul style="margin:.2rem 0 .8rem;padding-left:1.2rem;font-size:.9rem">{had}</ul>
<p class="note">The ten best next ones, with the log-probability of their codes</p><div class="bars">{lines}</div>
<p class="note" style="margin-top:.9rem">Levels by the call that committed them</p>
<div class="bars" style="grid-template-columns:max-content 1fr max-content">{calls}</div></div>"""


def _bar(share: float) -> str:
    return f'<span class="bar"><i style="width:{100 * share:.1f}%;background:var(--c0)"></i></span>'


def _levels(committed: Sequence[int]) -> str:
    """One cell a level, coloured by call."""
    calls = [call for call, count in enumerate(committed) for _ in range(count)]
    share = 100 / max(1, len(calls))
    cells = "".join(
        f'<i title="call {call + 1}" style="width:{share:.2f}%;border-right:1px solid var(--card);'
        f'background:{_COLOURS[call % len(_COLOURS)]}"></i>'
        for call in calls
    )
    return f'<span class="bar">{cells}</span><span class="num">{len(committed)}</span>'
