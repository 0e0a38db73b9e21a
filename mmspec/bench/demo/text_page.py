"""The text section as HTML: the table, two plots, and every example plain and speculative side by side."""

from collections.abc import Sequence
from html import escape
from typing import Any

from mmspec.bench.report.charts import lines, split
from mmspec.bench.report.page import badge, table, tally
from mmspec.bench.report.pieces import TextRound
from mmspec.core.stats import PHASES, Stats

_HEAD = (
    "way",
    "tokens",
    "target calls",
    "tokens per call",
    "draft tokens accepted",
    "tok/s",
    "&times; plain",
    "&times; generate",
    "same text",
)
_GROUPS = (
    '<tr><th></th><th class="group" colspan="4">counts: the same on every machine</th>'
    '<th class="group" colspan="3">seconds: this machine</th><th></th></tr>'
)
KEY = (
    '<p class="legend"><span><i style="background:var(--hit)"></i>accepted draft token</span>'
    '<span><i style="background:var(--own)"></i>the target\'s own token</span>'
    "<span>shades alternate by round; point at one to see it</span></p>"
)


def section_html(found: Any, rows: Sequence[dict[str, Any]], ways: Sequence[Any], pair: Any) -> str:
    """`found`: the runs by way; `rows`: the table's figures."""
    drafting = [way for way in ways if way.drafter is not None]
    accepted = {way.name: by_position(found.totals[way.name]) for way in drafting}
    times = {way.name: found.totals[way.name].seconds for way in ways if found.runs[way.name][0].stats is not None}
    phases = tuple(phase for phase in PHASES if phase != "total")
    size, small = (f"{model.num_parameters() / 1e6:.1f} M" for model in (pair.target, pair.model))
    examples = "".join(_example(number, prompt, found, drafting) for number, prompt in enumerate(found.prompts))
    return f"""<h2>Text</h2>
<p class="soft">A target of {size} parameters and a drafter of {small}, on {len(found.prompts)} prompts,
up to {pair.config.run.max_new_tokens} new tokens each, in float32.</p>
{table(_HEAD, [way_row(row) for row in rows], _GROUPS)}
<p class="note">Ways took turns prompt by prompt in one process; ratios are medians over prompts, against mmspec without a drafter
(&times; plain) and against transformers' generate (&times; generate). Texts are compared token by token: greedy ways with
transformers' generate, sampling with plain sampling by the same seed.</p>
<div class="two"><div class="panel"><h3>Acceptance by position</h3>{lines(accepted, "draft_token of a round")}
<p class="note">Share of draft tokens accepted, among rounds that got that far; point at a dot for the counts.</p></div>
<div class="panel"><h3>Where the time goes</h3>{split(times, phases)}
<p class="note">Seconds over all prompts, mmspec's own clock.</p></div></div>
<h2>What was written</h2>{KEY}{examples}"""


def by_position(stats: Stats) -> list[tuple[int, int]]:
    """(accepted, judged) for the first, second, ... draft token of a round."""
    passed = [sum(stats.histogram[depth + 1 :]) for depth in range(len(stats.reached))]
    return [(hit, tried) for hit, tried in zip(passed, stats.reached, strict=True) if tried]


def way_row(row: dict[str, Any]) -> list[str]:
    """A way's cells in a section's table, as its figures have them."""
    same = row["same_text"]
    flag = "" if same is None else tally(**same)
    return [
        f"{escape(row['way'])}<small>{escape(row['what'])}</small>",
        str(row["tokens"]),
        str(row["target_calls"]),
        f"{row['tokens_per_call']:.2f}",
        "" if row["acceptance"] is None else f"{row['acceptance']:.0%}",
        f"{row['tokens_per_second']:.0f}",
        f"{row['times_plain']:.2f}",
        "" if row["times_generate"] is None else f"{row['times_generate']:.2f}",
        flag,
    ]


def _example(number: int, prompt: str, found: Any, ways: Sequence[Any]) -> str:
    tabs, panes = [], []
    for index, way in enumerate(ways):
        run, base = found.runs[way.name][number], found.runs[way.base][number]
        mark = f"e{number}w{index}"
        checked = " checked" if index == 0 else ""
        tabs.append(f'<input type="radio" name="e{number}" id="{mark}"{checked}><label for="{mark}">{escape(way.name)}</label>')
        panes.append(f'<div class="pane">{pane(way, run, base)}</div>')
    first = prompt.strip().splitlines()[0]
    title = escape(first if len(first) <= 90 else first[:87] + "...")
    return (
        f'<details{" open" if number == 0 else ""}><summary>{title}</summary><p class="prompt">{escape(prompt)}</p>'
        f'<div class="tabs">{"".join(tabs)}{"".join(panes)}</div></details>'
    )


def pane(way: Any, run: Any, base: Any) -> str:
    stats = run.stats
    figures = f"{stats.tokens} tokens in {stats.row_calls} calls: {stats.tokens_per_call:.2f} per call"
    return (
        f'<div class="cols"><div><h4>{escape(way.base)}<span class="note">{len(base.tokens)} tokens, one call each</span></h4>'
        f'<div class="text">{_plain(run, base)}</div></div>'
        f'<div><h4>{escape(way.name)}<span class="note">{figures}</span> {badge(bool(run.same))}</h4>'
        f'<div class="text">{"".join(_round(n, found) for n, found in enumerate(run.rounds, 1))}</div></div></div>'
    )


def _plain(run: Any, base: Any) -> str:
    """The base's text; what follows the first difference is marked, should there be one."""
    if run.same:
        return escape(base.text)
    same = next((n for n, (a, b) in enumerate(zip(run.text, base.text, strict=False)) if a != b), min(len(run.text), len(base.text)))
    return f'{escape(base.text[:same])}<span class="diff">{escape(base.text[same:])}</span>'


def _round(number: int, found: TextRound) -> str:
    """One round's run of text; pointing at it tells what was drafted and what came of it."""
    draft_tokens, own = "".join(found.pieces[: found.accepted]), "".join(found.pieces[found.accepted :])
    tip = f"round {number}: {found.accepted} of {found.drafted} draft tokens accepted" + (", then the target's own token" if own else "")
    hit = f'<span class="h">{escape(draft_tokens)}</span>' if draft_tokens else ""
    return f'<span class="r" title="{escape(tip)}">{hit}{f"<span class=o>{escape(own)}</span>" if own else ""}</span>'
