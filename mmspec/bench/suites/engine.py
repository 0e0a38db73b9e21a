"""`mmspec bench --suite engine`: continuous batching against static batches of the same size, on the mini text model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from time import perf_counter, sleep
from typing import Any

import torch

from mmspec.core.records import Step
from mmspec.utils.provenance import provenance

_REQUESTS, _ROWS, _MEAN, _MOST = 200, 8, 24, 128
_LOAD = 0.8  # of the static batches' throughput, for the runs that measure latency
_TIE = 1e-4  # logits nearer than this are a near-tie: batches of other sizes round differently


@dataclass(frozen=True)
class BenchRequest:
    """A request: its prompt's ids, its number of new tokens, and the seconds after which it arrives."""

    ids: list[int]
    new: int
    arrives: float = 0.0


@dataclass
class Served:
    """What became of all requests.

    Args:
        outputs: their tokens.
        latencies: seconds from arrival to the last token.
        seconds: from the first arrival to the last token.
        forwards: forwards of the target.
        columns: columns of these forwards over all rows, padding included.
    """

    outputs: list[list[int]]
    latencies: list[float]
    seconds: float = 0.0
    forwards: int = 0
    columns: int = 0


def measure(
    seed: int = 0, limit: int = _REQUESTS, batch_size: int = _ROWS, device: str | None = None, note: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Serve the same requests by static batches and by an engine, plainly and with the mini's drafter, and compare.

    Lengths of outputs are exponential with a mean of 24 tokens, at most 128. All requests arrive at once, which measures throughput; then
    as a Poisson process at 0.8 of the static batches' throughput, which measures latency.

    Args:
        seed: of lengths and arrivals.
        limit: number of requests, at least 2.
        batch_size: rows of a static batch, and of the engine.
        device: name of a device; the CPU by default.
        note: called with the name of every run as it begins.

    Returns:
        `rows`, one a run, with the number of requests that took the other token at a near-tie (`ties`: two logits within 1e-4, which
        batches of other sizes round differently), `requests`, `batch_size` and `provenance`.

    Raises:
        ValueError: for fewer than 2 requests.
        RuntimeError: if two runs commit different tokens elsewhere.
    """
    from mmspec.minis import load as load_mini

    if limit < 2:
        raise ValueError(f"limit is {limit}: percentiles need at least 2 requests")
    mini, place = load_mini("text"), torch.device(device or "cpu")
    model, drafter = mini.target.to(place), mini.drafters["model"].to(place)
    requests = mixed_requests(mini, limit, seed)
    rows: list[dict[str, Any]] = []
    expected: list[list[int]] | None = None
    for load in ("all at once", "Poisson"):
        rate = 0.0 if load == "all at once" else _LOAD * limit / rows[0]["seconds"]
        arriving = requests if rate == 0 else poisson(requests, rate, seed)
        for name, own in (("plain", None), ("model drafter", drafter)):
            for way, run in (("static batches", serve_static), ("engine", serve_engine)):
                if note is not None:
                    note(f"{load}, {name}, {way}")
                found = run(model, own, arriving, batch_size)
                expected = found.outputs if expected is None else expected
                differing = [row for row, outputs in enumerate(zip(expected, found.outputs, strict=True)) if outputs[0] != outputs[1]]
                if not all(near_tie(model, requests[row].ids, expected[row], found.outputs[row]) for row in differing):
                    raise RuntimeError(f"{load}, {name}, {way}: other tokens than in the first run; please report this")
                rows.append({"load": load, "drafter": name, "run": way, "ties": len(differing)} | _figures(found))
    return {"rows": rows, "requests": limit, "batch_size": batch_size, "provenance": provenance(place)}


@torch.no_grad()
def near_tie(model: Any, prompt: Sequence[int], first: Sequence[int], second: Sequence[int]) -> bool:
    """Return whether two greedy outputs part where the logits of both tokens are within 1e-4 of each other.

    Args:
        model: the target.
        prompt: ids of the prompt.
        first, second: ids of the outputs, which differ.

    Returns:
        False also where one output is the beginning of the other.
    """
    place = next((at for at, (one, other) in enumerate(zip(first, second, strict=False)) if one != other), None)
    if place is None:
        return False
    ids = torch.tensor([[*prompt, *first[:place]]], device=model.device)
    logits = model(ids).logits[0, -1]
    return abs(float(logits[first[place]] - logits[second[place]])) < _TIE


def mixed_requests(mini: Any, count: int, seed: int) -> list[BenchRequest]:
    """Make requests of mixed lengths from a mini's example prompts.

    Args:
        mini: the mini text.
        count: how many.
        seed: of the lengths.

    Returns:
        The requests, all arriving at once.
    """
    draw = torch.Generator().manual_seed(seed)
    ids, mask = mini.examples["input_ids"], mini.examples["attention_mask"]
    prompts = [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]
    found = []
    for number in range(count):
        prompt = prompts[number % len(prompts)]
        size = int(torch.randint(1, len(prompt) + 1, (), generator=draw))
        new = min(_MOST, 1 + int(torch.empty(1).exponential_(1 / _MEAN, generator=draw)))
        found.append(BenchRequest(prompt[:size], new))
    return found


def poisson(requests: Sequence[BenchRequest], rate: float, seed: int) -> list[BenchRequest]:
    """Let requests arrive as a Poisson process.

    Args:
        requests: the requests.
        rate: requests a second.
        seed: of the times between them.

    Returns:
        The requests with their arrivals.
    """
    draw, now, found = torch.Generator().manual_seed(seed + 1), 0.0, []
    for each in requests:
        now += float(torch.empty(1).exponential_(rate, generator=draw))
        found.append(BenchRequest(each.ids, each.new, now))
    return found


def serve_static(model: Any, drafter: Any, requests: Sequence[BenchRequest], rows: int) -> Served:
    """Serve requests in batches of those that have arrived, each until its longest row has ended.

    Args:
        model: the target.
        drafter: the drafter, or None.
        requests: in order of arrival.
        rows: most rows of a batch.

    Returns:
        What became of them. A request's last token counts when it is committed, not when its batch ends.
    """
    from mmspec.text.generation import generate

    served, begin, place = Served([], []), perf_counter(), 0
    while place < len(requests):
        sleep(max(0.0, requests[place].arrives - (perf_counter() - begin)))
        now = perf_counter() - begin
        batch = [each for each in requests[place : place + rows] if each.arrives <= now]
        longest = max(len(each.ids) for each in batch)
        ids = [[0] * (longest - len(each.ids)) + each.ids for each in batch]
        mask = [[0] * (longest - len(each.ids)) + [1] * len(each.ids) for each in batch]
        ends = [0.0] * len(batch)

        def follow(step: Step, ends: list[float] = ends) -> None:
            served.forwards += 1
            served.columns += len(ends) * step.draft.size
            for row, values in enumerate(step.committed.values):
                ends[row] = perf_counter() - begin if values else ends[row]

        served.columns += len(batch) * (longest - 1)
        out = generate(
            model,
            {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)},
            drafter,
            max_new_tokens=max(each.new for each in batch),
            stops=[lambda row, values, batch=batch: len(values) >= batch[row].new],
            on_step=follow,
        )
        served.outputs += [row[:length].tolist() for row, length in zip(out.tokens, out.lengths, strict=True)]
        served.latencies += [end - each.arrives for end, each in zip(ends, batch, strict=True)]
        place += len(batch)
    served.seconds = perf_counter() - begin
    return served


def serve_engine(model: Any, drafter: Any, requests: Sequence[BenchRequest], rows: int) -> Served:
    """Serve requests by an engine, each submitted when it arrives.

    Args:
        model: the target.
        drafter: the drafter, or None.
        requests: in order of arrival.
        rows: most rows.

    Returns:
        What became of them.
    """
    from mmspec.serving.engine import Engine

    with Engine(model, drafter, accept="greedy", max_rows=rows, max_queue=len(requests)) as engine:
        begin, handles = perf_counter(), []
        for each in requests:
            sleep(max(0.0, each.arrives - (perf_counter() - begin)))
            handles.append(engine.submit({"input_ids": torch.tensor([each.ids])}, max_new_tokens=each.new))
        outputs = [handle.result().tokens[0].tolist() for handle in handles]
        seconds = perf_counter() - begin
    return Served(outputs, [handle.latency or 0.0 for handle in handles], seconds, engine.counts.forwards, engine.counts.columns)


def _figures(found: Served) -> dict[str, Any]:
    tokens, parts = sum(map(len, found.outputs)), quantiles(found.latencies, n=100, method="inclusive")
    return {
        "tokens": tokens,
        "seconds": found.seconds,
        "tokens_per_second": tokens / found.seconds,
        "forwards": found.forwards,
        "columns": found.columns,
        "latency_p50": parts[49],
        "latency_p99": parts[98],
    }


def render(found: Mapping[str, Any]) -> str:
    """Make a Markdown table.

    Args:
        found: what `measure` returned.

    Returns:
        The table.
    """
    lines = [
        f"{found['requests']} requests, {found['batch_size']} rows.",
        "",
        "| load | drafter | run | tokens/s | target forwards | row-columns | latency p50 s | p99 s | near-ties |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        counts = f"{row['tokens_per_second']:.0f} | {row['forwards']} | {row['columns']}"
        seconds = f"{row['latency_p50']:.2f} | {row['latency_p99']:.2f}"
        lines.append(f"| {row['load']} | {row['drafter']} | {row['run']} | {counts} | {seconds} | {row['ties']} |")
    return "\n".join(lines) + "\n"
