"""The section of pictures and questions as HTML: figures, two plots, and every picture with its answers round by round."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mmspec.bench.demo.text_page import KEY, by_position, pane, way_row
from mmspec.bench.report.charts import lines, split
from mmspec.bench.report.page import table
from mmspec.core.stats import PHASES

_COUNTS = ("tokens", "target calls", "tokens per call", "draft tokens accepted")
_HEAD = ("way", *_COUNTS, "tok/s", "&times; plain", "&times; generate", "same answer")
_GROUPS = (
    '<tr><th></th><th class="group" colspan="4">counts: the same on every machine</th>'
    '<th class="group" colspan="3">seconds: this machine</th><th></th></tr>'
)
_STYLE = """<style>.seen { display:grid; grid-template-columns:auto 1fr; gap:1.4rem; align-items:start; background:var(--card);
 border:1px solid var(--line); border-radius:12px; padding:1.1rem; margin:.9rem 0 } .seen .of { display:flex; gap:.5rem; flex-wrap:wrap }
.seen img { width:192px; height:auto; image-rendering:pixelated; border-radius:8px; border:1px solid var(--line); display:block }
.seen .of.both img { width:132px } .seen h3 { margin:0 0 .5rem } .seen .tabs { margin:.4rem 0 0 } .seen .cols { gap:1.6rem }
@media (max-width:720px) { .seen { grid-template-columns:minmax(0,1fr) } }</style>"""


def section_html(found: Any, rows: Sequence[dict[str, Any]], words: Mapping[str, Mapping[str, tuple[int, int]]]) -> str:
    """`found`: the runs by way; `rows`: the table's figures; `words`: draft tokens accepted and judged, by way and kind."""
    pair = found.pair
    size = pair.target.num_parameters() / 1e6
    drafting = [way for way in found.ways if found.totals[way.name].drafted and not way.temperature]
    accepted = {way.name: by_position(found.totals[way.name]) for way in drafting if way.shown or "wrong" in way.name}
    spent = {way.name: found.totals[way.name].seconds for way in found.ways if way.peer is None and not way.temperature}
    times = {name: {phase.replace("_", " "): seconds for phase, seconds in row.items()} for name, row in spent.items()}
    phases = tuple(phase.replace("_", " ") for phase in PHASES if phase != "total")
    shown = [way for way in drafting if way.shown]
    count = len(found.requests)
    examples = "".join(_example(number, request, found, shown) for number, request in enumerate(found.requests))
    return f"""<h2>Questions about pictures</h2>{_STYLE}
<p class="soft">A target that sees, of {size:.1f} M parameters, on {count} drawn pictures it was not trained on,
up to {pair.config.run.max_new_tokens} new tokens each, in float32. Drafters draft 5 tokens; what they read of a picture is their view.
Answers are the target's, right or wrong: it counts right two times in three, says its card.</p>
{table(_HEAD, [way_row(row) for row in rows], _GROUPS)}
<p class="note">Ways took turns picture by picture in one process; ratios are medians over pictures, encoding of pictures and both prompts
included. Answers are compared token by token with transformers' generate (plain), with plain decoding (greedy ways) or with plain sampling
by the same seed. The wrong picture is a control: a drafter that sees must lose by it, and the answer must not change.</p>
<div class="two"><div class="panel"><h3>Acceptance by position</h3>{lines(accepted, "draft_token of a round")}
<p class="note">Share of draft tokens accepted, among rounds that got that far; point at a dot for the counts.</p></div>
<div class="panel"><h3>Where the time goes</h3>{split(times, phases)}
<p class="note">Seconds over all pictures, mmspec's own clock. encode: the target looks at the pictures, once a request.</p></div></div>
{_by_kind(words)}
<h3>What was seen, and said</h3>{KEY}{examples}"""


def _by_kind(words: Mapping[str, Mapping[str, tuple[int, int]]]) -> str:
    """A row a way, a column a kind of word, those that take nothing from the picture last."""
    kinds = list(dict.fromkeys(kind for found in words.values() for kind in found))
    kinds.sort(key=lambda kind: (kind == "function", kind))

    def cell(found: Mapping[str, tuple[int, int]], kind: str) -> str:
        hits, of = found.get(kind, (0, 0))
        return f'<span title="{hits} of {of}">{hits / of:.0%}</span>' if of else ""

    lines = [[escape(name), *(cell(found, kind) for kind in kinds)] for name, found in words.items()]
    head = ("draft tokens accepted, by kind of word", *(kind if kind != "function" else "others" for kind in kinds))
    return f"""{table(head, lines)}<p class="note">Colours, shapes, sizes and places have to be seen, other words follow from language:
a drafter that only reads misses some of the first, and so does one that looks at a wrong picture.</p>"""


def _example(number: int, request: Any, found: Any, ways: Sequence[Any]) -> str:
    """The pictures, and their answer plain and drafted, a tab a way."""
    tabs, panes = [], []
    for index, way in enumerate(ways):
        run, base = found.runs[way.name][number], found.runs[way.base][number]
        mark = f"v{number}w{index}"
        checked = " checked" if index == 0 else ""
        tabs.append(f'<input type="radio" name="v{number}" id="{mark}"{checked}><label for="{mark}">{escape(way.name)}</label>')
        panes.append(f'<div class="pane">{pane(way, run, base)}</div>')
    pictures = "".join(_img(picture) for picture in request.pictures)
    both = " both" if len(request.pictures) > 1 else ""
    return (
        f'<div class="seen"><div class="of{both}">{pictures}</div><div><h3>{escape(request.prompt)}</h3>'
        f'<div class="tabs">{"".join(tabs)}{"".join(panes)}</div></div></div>'
    )


def _img(picture: Any) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return f'<img alt="a picture that was asked about" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
