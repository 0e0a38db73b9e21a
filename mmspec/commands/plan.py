"""`mmspec plan`: which schedule of drafting and verifying pays on given hardware."""

import math
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Column, Table

from mmspec.commands import common

if TYPE_CHECKING:
    from mmspec.bench.schedules.machine import PlannedMachine
    from mmspec.bench.schedules.measured import MeasuredPair
    from mmspec.bench.schedules.planning import SchedulePlan

EXAMPLES = """Examples:

\b
  mmspec plan --target-ms 30 --draft-ms 3 --acceptance 0.8
  mmspec plan --target-ms 30 --draft-ms 3 --acceptance 0.85,0.8,0.7 \\
      --column-ms 0.1 --free-columns 300 --rows 64 --prompt 1000
  mmspec plan --target-ms 120 --draft-ms 4 --acceptance 0.8 \\
      --stages 4 --exit-acceptance 0.4,0.6,0.8
  mmspec explain --drafter eagle3 --output why.json
  mmspec plan --measured why.json
"""
_HARDWARE, _REQUESTS = "Hardware", "Requests"
_MOST_NODES = 512


def plan(
    target_ms: Annotated[
        float | None, common.option(_HARDWARE, "Milliseconds of a forward of the target over one column of one row.", metavar="MS")
    ] = None,
    draft_ms: Annotated[float | None, common.option(_HARDWARE, "Milliseconds of the drafter for one draft token.", metavar="MS")] = None,
    column_ms: Annotated[
        float | None, common.option(_HARDWARE, "Milliseconds that each further column adds to a forward; 0 by default.", metavar="MS")
    ] = None,
    free_columns: Annotated[
        int | None, common.option(_HARDWARE, "Columns of a forward that take no longer than one; 1 by default.", metavar="N")
    ] = None,
    row_ms: Annotated[
        float | None, common.option(_HARDWARE, "Milliseconds in which the cache of one row is read; 0 by default.", metavar="MS")
    ] = None,
    rows: Annotated[int | None, common.option(_HARDWARE, "Rows that are generated together; 1 by default.", metavar="N")] = None,
    stages: Annotated[
        int | None, common.option(_HARDWARE, "Devices that hold the target's layers in turn; 1 by default.", metavar="N")
    ] = None,
    handover_ms: Annotated[
        float | None,
        common.option(_HARDWARE, "Milliseconds to exchange tokens with a drafter on another device; 0 by default.", metavar="MS"),
    ] = None,
    measured: Annotated[
        str | None,
        common.option(
            _HARDWARE,
            "What `mmspec explain --output` wrote, or a JSON object with lists of seconds of calls, target and draft. The simulations "
            "replay them. Other options override its figures.",
            metavar="FILE",
        ),
    ] = None,
    acceptance: Annotated[
        str | None,
        common.option(
            _REQUESTS,
            "Chance that a draft token is accepted: one, one for each position (the last holds beyond), or a JSON file that holds them.",
            metavar="CHANCES",
        ),
    ] = None,
    exit_acceptance: Annotated[
        str | None,
        common.option(
            _REQUESTS,
            "With --stages: chance that an early layer predicts the token, for each stage but the last, or one for the middle.",
            metavar="CHANCES",
        ),
    ] = None,
    sibling_factor: Annotated[
        float | None,
        common.option(_REQUESTS, "Chance of a further sibling in a tree, relative to the one before; 0.5 by default.", metavar="X"),
    ] = None,
    nodes: Annotated[int | None, common.option(_REQUESTS, "Draft tokens of the largest tree; 64 by default.", metavar="N")] = None,
    prompt: Annotated[int | None, common.option(_REQUESTS, "Tokens of a prompt; 0 (default) for cached prompts.", metavar="N")] = None,
    tokens: Annotated[int | None, common.option(_REQUESTS, "New tokens of a row; 256 by default.", metavar="N")] = None,
    seed: Annotated[int | None, common.option(common.SHOW, "Of the simulations; 0 by default.", metavar="SEED")] = None,
    as_json: common.JSON = False,
    verbose: common.VERBOSE = False,
) -> None:
    """Predict which schedule, draft length and tree is fastest on given hardware: exact models of published schedules, and simulations."""
    given = dict(locals())
    common.check_counts(given, "free_columns")
    common.check_counts(given, "rows", most=512)
    common.check_counts(given, "tokens", most=1 << 14)  # every token of every row is simulated
    common.check_counts(given, "stages", most=64)  # each is a device, and the schedules of all are simulated
    common.check_counts(given, "nodes", most=_MOST_NODES)
    _check_numbers(given)
    if exit_acceptance is not None and (stages or 1) < 2:
        raise ValueError("--exit-acceptance is for a target of several stages: give --stages of at least 2")
    found, machine, replayed = _planned(given)
    if as_json:
        from dataclasses import asdict

        common.emit(found.to_dict() | {"machine": asdict(machine)})
    else:
        _show(found, given["measured"], replayed)


def _check_numbers(given: dict[str, Any]) -> None:
    """ValueError for milliseconds, a factor and a prompt out of range."""
    for name, least in (("target_ms", 1e-6), ("draft_ms", 0.0), ("column_ms", 0.0), ("row_ms", 0.0), ("handover_ms", 0.0)):
        value = given[name]
        if value is not None and not (math.isfinite(value) and least <= value <= 1e9):
            raise ValueError(f"--{name.replace('_', '-')} is {value}: give milliseconds from {least:g} to 1e9")
    factor, prompt = given["sibling_factor"], given["prompt"]
    if factor is not None and not 0 <= factor <= 1:
        raise ValueError(f"--sibling-factor is {factor}: give a factor from 0 to 1")
    if prompt is not None and not 0 <= prompt <= 1 << 20:
        raise ValueError(f"--prompt is {prompt}: give 0 to {1 << 20} tokens")


def _planned(given: dict[str, Any]) -> "tuple[SchedulePlan, PlannedMachine, bool]":
    """The plan, the hardware, and whether the simulations replay measured latencies."""
    from mmspec.bench.schedules.measured import MeasuredPair, read_measured
    from mmspec.bench.schedules.planning import PlanRequest, plan_schedules

    pair = MeasuredPair() if given["measured"] is None else read_measured(given["measured"])
    rates = pair.rates if given["acceptance"] is None else _chances("--acceptance", given["acceptance"])
    if rates is None:
        raise ValueError("--acceptance is missing: give the chance that a draft token is accepted, or --measured FILE")
    wanted = {"tokens": given["tokens"], "prompt": given["prompt"], "nodes": given["nodes"], "retry": given["sibling_factor"]}
    wanted |= {"seed": given["seed"], "exits": None}
    if given["exit_acceptance"] is not None:
        wanted["exits"] = _chances("--exit-acceptance", given["exit_acceptance"])
    machine = _machine(given, pair)
    request = PlanRequest(**{name: value for name, value in wanted.items() if value is not None})
    return plan_schedules(machine, rates, request, latencies=pair.latencies), machine, pair.latencies is not None


def _chances(name: str, text: str) -> tuple[float, ...]:
    """Read chances from a command line, or from the file that is named. ValueError for anything else."""
    from mmspec.bench.schedules.measured import checked_rates, read_measured

    if text.endswith(".json"):
        found = read_measured(text).rates
        if found is None:
            raise ValueError(f"{name}: {text} holds no acceptance")
        return found
    try:
        return checked_rates([float(part) for part in text.split(",")])
    except ValueError:
        raise ValueError(f"{name} is {text!r}: give chances from 0 to 1, one or one for each position, or a JSON file") from None


def _machine(given: dict[str, Any], pair: "MeasuredPair") -> "PlannedMachine":
    """The hardware: what was measured, overridden by options."""
    from dataclasses import asdict
    from statistics import mean

    from mmspec.bench.schedules.machine import PlannedMachine

    known: dict[str, Any] = {} if pair.machine is None else asdict(pair.machine)
    if pair.latencies is not None and pair.machine is None:
        known = {"target": mean(pair.latencies.target), "draft": mean(pair.latencies.draft)}
    for name in ("target", "draft", "column", "row", "handover"):
        if given[f"{name}_ms"] is not None:
            known[name] = given[f"{name}_ms"] / 1000
    for name, option in (("free", "free_columns"), ("rows", "rows"), ("stages", "stages")):
        if given[option] is not None:
            known[name] = given[option]
    for name in ("target", "draft"):
        if name not in known:
            raise ValueError(f"--{name}-ms is missing: give milliseconds, or --measured FILE")
    return PlannedMachine(**known)


def _show(found: "SchedulePlan", measured: str | None, replayed: bool) -> None:
    """Print the table, what was left out, and what is fastest."""
    show = common.console(False)
    columns = ["devices", "tokens a call", "tok/s", *(["replayed"] if replayed else []), "x plain", "tok/s a device"]
    table = Table(
        Column("schedule", no_wrap=not replayed),
        *(Column(name, justify="right", min_width=max(map(len, name.split()))) for name in columns),
    )
    for each in found.schedules:
        counts, rates = (str(each.devices), f"{each.tokens_per_call:.2f}"), [each.tokens_per_second, each.simulated][: 1 + replayed]
        table.add_row(_named(each), *counts, *(f"{rate:.4g}" for rate in rates), f"{each.speed:.2f}", f"{each.per_device:.4g}")
    show.print(table)
    for line in found.omitted:
        show.print(f"left out: {line}", soft_wrap=True)
    best, most = found.best, found.most_for_the_devices
    show.print(f"fastest: {_named(best)}: {best.speed:.2f} times plain decoding on {_devices(best.devices)}", soft_wrap=True)
    if most.name != best.name:
        show.print(f"most tokens a device: {_named(most)}: {most.speed:.2f} times on {_devices(most.devices)}", soft_wrap=True)
    if measured is not None:
        show.print(f"measured: {measured}", soft_wrap=True)


def _named(each: Any) -> str:
    return f"{each.name}, {each.setting}" if each.setting else each.name


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
