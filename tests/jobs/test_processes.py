"""Several processes share a job by files alone: real ones, killed ones, and as `torchrun` starts them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmspec.jobs import Processes, Stopped, run
from tests.jobs.folders import tree, write_input
from tests.jobs.worker import job

ROOT = Path(__file__).parents[2]
WORKER = ["-m", "tests.jobs.worker"]


def start(source: Path, out: Path, rank: int, world: int, *more: str) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    command = [sys.executable, *WORKER, str(source), str(out), "--shard-size", "5", *more]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def source(tmp_path):
    return write_input(tmp_path / "in.jsonl")


@pytest.fixture
def right(source, tmp_path):
    run(job(source, tmp_path / "right", shard_size=5))
    return tree(tmp_path / "right")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_three_processes_do_what_one_does(source, tmp_path, right, order):
    launched = [start(source, tmp_path / "out", rank, 3, "--delay", "0.02") for rank in order]
    said = dict(zip(order, (process.communicate(timeout=200) for process in launched), strict=True))
    assert [process.returncode for process in launched] == [0, 0, 0], said
    assert "34 records" in said[0][0]
    assert (said[1][0].strip(), said[2][0].strip()) == ("None", "None")
    assert tree(tmp_path / "out") == right
    owners = {name: (tmp_path / "out/timing" / name).read_text() for name in os.listdir(tmp_path / "out/timing")}
    assert all(f'"process": {int(name[:5]) % 3}' in text for name, text in owners.items())


def test_one_is_killed_and_another_number_of_processes_goes_on(source, tmp_path, right):
    out = tmp_path / "out"
    slow, dead = start(source, out, 0, 2), start(source, out, 1, 2, "--delay", "0.3")
    while not (out / ".unfinished-1").exists():
        time.sleep(0.005)
    dead.kill()
    dead.communicate()
    while not (out / "shards/00006.json").exists():  # the last that is the first process's own: now it waits
        time.sleep(0.005)
    assert slow.poll() is None
    slow.kill()
    slow.communicate()
    assert b"unfinished" in tree(out)["manifest.json"]
    run(job(source, out, shard_size=5))
    assert tree(out) == right


def test_the_first_process_does_not_wait_for_ever(source, tmp_path):
    with pytest.raises(Stopped, match="3 shards of other processes are missing, and none was finished for 0 s"):
        run(job(source, tmp_path / "out", shard_size=5), processes=Processes(0, 2), patience=0.3)


def test_as_torchrun_starts_them(source, tmp_path, right):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *WORKER]
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command += [str(source), str(tmp_path / "out"), "--shard-size", "5"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert tree(tmp_path / "out") == right


def test_the_environment_is_read_strictly(monkeypatch):
    for given, words in (
        ({"RANK": "0"}, "belong together"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "process 2 of 2"),
    ):
        with monkeypatch.context() as patch:
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
                patch.delenv(name, raising=False)
            for name, value in given.items():
                patch.setenv(name, value)
            with pytest.raises(ValueError, match=words):
                Processes.here()


def test_every_shard_has_one_owner():
    for world in range(1, 5):
        for shard in range(20):
            assert sum(Processes(rank, world).owns(shard) for rank in range(world)) == 1
