"""Killed at any moment and started again, a job ends with the bytes of one that was left alone, and finished shards are not done again."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mmspec.jobs import JsonLines, run
from mmspec.jobs.engine.folder import JobFolder
from tests.jobs.folders import tree, write_input
from tests.jobs.worker import job

ROOT = Path(__file__).parents[2]
CODE = str(ROOT / "mmspec" / "jobs")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def killed_at(line: int, asked) -> bool:
    """Run in a process of its own that is killed before the given executed line of the runner; whether it came to that."""
    child = os.fork()
    if child == 0:
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
        try:
            run(asked)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


def stamps(out: Path) -> dict[str, tuple[int, int]]:
    """Which file lies under each name, of those that belong to finished shards."""
    marked = (JobFolder(out).marker(shard) for shard in range(3))
    return {name: ((out / name).stat().st_ino, (out / name).stat().st_mtime_ns) for m in marked if m for name in m["files"]}


def survives(tmp_path: Path, files: bool, line: int, right: dict[str, bytes], sink=None) -> bool:
    """Kill at `line`, look, go on, compare. False when the job had ended before."""
    out = tmp_path / f"out{line}"
    asked = job(tmp_path / "in.jsonl", out, files=files, shard_size=5, batch_size=2)
    if sink is not None:
        asked = replace(asked, sink=sink)
    if not killed_at(line, asked):
        return False
    seen = {name: content for name, content in tree(out).items() if not name.startswith(".")} if out.exists() else {}
    assert b"state" in seen.pop("manifest.json", b"state")
    assert seen.items() <= right.items(), f"killed at line {line}: something is there that is not whole"
    before = stamps(out)
    run(asked)
    assert tree(out) == right, f"killed at line {line}"
    assert before.items() <= stamps(out).items(), f"killed at line {line}: a finished shard was done again"
    return True


@pytest.fixture
def right(tmp_path):
    """The bytes of undisturbed runs, as lines and as files."""
    write_input(tmp_path / "in.jsonl", good=12)
    for files in (False, True):
        run(job(tmp_path / "in.jsonl", tmp_path / f"right{files}", files=files, shard_size=5, batch_size=2))
    return {files: tree(tmp_path / f"right{files}") for files in (False, True)}


def at_random_lines(tmp_path: Path, files: bool, right: dict[str, bytes], sink=None) -> int:
    """Kill at lines all through the job, 20 apart in the mean; the last line tried."""
    steps, line = random.Random(1), 0
    while survives(tmp_path, files, line := line + steps.randint(1, 39), right, sink):
        pass
    return line


@pytest.mark.parametrize("files", [False, True])
def test_killed_before_any_line_of_the_runner(tmp_path, right, files):
    assert at_random_lines(tmp_path, files, right[files]) > 800


@pytest.mark.parametrize("files", [False, True])
def test_killed_before_and_after_every_rename(tmp_path, right, files):
    """By the worker's own hand, so that no moment between two files of a shard is left out; and killed again in going on."""
    for moment in range(1, 100):
        out = tmp_path / f"out{moment}"
        asked = job(tmp_path / "in.jsonl", out, files=files, shard_size=5, batch_size=2)
        first = renamed_until(moment, asked)
        if not first:
            break
        renamed_until(2, asked)
        run(asked)
        assert tree(out) == right[files], f"killed at rename {moment}"
    assert moment > 2 * len([name for name in right[files] if not name.startswith("rejects")])


def renamed_until(moment: int, asked) -> bool:
    """Run in a process that is killed at a moment of `worker.die_at`; whether it was."""
    from tests.jobs.worker import die_at

    child = os.fork()
    if child == 0:
        die_at(moment)
        try:
            run(asked)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


@pytest.mark.parametrize("files", [[], ["--files"]])
def test_killed_from_outside_at_random_and_started_again_until_done(tmp_path, files):
    source = write_input(tmp_path / "in.jsonl", good=60)
    command = [sys.executable, "-m", "tests.jobs.worker", str(source)]
    sizes = [*files, "--shard-size", "5", "--delay", "0.02"]
    subprocess.run([*command, tmp_path / "right", *sizes], check=True, capture_output=True, cwd=ROOT, env=ENVIRONMENT)
    delays, kills, out = random.Random(len(files)), 0, tmp_path / "out"
    for _ in range(20):  # every run finishes a shard before it is killed
        process = subprocess.Popen([*command, out, *sizes], stdout=subprocess.PIPE, cwd=ROOT, env=ENVIRONMENT, text=True)
        before = len(list(out.glob("shards/*")))
        while process.poll() is None and len(list(out.glob("shards/*"))) == before:
            time.sleep(0.002)
        time.sleep(delays.uniform(0.0, 0.1))
        process.kill()
        said = process.communicate(timeout=60)[0]
        if process.returncode == 0:
            break
        kills += 1
    assert kills >= 2
    assert "from before" in said
    assert tree(out) == tree(tmp_path / "right")


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


PUBLISH = JobFolder.publish


@pytest.mark.parametrize("fault", ["straight", "hasty"])
def test_planted_faults_are_seen(tmp_path, right, monkeypatch, fault):
    """The distribution above, at the same moments, fails."""
    if fault == "hasty":
        monkeypatch.setattr(JobFolder, "publish", hasty)
    sink = Straight() if fault == "straight" else None
    with pytest.raises(AssertionError, match="killed at line"):
        at_random_lines(tmp_path, False, right[False], sink)
