"""The picture section as HTML: figures, a grid of pictures (prompts down, methods across), and where codes were committed together."""

import base64
from collections.abc import Sequence
from html import escape
from typing import Any

from PIL import Image

from mmspec.bench.report.page import kept, table, way
from mmspec.vision.quality.contact_sheets import RAMP, temperature, to_bytes

_HEAD = ("method", "exactness", "forwards", "codes a forward", "drift", "seconds", "&times; plain", "same as plain")


def section_html(found: Any, rows: Sequence[dict[str, Any]]) -> str:
    """`found`: runs by method; `rows`: the table's figures."""
    model = found.loaded.model
    size = sum(parameter.numel() for parameter in model.model.parameters()) / 1e6
    cells = f"{model.raster.height} &times; {model.raster.width}"
    ways = [row["way"] for row in rows]
    guided = "" if found.loaded.guidance is None else f", guidance {found.loaded.guidance:g}"
    pictures = [[_cell(found.runs[way][number]) for way in ways] for number in range(len(found.prompts))]
    seen = [way for way in ways if found.runs[way][0].runs is not None]
    most = max(int(run.runs.max()) for way in seen for run in found.runs[way])
    maps = [[_map(found.runs[way][number], most) for way in seen] for number in range(len(found.prompts))]
    return f"""<h2>Pictures</h2>
<p class="soft">A target of {size:.1f} M parameters that writes {cells} codes a picture, prompt by prompt{guided}, by the same seeds.</p>
{table(_HEAD, [_row(row) for row in rows], words=2)}
<p class="note">Figures are a picture's means; forwards are counts, the same on every machine, seconds are this machine's, and methods took
turns prompt by prompt. A token-exact method must draw plain decoding's picture code for code. A distribution-exact one
draws another picture from
the same distribution. Drift is what a lossy method spent of total variation, summed over a picture's codes.</p>
{grid(found.prompts, ways, pictures)}
<h3>Where codes were committed together</h3>{_key(most)}
{grid(found.prompts, seen, maps)}"""


def _row(row: dict[str, Any]) -> list[str]:
    return [
        *way(row),
        f"{row['forwards']:.1f}",
        f"{row['tokens_per_call']:.2f}",
        "" if row["drift"] is None else f"{row['drift']:.2f}",
        f"{row['seconds']:.2f}",
        f"{row['times_plain']:.2f}",
        kept(row["same_pictures"], row["exactness"]),
    ]


def grid(prompts: Sequence[str], ways: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Prompts down, methods across."""
    head = "".join(f"<th>{escape(way)}</th>" for way in ways)
    lines = (f"<tr><th>{escape(prompt)}</th>{''.join(row)}</tr>" for prompt, row in zip(prompts, cells, strict=True))
    return f'<div class="panel"><table class="pics"><thead><tr><th></th>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _cell(run: Any) -> str:
    drift = "" if run.stats.drift is None else f"<br>drift {run.stats.drift:.1f}"
    same = '<br><b class="same">same picture</b>' if run.same and run.stats.row_calls < run.stats.tokens else ""
    return f"<td>{picture(run.picture, 'drawn')}<small>{run.stats.row_calls} forwards<br>{run.seconds:.2f} s{drift}{same}</small></td>"


def _map(run: Any, most: int) -> str:
    return f"<td>{picture(temperature(run.runs, most), 'where runs were')}<small>at most {int(run.runs.max())}</small></td>"


def _key(most: int) -> str:
    stops = ", ".join(f"rgb({red},{green},{blue})" for red, green, blue in RAMP)
    return (
        '<p class="note">How many codes the forward that wrote a cell committed in all.</p>'
        f'<p class="legend"><span>1</span><span class="ramp" style="background:linear-gradient(90deg, {stops})"></span>'
        f"<span>{most} codes in one forward</span></p>"
    )


def picture(shown: Image.Image, words: str) -> str:
    """The picture itself, within the page."""
    data = base64.b64encode(to_bytes(shown)).decode()
    return f'<img alt="{words}" src="data:image/png;base64,{data}">'
