"""The HTML report of `mmspec bench`."""

from typing import Any

from mmspec.bench.compare.peers import DRAFTED, ENGINE, PLAIN
from mmspec.bench.report.page import phases, render

_CONTENTS = {"glance": "At a glance", "figures": "Every contender", "speed": "Speed", "time": "Time"}


def bench_page(found: dict[str, Any]) -> str:
    """Render the report of a benchmark.

    Args:
        found: what `mmspec bench --json` prints.

    Returns:
        One HTML file.
    """
    ran = {row["contender"]: row for row in found["contenders"] if not row["refused"]}
    best = ran.get(DRAFTED, ran[ENGINE])
    settings, run = found["settings"], found["settings"]["run"]
    lead = (
        f"{settings['target']['path']} with drafter {settings['drafter']['path'] or settings['drafter']['kind']}: "
        f"{found['prompts']} prompts, "
        f"{found['repeats']} repeats, batch {found['batch_size']}, temperature {run['temperature']:g}, {found['exactness']}"
    )
    return render(
        "bench.html",
        title="mmspec bench",
        lead=lead,
        contents=_CONTENTS,
        found=found["provenance"],
        contenders=found["contenders"],
        best=[best | {"way": best["contender"], "exactness": found["exactness"]}],
        ratios=[(name, row["ratio_to_plain"]) for name, row in ran.items() if name != PLAIN],
        times={name: phases(row["seconds"]) for name, row in ran.items() if row["seconds"]},
    )
