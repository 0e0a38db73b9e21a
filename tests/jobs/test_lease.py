"""Two copies of a command on one folder, SIGTERM, finished jobs that cannot be written to, and folders that may not be."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmspec.jobs import JsonLines, ParquetRows, Processes, Stopped, run
from mmspec.jobs.engine import folder as folder_module
from mmspec.jobs.engine.job import Job
from mmspec.jobs.engine.lease import free, leased
from tests.jobs.folders import tree, write_input
from tests.jobs.worker import job

ROOT = Path(__file__).parents[2]


@pytest.fixture
def source(tmp_path):
    return write_input(tmp_path / "in.jsonl")


@pytest.fixture
def right(source, tmp_path):
    run(job(source, tmp_path / "right", shard_size=5))
    return tree(tmp_path / "right")


def start(source: Path, out: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.jobs.worker", str(source), str(out), "--shard-size", "5", *more]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_copies_at_once(source, tmp_path, right):
    """The second stops in one line that names the first, which goes on to the right bytes."""
    first = start(source, tmp_path / "out", "--delay", "0.15")
    while not list(tmp_path.glob("out/.unfinished-0")):
        time.sleep(0.005)
    with pytest.raises(Stopped, match=f"out is in use by process {first.pid} on .*: wait until that has ended or stop it") as told:
        run(job(source, tmp_path / "out", shard_size=5))
    assert len(str(told.value).splitlines()) == 1
    said = first.communicate(timeout=120)
    assert first.returncode == 0, said
    assert tree(tmp_path / "out") == right


def test_copies_that_start_together_and_are_killed_at_random(source, tmp_path, right):
    """Again and again two copies start at once and one is killed: one works at a time, and the end is the right bytes."""
    draw, out = random.Random(4), tmp_path / "out"
    for _ in range(12):
        copies = [start(source, out, "--delay", "0.02") for _ in range(2)]
        done = len(list(out.glob("shards/*")))
        while all(copy.poll() is None for copy in copies) and len(list(out.glob("shards/*"))) == done:
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.05))
        copies[draw.randrange(2)].kill()
        said = [copy.communicate(timeout=120) for copy in copies]
        codes = [copy.returncode for copy in copies]
        assert set(codes) <= {0, 1, -signal.SIGKILL}
        assert all("in use by" in err or "" == err for code, (_, err) in zip(codes, said, strict=True) if code == 1), said
        if 0 in codes:
            break
    run(job(source, out, shard_size=5))
    assert tree(out) == right


def test_a_planted_missing_lease_is_seen(source, tmp_path, monkeypatch):
    """Without locks two copies share a scratch folder: the second does not stop."""
    monkeypatch.setattr("mmspec.jobs.engine.lease._lock", lambda handle: True)
    with leased(tmp_path / "out", 0):
        run(job(source, tmp_path / "out", shard_size=5))


def test_leases_of_other_processes_of_a_launch_are_their_own(tmp_path):
    with leased(tmp_path, 0), leased(tmp_path, 1):
        assert not free(tmp_path, "1")
        with pytest.raises(Stopped, match="in use"), leased(tmp_path, 1):
            pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".lease-3").touch()  # of a process that was killed
    assert free(tmp_path, "3")
    assert list(tmp_path.iterdir()) == []


def test_the_first_process_leaves_what_others_still_write(source, tmp_path):
    with leased(tmp_path / "out", 1):
        (tmp_path / "out" / ".unfinished-1").mkdir()
        (tmp_path / "out" / ".unfinished-2").mkdir()
        run(job(source, tmp_path / "out", shard_size=5))
        assert sorted(path.name for path in (tmp_path / "out").glob(".*")) == [".lease-1", ".unfinished-1"]


def test_sigterm_leaves_nothing_behind(source, tmp_path, right):
    out, handler = tmp_path / "out", signal.getsignal(signal.SIGTERM)  # Ray, in another test of this process, may have set one
    for delay in (0.0, 0.03, 0.08):
        process, done = start(source, out, "--delay", "0.1"), len(list(out.glob("shards/*")))
        while len(list(out.glob("shards/*"))) == done:
            time.sleep(0.005)
        time.sleep(delay)
        process.terminate()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert err.startswith("stopped by SIGTERM: finished shards stay in ")
        assert len(err.splitlines()) == 1
        assert not list(out.glob(".*"))
    run(job(source, out, shard_size=5))
    assert tree(out) == right
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_finished_job_is_read_and_not_written(source, tmp_path, right, monkeypatch):
    """As on a folder without the right to write: nothing is made, locked, renamed or removed."""
    out = tmp_path / "right"
    before = {path: path.stat().st_mtime_ns for path in [out, *out.rglob("*")]}

    def refuse(*args, **named):
        raise PermissionError(13, "Permission denied")

    for module, name in ((os, "replace"), (os, "link"), (os, "open"), (Path, "mkdir"), (Path, "unlink"), (folder_module.shutil, "rmtree")):
        monkeypatch.setattr(module, name, refuse)
    report = run(job(source, out, shard_size=5))
    assert (report.resumed, report.shards, report.records) == (7, 7, 34)
    assert run(job(source, out, shard_size=5), processes=Processes(1, 2)) is None
    with pytest.raises(ValueError, match="holds another job"):
        run(job(source, out, shard_size=6))
    monkeypatch.undo()
    assert {path: path.stat().st_mtime_ns for path in [out, *out.rglob("*")]} == before


def table_job(users: Path, out: Path, *columns: str) -> Job:
    rows = ParquetRows(users, columns)
    return Job(source=rows, sink=JsonLines(), work=lambda batch: [record for _, record in batch], out=out, model={}, options={})


def test_an_output_inside_the_input(tmp_path):
    users = tmp_path / "users"
    users.mkdir()
    pq.write_table(pa.table({"user_id": [1]}), users / "a.parquet")
    for out in (users, users / "out", users / "ds=1" / "deep"):
        with pytest.raises(ValueError, match=r"is inside the input folder .*: give one outside it"):
            run(table_job(users, out, "user_id"))
    assert [path.name for path in users.iterdir()] == ["a.parquet"]
    assert run(table_job(users, tmp_path / "users-out", "user_id")).outputs == 1


def test_partitions_are_read_and_are_columns(tmp_path):
    """Folders called name=value, in the order of their names; the value is a text."""
    for day, ids in (("2026-01-02", [3]), ("2026-01-01", [1, 2]), ("a%20b", [4])):
        (tmp_path / "in" / f"ds={day}" / "hour=1").mkdir(parents=True)
        pq.write_table(pa.table({"user_id": ids}), tmp_path / "in" / f"ds={day}" / "hour=1" / "part.parquet")
    (tmp_path / "in" / "_logs").mkdir()
    (tmp_path / "in" / "_logs" / "x.parquet").write_text("not a table")
    rows = ParquetRows(tmp_path / "in", ("user_id", "ds"))
    found = [record for _, record in rows.read(lambda index: True)]
    wanted = [(1, "2026-01-01"), (2, "2026-01-01"), (3, "2026-01-02"), (4, "a b")]
    assert [(row["user_id"], row["ds"]) for row in found] == wanted
    assert rows.place(2) == {"file": "ds=2026-01-02/hour=1/part.parquet", "row": 1}
    assert rows.types == {"user_id": "int64", "ds": "string"}
    assert rows.facts().records == 4
    with pytest.raises(ValueError, match="has no column 'day'; it has user_id, ds, hour"):
        ParquetRows(tmp_path / "in", ("day",))
