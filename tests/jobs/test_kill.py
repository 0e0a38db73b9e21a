"""Killed at any moment and started again, a job ends with the bytes of one that was left alone, and finished shards are not done again."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.jobs.folders import tree, write_input

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def killing(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.jobs.killing", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)


@pytest.mark.parametrize("files", [[], ["--files"]], ids=["lines", "files"])
def test_killed_before_any_line_of_the_runner(tmp_path, files):
    done = killing("lines", tmp_path, *files)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["count"] > 800


@pytest.mark.parametrize("files", [[], ["--files"]], ids=["lines", "files"])
def test_killed_before_and_after_every_rename(tmp_path, files):
    """By the worker's own hand, so that no moment between two files of a shard is left out; and killed again in going on."""
    done = killing("renames", tmp_path, *files)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["count"] > 2 * len([name for name in told["files"] if not name.startswith("rejects")])


@pytest.mark.parametrize("fault", ["straight", "hasty"])
def test_planted_faults_are_seen(tmp_path, fault):
    """The test above, at the same moments, fails."""
    done = killing("lines", tmp_path, "--fault", fault)
    assert done.returncode == 1
    assert "AssertionError: killed at line" in done.stderr


@pytest.mark.parametrize("files", [[], ["--files"]], ids=["lines", "files"])
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
