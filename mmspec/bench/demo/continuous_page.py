"""The section of continuous pictures as HTML: figures, and a grid of pictures (prompts down, ways across)."""

from collections.abc import Sequence
from typing import Any

from mmspec.bench.demo.vision_page import grid, picture
from mmspec.bench.report.page import table, tally, way

_HEAD = ("way", "exactness", "head", "forwards", "tokens a forward", "kept", "seconds", "&times; plain", "alone as in four")


def section_html(found: Any, rows: Sequence[dict[str, Any]]) -> str:
    """`found`: runs by way; `rows`: the table's figures."""
    net, names = found.loaded.model.model, [row["way"] for row in rows]
    size = sum(parameter.numel() for parameter in net.parameters()) / 1e6
    config = net.config
    cells = [[_cell(found.runs[name][number]) for name in names] for number in range(len(found.prompts))]
    slower = all(row["times_plain"] < 1 for row in rows if not row["way"].startswith("plain"))
    seconds = " Here no way of drafting is faster than plain decoding of the same head." if slower else ""
    return f"""<h2>Continuous pictures</h2>
<p class="soft">A target of {size:.1f} M parameters that writes {config.grid} &times; {config.grid} vectors of {config.channels} numbers
a picture, each by a diffusion head's chain of {config.head_steps} steps, with noise {config.sigma_out:g} on every token; and one with a
mixture head.</p>
{table(_HEAD, [_row(row) for row in rows], words=3)}
<p class="note">These pictures are not plain decoding's, and are not meant to be:
a distribution-exact way draws another picture from the same distribution,
as plain decoding does with another seed. What must hold, and is compared here, is that a seed gives the same picture alone and in a batch
of four, number by number within 0.001. Forwards are counts, the same on every machine; seconds are this machine's, ways took turns prompt
by prompt, and &times; plain is against plain decoding by the same head.{seconds}</p>
{grid(found.prompts, names, cells)}"""


def _row(row: dict[str, Any]) -> list[str]:
    return [
        *way(row),
        row["head"],
        f"{row['forwards']:.1f}",
        f"{row['tokens_per_call']:.2f}",
        "" if row["acceptance"] is None else f"{row['acceptance']:.0%}",
        f"{row['seconds']:.2f}",
        f"{row['times_plain']:.2f}",
        tally(**row["same_in_batch"]),
    ]


def _cell(run: Any) -> str:
    same = "" if run.same else '<br><b class="no">another in a batch</b>'
    return (
        f"<td>{picture(run.picture, 'drawn from vectors')}<small>{run.stats.row_calls} forwards<br>{run.seconds:.2f} s{same}</small></td>"
    )
