"""`mmspec demo`: every shipped modality, plain and speculative, on the terminal and as one HTML file."""

from typing import Annotated, Any

import typer
from rich.table import Table

from mmspec.commands import common
from mmspec.utils.files import whole
from mmspec.utils.places import Writes

EXAMPLES = """Examples:

\b
  mmspec demo
  mmspec demo --quick --out /tmp/demo.html
  mmspec demo --json --seed 3
"""


def demo(
    out: Annotated[
        str, common.option(common.SHOW, "Where the report goes; mmspec-demo.html by default.", metavar="FILE"), Writes()
    ] = "mmspec-demo.html",
    quick: Annotated[bool, common.option(common.WHAT, "Fewer and shorter examples.", "--quick")] = False,
    device: common.DEVICE = None,
    seed: common.SEED = None,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Decode the shipped minis plain and speculatively, compare, and write a report."""
    from mmspec.utils.devices import device_of

    device = "auto" if device is None else device
    device_of(device)
    with whole(out) as sink:
        common.begin(verbose)
        from mmspec.bench.demo.run import DemoRequest, report, run_demo, work
        from mmspec.utils.provenance import machine, provenance

        request = DemoRequest(quick, seed or 0, device)
        with common.progress("demo", work(request)) as done:
            sections = run_demo(DemoRequest(quick, request.seed, request.device, done))
        sink.write(report(sections, request))
    about = provenance(device_of(request.device))
    if as_json:
        found = {name: {"ways": s.rows, "same": {"same": s.same, "of": s.of}, "promise": s.promise} for name, s in sections.items()}
        common.emit({"report": out, "sections": found, "provenance": about})
    else:
        for section in sections.values():
            common.console(False).print(_table(section))
        common.console(False).print(f"Seconds are this machine's: {machine(about)}. Report: {out}", soft_wrap=True)
    if any(section.same < section.of for section in sections.values()):
        common.note("mmspec: some outputs differ from what they must equal: see the report, and run mmspec check")
        raise typer.Exit(1)


_COLUMNS = {
    "per call": ("tokens_per_call", ".2f"),
    "kept": ("acceptance", ".0%"),
    "tok/s": ("tokens_per_second", ".0f"),
    "x plain": ("times_plain", ".2f"),
    "x generate": ("times_generate", ".2f"),
    "exactness": ("exactness", ""),
    "drift": ("drift", ".2f"),
}


def _table(section: Any) -> Table:
    """Print one row a method. Columns that are empty for the whole section are left out, and exactness if all rows are token-exact."""
    from mmspec.bench.report.page import compared
    from mmspec.core.rules.base import TOKEN_EXACT

    title = f"{section.title}: {section.same} of {section.of} {section.promise}"
    table = Table(title=title, title_justify="left", title_style="bold")
    columns = {name: where for name, where in _COLUMNS.items() if any(row.get(where[0]) is not None for row in section.rows)}
    if all(row["exactness"] in ("", TOKEN_EXACT) for row in section.rows):
        del columns["exactness"]
    for name in ("way", *columns, "same"):
        table.add_column(name, justify="left" if name in ("way", "exactness") else "right", no_wrap=True)
    for row in section.rows:
        cells = ["" if row.get(key) is None else format(row[key], form) for key, form in columns.values()]
        same = compared(row)
        table.add_row(row["way"], *cells, "" if same is None else f"{same['same']}/{same['of']}")
    return table
