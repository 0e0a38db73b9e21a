"""Latency of `/v1/recommendations` under load: percentiles, requests a second, and lists that differ from those of each request alone.

    python recsys/measure_server.py --clients 8 --requests 500 --max-rows 1 8        (2 minutes on two CPU cores)

For each `--max-rows` the recipe starts `mmspec serve` on a free port, or asks the server at `--url`. Clients send one request after
another, each on a connection of its own. Requests that wait share a call of the model, up to `--max-rows` histories.
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import local
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import mmspec
from mmspec.minis.shop import Shop
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import machine, provenance


@contextmanager
def served(max_rows: int, drafter: str) -> Iterator[str]:
    """A server of the mini in a process of its own; yields its address."""
    command = [sys.executable, "-m", "mmspec.cli", "serve", "--recommender", "mini", "--drafter", drafter, "--port", "0", "--json"]
    process = subprocess.Popen([*command, "--max-rows", str(max_rows)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait(60)


class Clients:
    """Clients of a server, one connection a thread."""

    def __init__(self, url: str, k: int):
        self.where, self.k, self.own = urlsplit(url), k, local()

    def ask(self, history: list[int]) -> tuple[float, list[int], list[float]]:
        """Seconds, items and scores of one request."""
        if not hasattr(self.own, "line"):
            self.own.line = http.client.HTTPConnection(self.where.hostname or "", self.where.port, timeout=300)
        body = json.dumps({"history": history, "k": self.k})
        began = perf_counter()
        self.own.line.request("POST", "/v1/recommendations", body, {"Content-Type": "application/json"})
        answer = self.own.line.getresponse()
        found = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(found["error"]["message"])
        (row,) = found["data"]
        return perf_counter() - began, row["items"], row["scores"]


def load(url: str, users: list[list[int]], clients: int, k: int) -> tuple[float, list[Any]]:
    """Seconds until all users are answered, and the answers."""
    asked = Clients(url, k)
    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(asked.ask, users[: 4 * clients]))  # warms up
        began = perf_counter()
        found = list(threads.map(asked.ask, users))
    return perf_counter() - began, found


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of `values` do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--url", help="a server that is running, with the mini as its recommender")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--max-rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--drafter", default="none", help="of the server, as of mmspec recommend")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved over --max-rows")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--smoke", action="store_true", help="a few requests")
    args = parser.parse_args()
    if args.smoke:
        args.clients, args.requests, args.rounds, args.max_rows = 2, 6, 1, [2]
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the servers
    users = [[int(item) for item in user[:-1]] for user in Shop.of().histories(args.requests, seed=2)]
    mini = mmspec.load("recsys")
    alone = [mmspec.recsys.recommend(mini.target, [user], k=args.k, catalogue=mini.catalogue, method="plain") for user in users]
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(args.rounds):
        for rows in [0] if args.url else args.max_rows:
            if args.url:
                seconds, answers = load(args.url, users, args.clients, args.k)
            else:
                with served(rows, args.drafter) as url:
                    seconds, answers = load(url, users, args.clients, args.k)
            spent = [1e3 * each for each, _, _ in answers]
            differ = sum(items != out.items[0] for (_, items, _), out in zip(answers, alone, strict=True))
            pairs = [(a, b) for (_, _, scores), out in zip(answers, alone, strict=True) for a, b in zip(scores, out.scores[0], strict=True)]
            figures = {f"p{share}": percentile(spent, share / 100) for share in (50, 90, 99)}
            facts = {"rate": len(users) / seconds, "differ": differ, "apart": max(abs(a - b) for a, b in pairs)}
            found.setdefault(args.url or f"max-rows {rows}", []).append(figures | facts)
    for name, rounds in found.items():
        middle = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        spread = {key: f"{min(each[key] for each in rounds):.1f}-{max(each[key] for each in rounds):.1f}" for key in rounds[0]}
        times = ", ".join(f"{key} {middle[key]:.1f} ({spread[key]}) ms" for key in ("p50", "p90", "p99"))
        print(f"{name}: {times}; {middle['rate']:.1f} ({spread['rate']}) requests/s;", end=" ")
        print(f"lists unlike the request's own: {int(sum(each['differ'] for each in rounds))} of {len(rounds) * len(users)},", end=" ")
        print(f"scores within {max(each['apart'] for each in rounds):.1e}")
    about = provenance(mini.target.device)
    print(machine(about), about["date"])
    if args.out:
        write_json(args.out, {"found": found, "settings": {key: str(value) for key, value in vars(args).items()}, "provenance": about})


if __name__ == "__main__":
    main()
