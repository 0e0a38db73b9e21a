"""Recommendation jobs killed at random moments, and two copies of one at once: `python -m tests.jobs.kills --kills 50 --copies 20`.

A killed run is started again and killed again until one ends; every kill counts, and the folder must then hold the bytes of a run that was
left alone. The local engine runs a small recommender in processes that are forked, so that nothing is imported again; with Ray a process
runs the users' job of tests/jobs/worker.py on a cluster of its own, and every second kill takes a worker first. Of two copies one
must finish the job, and the other finish it too or stop in one line. One JSON object is printed; the exit status is 1 where bytes differ.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mmspec.jobs import Stopped, run
from tests.jobs.folders import tree, write_users
from tests.jobs.worker import built, users

LONGEST = 300.0  # seconds that a run may take
STARTS = 4  # tries of the run that is timed: on a busy machine Ray may not start in time, which stops it in one line


def forked(work: Callable[[], Any]) -> int:
    """Start `work` in a process of its own, which leads a group. It exits with 0, with 3 where it stopped in one line, else with 1."""
    if child := os.fork():
        return child
    os.setsid()
    status = 1
    try:
        work()
        status = 0
    except (Stopped, ValueError) as error:
        print(error, file=sys.stderr, flush=True)
        status = 3 if len(str(error).splitlines()) == 1 else 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(status)


def ended(child: int, seconds: float) -> int | None:
    """The exit status of a process, -9 where it was killed; None if it has not ended in time."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.002)


def killed(start: Callable[[Path], Any], right: dict[str, bytes], kills: int, seconds: float, hit: Callable[[int, int], None]) -> dict:
    """Kill runs after random times below `seconds`, and compare the folder each time a run ends."""
    pick, done = random.Random(0), {"kills": 0, "ends": 0, "byte-equal": 0, "other ends": 0}
    while done["kills"] < kills:
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "out"
            while True:
                child = forked(lambda out=out: start(out))
                allowed = pick.uniform(0.0, seconds) if done["kills"] < kills else LONGEST
                if (status := ended(child, allowed)) is None:
                    hit(child, done["kills"])
                    status = ended(child, LONGEST)
                    done["kills"] += 1
                if status == 0:
                    break
                done["other ends"] += status not in (-9, 3)
            done["ends"] += 1
            done["byte-equal"] += tree(out) == right
    return done


def copies(start: Callable[[Path], Any], right: dict[str, bytes], count: int) -> dict:
    """Start two copies together; whether they end well, and the folder with the right bytes."""
    found = {"pairs": 0, "ended well": 0, "second joined or finished": 0}
    pick = random.Random(1)
    for _ in range(count):
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "out"
            children = [forked(partial(start, out))]
            time.sleep(pick.uniform(0.0, 0.3))
            children.append(forked(partial(start, out)))
            ends = [ended(child, LONGEST) for child in children]
            found["pairs"] += 1
            found["ended well"] += sorted(ends, key=str) in ([0, 0], [0, 3]) and tree(out) == right
            found["second joined or finished"] += ends == [0, 0]
    return found


def whole_group(child: int, turn: int) -> None:
    """Kill a process with everything that it started."""
    os.killpg(child, signal.SIGKILL)


def local(folder: Path) -> Callable[[Path], Any]:
    """Runs of a small recommender over 600 customers in shards of 40."""
    import torch

    from mmspec.jobs.recommendations_job import RecommendationJobSpec, make_recommendation_job
    from tests.recsys import shops
    from tests.recsys.test_bulk import write_users as write_customers

    torch.set_num_threads(1)
    home, table = shops.write(folder / "model"), folder / "customers.parquet"
    write_customers(table, 600)
    sizes: dict[str, Any] = {"rows": 8, "batch_size": 16, "shard_size": 40, "k": 3, "mode": "strict", "draft_length": 2, "unseen": True}

    def start(out: Path) -> None:
        run(make_recommendation_job(RecommendationJobSpec(users=table, out=out, model=str(home), device="cpu", **sizes)))

    return start


def ray(folder: Path) -> Callable[[Path], Any]:
    """Runs of the users' job on a cluster of their own, which ends with them."""
    table = write_users(folder / "users.parquet", 400)

    def start(out: Path) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        shutil.rmtree(folder / "marks", ignore_errors=True)  # numbers of processes that have ended may be given to others
        make = partial(users, table, out, shard_size=25, delay=0.01)
        run(partial(built, make, folder / "marks"), engine="ray")

    return start


def a_worker(folder: Path) -> Callable[[int, int], None]:
    """Kill the process; every second time one of its workers instead, which Ray replaces, and then the process."""

    def hit(child: int, turn: int) -> None:
        marks = sorted((folder / "marks").glob("*"), key=lambda mark: mark.stat().st_mtime)
        if turn % 2 and marks:
            try:
                os.kill(int(marks[-1].name), signal.SIGKILL)
            except ProcessLookupError:
                pass
            time.sleep(0.05)
        whole_group(child, turn)

    return hit


def measure(engines: list[str], kills: int, pairs: int) -> dict[str, Any]:
    """Counts by engine."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kill", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        if "local" in engines:
            start = local(folder)
            begun = time.monotonic()
            start(folder / "right")
            took, right = time.monotonic() - begun, tree(folder / "right")
            found["local"] = killed(start, right, kills, took, whole_group) | {"copies": copies(start, right, pairs)}
        if "ray" in engines:
            found["ray"] = _on_ray(folder, kills)
    return found


def _on_ray(folder: Path, kills: int) -> dict[str, Any]:
    start = ray(folder)
    run(users(folder / "users.parquet", folder / "right-ray", shard_size=25))
    for _ in range(STARTS):
        begun = time.monotonic()
        if (status := ended(forked(lambda: start(folder / "first")), LONGEST)) != 3:
            break
    if status:
        raise RuntimeError(f"the run that nothing kills ended with {status}, which stands for a time-out if it is None")
    return killed(start, tree(folder / "right-ray"), kills, time.monotonic() - begun, a_worker(folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="of each engine")
    parser.add_argument("--copies", type=int, default=20, help="pairs of runs that start together")
    parser.add_argument("--engines", nargs="+", choices=("local", "ray"), default=["local", "ray"])
    args = parser.parse_args()
    found = measure(args.engines, args.kills, args.copies)
    print(json.dumps(found))
    well = all(one["ends"] == one["byte-equal"] and not one["other ends"] for one in found.values())
    pairs = found.get("local", {}).get("copies", {"pairs": 0, "ended well": 0})
    return int(not (well and pairs["pairs"] == pairs["ended well"]))


if __name__ == "__main__":
    raise SystemExit(main())
