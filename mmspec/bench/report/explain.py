"""The HTML report of `mmspec explain`."""

from typing import Any

from mmspec.bench.report.page import render

_CONTENTS = {"causes": "Causes", "acceptance": "Acceptance", "seconds": "Seconds and speed"}


def explain_page(found: dict[str, Any]) -> str:
    """Render the report of an explanation.

    Args:
        found: what `mmspec explain --json` prints.

    Returns:
        One HTML file.
    """
    positions, run = found["acceptance"]["positions"], found["settings"]["run"]
    series = {"accepted": [(each["accepted"], each["judged"]) for each in positions]}
    if all(each["best"] is not None for each in positions):
        series["best possible"] = [(round(each["best"] * each["judged"]), each["judged"]) for each in positions]
    costs = {f"batch {found['batch_size']}": found["costs"]} | ({"batch 1": found["costs_alone"]} if found["costs_alone"] else {})
    return render(
        "explain.html",
        title="mmspec explain",
        lead=f"{found['model']} with drafter {found['drafter']}: {found['rule']}, temperature {run['temperature']:g}",
        contents=_CONTENTS,
        found=found["provenance"],
        healthy=found["healthy"],
        verdict=found["verdict"],
        causes=found["causes"],
        series=series,
        runs={"as requested": found["acceptance"], **found["probes"]},
        sizes=list(found["costs"]["columns"]),
        costs=costs,
        break_even=found["break_even"],
        expected=found["expected"],
        measured=found["measured_speed"],
    )
