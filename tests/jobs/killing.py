"""Kills a job before lines of the runner, or before and after renames: `python -m tests.jobs.killing lines FOLDER --fault straight`.

Every run is a process forked from this one, which is small because it has imported no model's library. The exit status is 1, with an
AssertionError, where a killed job does not end with the bytes of one that was left alone.
"""

import argparse
import json
import os
import random
import signal
import sys
from dataclasses import replace
from pathlib import Path

from mmspec.jobs import JsonLines, run
from mmspec.jobs.engine.folder import JobFolder
from tests.jobs.folders import tree, write_input
from tests.jobs.worker import die_at, job, killed

CODE = str(Path(__file__).parents[2] / "mmspec" / "jobs")
PUBLISH = JobFolder.publish


def die_before(line: int) -> None:
    """Kill this process before the given executed line of the runner."""
    left = line

    def trace(frame, event, arg):
        nonlocal left
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def stamps(out: Path) -> dict[str, tuple[int, int]]:
    """Which file lies under each name, of those that belong to finished shards."""
    marked = (JobFolder(out).marker(shard) for shard in range(3))
    return {name: ((out / name).stat().st_ino, (out / name).stat().st_mtime_ns) for m in marked if m for name in m["files"]}


def survives(folder: Path, files: bool, line: int, right: dict[str, bytes], sink=None) -> bool:
    """Kill at `line`, look, go on, compare. False when the job had ended before."""
    out = folder / f"out{line}"
    asked = job(folder / "in.jsonl", out, files=files, shard_size=5, batch_size=2)
    if sink is not None:
        asked = replace(asked, sink=sink)
    if not killed(lambda: die_before(line), asked):
        return False
    seen = {name: content for name, content in tree(out).items() if not name.startswith(".")} if out.exists() else {}
    assert b"state" in seen.pop("manifest.json", b"state")
    assert seen.items() <= right.items(), f"killed at line {line}: something is there that is not whole"
    before = stamps(out)
    run(asked)
    assert tree(out) == right, f"killed at line {line}"
    assert before.items() <= stamps(out).items(), f"killed at line {line}: a finished shard was done again"
    return True


def at_random_lines(folder: Path, files: bool, right: dict[str, bytes], sink=None) -> int:
    """Kill at lines all through the job, 20 apart in the mean; the last line tried."""
    steps, line = random.Random(1), 0
    while survives(folder, files, line := line + steps.randint(1, 39), right, sink):
        pass
    return line


def at_renames(folder: Path, files: bool, right: dict[str, bytes]) -> int:
    """Kill before and after every rename, and again in going on; the number of such moments."""
    for moment in range(1, 100):
        asked = job(folder / "in.jsonl", folder / f"out{moment}", files=files, shard_size=5, batch_size=2)
        if not killed(lambda moment=moment: die_at(moment), asked):
            return moment
        killed(lambda: die_at(2), asked)
        run(asked)
        assert tree(folder / f"out{moment}") == right, f"killed at rename {moment}"
    raise AssertionError("more than 100 moments")


# --- planted faults -----------------------------------------------------------------------------------------------------


class Straight(JsonLines):
    """Writes where the part will lie, as if nothing could come between."""

    def write(self, outputs, place, part):
        super().write(outputs, place.parent, part)


def hasty(self, place, shard, marker, timing):
    """The marker before what it stands for."""
    (self.path / "shards").mkdir(exist_ok=True)
    (self.path / "shards" / f"{shard:05d}.json").write_text(json.dumps(marker | {"files": {}}))
    PUBLISH(self, place, shard, marker, timing)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("moments", choices=("lines", "renames"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--fault", choices=("straight", "hasty"))
    args = parser.parse_args()
    os.fsync = lambda handle: None  # what a kill cannot undo
    write_input(args.folder / "in.jsonl", good=12)
    run(job(args.folder / "in.jsonl", args.folder / "right", files=args.files, shard_size=5, batch_size=2))
    right = tree(args.folder / "right")
    assert "torch" not in sys.modules
    if args.fault == "hasty":
        JobFolder.publish = hasty
    if args.moments == "lines":
        count = at_random_lines(args.folder, args.files, right, Straight() if args.fault == "straight" else None)
    else:
        count = at_renames(args.folder, args.files, right)
    print(json.dumps({"count": count, "files": sorted(right)}))


if __name__ == "__main__":
    main()
