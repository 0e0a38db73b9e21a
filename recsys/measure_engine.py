"""Recommendations that arrive one by one: shared calls, as `mmspec serve` makes them, beside `mmspec.Engine`.

    python recsys/measure_engine.py --requests 100 --rates 0 20 --drafters none model       (2 minutes on two CPU cores)

Users arrive as a Poisson process, or all at once (rate 0). Shared calls search for those who wait, up to `--max-rows` together, and the
next call begins when one has ended. In an engine each joins the searches under way. Both run in this thread; the clock is the process's CPU
time, so that other work on the machine does not count, and it jumps to the next arrival where there is nothing to do.
"""

import random
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any

import torch

import mmspec
from mmspec.core.records import Step
from mmspec.minis.shop import Shop
from mmspec.run.request import Request
from mmspec.serving.handle import RequestHandle
from mmspec.serving.models.base import may_begin
from mmspec.serving.models.choose import engine_model
from mmspec.serving.scheduler import Scheduler
from mmspec.utils.files import write_json
from mmspec.utils.places import RecipeParser
from mmspec.utils.provenance import machine, provenance

History = list[int]


@dataclass
class Run:
    """What a run has done: CPU seconds of work, when every user was answered, the items, and the target's forwards and columns."""

    work: float = 0.0
    now: float = 0.0
    ends: dict[int, float] = field(default_factory=dict)
    items: dict[int, list[Any]] = field(default_factory=dict)
    forwards: int = 0
    columns: int = 0

    def spend(self, do: Callable[[], Any]) -> Any:
        """Do something, and let the clock go on by its CPU time."""
        begun = process_time()
        found = do()
        spent = process_time() - begun
        self.work, self.now = self.work + spent, self.now + spent
        return found


def shared_calls(mini: Any, users: list[History], arrives: list[float], drafter: Any, rows: int, k: int) -> Run:
    """Users who wait are searched for in one call."""
    run, left = Run(), deque(range(len(users)))

    def on_step(step: Step) -> None:
        run.forwards += 1
        run.columns += len(step.draft.start) * (step.draft.size - step.draft.roots + step.draft.aux.beams)

    while left:
        run.now = max(run.now, arrives[left[0]])
        some = [left.popleft() for _ in range(min(rows, sum(arrives[user] <= run.now for user in left)))]
        options = {"k": k, "catalogue": mini.catalogue, "on_step": on_step}
        out = run.spend(lambda: mmspec.recsys.recommend(mini.target, [users[user] for user in some], drafter, **options))  # noqa: B023
        run.columns += len(some) * (max(len(mini.catalogue.tokens(users[user])) for user in some) - 1)
        run.ends |= dict.fromkeys(some, run.now)
        run.items |= dict(zip(some, out.items, strict=True))
    return run


@torch.no_grad()
def engine(mini: Any, users: list[History], arrives: list[float], drafter: Any, rows: int, k: int) -> Run:
    """Each user joins the searches under way."""
    run, coming, waiting = Run(), deque(range(len(users))), deque[RequestHandle]()
    model = engine_model(mini.target, Request.of(drafter=drafter), None, {"catalogue": mini.catalogue, "beams": k})
    scheduler = Scheduler(model, rows, 128 * rows, lambda most: waiting.popleft() if waiting and may_begin(waiting[0].work, most) else None)
    under: dict[int, RequestHandle] = {}
    while coming or under:
        if not under:
            run.now = max(run.now, arrives[coming[0]])
        while coming and arrives[coming[0]] <= run.now:
            user = coming.popleft()
            work = run.spend(lambda: model.read(users[user], model.options(k=k)))  # noqa: B023
            waiting.append(RequestHandle(work, 0, model.rule.exactness))
            under[user] = waiting[-1]
        run.spend(scheduler.step)
        for user in [user for user, handle in under.items() if handle.done]:
            run.items[user] = run.spend(lambda: under.pop(user).result(0)).items[0]  # noqa: B023
            run.ends[user] = run.now
    run.forwards, run.columns = scheduler.counts.forwards, scheduler.counts.columns
    return run


def figures(run: Run, arrives: list[float], right: list[list[Any]]) -> dict[str, float]:
    """CPU seconds, forwards, columns, latencies in milliseconds of CPU time, and lists unlike the user's own."""
    late = sorted(1e3 * (run.ends[user] - when) for user, when in enumerate(arrives))
    share = {f"p{each}": late[min(len(late) - 1, each * len(late) // 100)] for each in (50, 99)}
    differ = sum(run.items[user] != items for user, items in enumerate(right))
    return {"cpu": run.work, "forwards": run.forwards, "columns": run.columns, **share, "differ": differ}


def main() -> None:
    parser = RecipeParser(__doc__)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rates", type=float, nargs="+", default=[0, 20], help="arrivals a CPU second; 0 for all at once")
    parser.add_argument("--drafters", nargs="+", default=["none", "model"], help="none, or drafters of the mini")
    parser.add_argument("--max-rows", type=int, default=8)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved")
    parser.add_argument("--out", type=Path, help="also write everything as JSON")
    parser.add_argument("--smoke", action="store_true", help="a few requests")
    args = parser.parse_args()
    if args.smoke:
        args.requests, args.rounds, args.rates, args.drafters = 4, 1, [50], ["model"]
    torch.set_num_threads(1)
    mini, draw = mmspec.load("recsys"), random.Random(0)
    users = [[int(item) for item in user[:-1]] for user in Shop.of().histories(args.requests, seed=2)]
    right = [mmspec.recsys.recommend(mini.target, [user], k=args.k, catalogue=mini.catalogue).items[0] for user in users]
    told: dict[str, list[dict[str, float]]] = {}
    for drafter in args.drafters:
        for rate in args.rates:
            gaps = [draw.expovariate(rate) if rate else 0.0 for _ in users]
            arrives = [sum(gaps[: user + 1]) for user in range(len(users))]
            for _ in range(args.rounds):
                for run in (shared_calls, engine):
                    found = run(mini, users, arrives, mini.drafters.get(drafter), args.max_rows, args.k)
                    told.setdefault(f"{drafter}, rate {rate:g}, {run.__name__}", []).append(figures(found, arrives, right))
    for name, rounds in told.items():
        middle = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        span = {key: f"{min(each[key] for each in rounds):.4g}-{max(each[key] for each in rounds):.4g}" for key in ("cpu", "p50", "p99")}
        shown = [f"{key} {value:.4g}" + (f" ({span[key]})" if key in span else "") for key, value in middle.items()]
        print(f"{name}:", ", ".join(shown))
    about = provenance(mini.target.device)
    print(machine(about), about["date"])
    if args.out:
        write_json(args.out, {"found": told, "settings": {key: str(value) for key, value in vars(args).items()}, "provenance": about})


if __name__ == "__main__":
    main()
