"""Ray Data only places work: a real Ray on this machine leaves the folders of the local engine, and its errors are the same lines."""

import os
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from mmspec.jobs import Processes, Reject, Stopped, run
from mmspec.jobs.engine import engines
from mmspec.jobs.engine.folder import JobFolder
from mmspec.jobs.engine.ray import _TRIES, _Pass, _tries, _try
from mmspec.jobs.recommendations_job import make_recommendation_job
from tests.jobs.folders import tree, write_input, write_users
from tests.jobs.test_job import Table
from tests.jobs.worker import at, blunder, built, die_once, full, job, refuse, users
from tests.recsys.test_bulk import asked, home  # noqa: F401  a small recommender
from tests.recsys.test_bulk import write_users as write_customers
from tests.vision.small_jobs import picture_job, write_lines


@pytest.fixture(scope="module")
def cluster():
    """Two workers' room; its folder has a short name, for sockets lie in it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=folder)
        yield ray
        ray.shutdown()


# --- the same folder ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["files", "users"])
def test_the_folder_is_that_of_the_local_engine(cluster, tmp_path, monkeypatch, kind):
    """For files, such as pictures, and for tables (texts are below); each worker builds the job once, and progress is told here."""
    if kind == "users":
        make = partial(users, write_users(tmp_path / "in.parquet"), shard_size=30)
    else:
        make = partial(job, write_input(tmp_path / "in.jsonl"), files=True, shard_size=4)
    done = []
    monkeypatch.setattr(engines, "bar", lambda unit, total, processes: _noted(done, unit, total))
    local = run(make(tmp_path / "right"))
    noted = [done.copy(), done.clear()][0]
    report = run(partial(built, make, tmp_path / "marks", tmp_path / "out", batch_size=3), engine="ray")
    assert tree(tmp_path / "out") == tree(tmp_path / "right")
    assert replace(report, out=local.out, seconds=0, rate=0) == replace(local, seconds=0, rate=0)
    assert report.rejects > 0
    assert report.rate > 0
    assert done[:2] == noted[:2] == ["users" if kind == "users" else "records", report.records]
    assert sum(done[2:]) == sum(noted[2:]) == report.records
    marks = {mark.name: mark.read_text() for mark in (tmp_path / "marks").iterdir()}
    assert set(marks.values()) == {"built\n"}
    assert 2 <= len(marks) <= 3  # one to describe the job, and one or two workers
    assert str(os.getpid()) not in marks


@contextmanager
def _noted(done, unit, total):
    done.extend([unit, total])
    yield done.append


def test_a_ready_job_is_sent_as_it_is(cluster, tmp_path):
    source = write_input(tmp_path / "in.jsonl")
    run(job(source, tmp_path / "right", shard_size=7))
    assert run(job(source, tmp_path / "out", shard_size=7), engine="ray").shards == 5
    assert tree(tmp_path / "out") == tree(tmp_path / "right")
    assert run(job(source, tmp_path / "out", shard_size=7), engine="ray").resumed == 5


# --- what goes wrong ----------------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_is_replaced(cluster, tmp_path):
    source = write_input(tmp_path / "in.jsonl")
    run(job(source, tmp_path / "right", shard_size=4))
    asked = at(13, partial(die_once, tmp_path / "flag"), job(source, tmp_path / "out", shard_size=4))
    report = run(asked, engine="ray")
    assert (tmp_path / "flag").exists()
    assert report.resumed == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "right")


@pytest.mark.parametrize(("spoil", "kind"), [(refuse, ValueError), (full, Stopped), (blunder, RuntimeError)])
def test_errors_are_those_of_the_local_engine(cluster, tmp_path, spoil, kind):
    source, told = write_input(tmp_path / "in.jsonl"), []
    for engine in ("local", "ray"):
        with pytest.raises(Exception) as error:
            run(at(13, spoil, job(source, tmp_path / engine, shard_size=50)), engine=engine)  # one shard, and so one worker
        told.append(error.value)
    assert isinstance(told[1], kind)
    if kind is RuntimeError:
        assert "in blunder" in str(told[1])
        assert "KeyError: 'a bug'" in str(told[1])
    else:
        assert type(told[0]) is kind
        assert str(told[0]).replace("/local", "/ray") == str(told[1])
        assert len(str(told[1]).splitlines()) == 1


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_what_one_engine_began_another_goes_on_with(cluster, tmp_path, engine):
    source, other = write_input(tmp_path / "in.jsonl", 60), {"local": "ray", "ray": "local"}[engine]
    run(job(source, tmp_path / "right", shard_size=4))
    with pytest.raises(ValueError, match="the model does not take this"):
        run(at(60, refuse, job(source, tmp_path / "out", shard_size=4)), engine=engine)
    before = {file.name: file.stat().st_ino for file in (tmp_path / "out/shards").iterdir()}
    report = run(job(source, tmp_path / "out", shard_size=4), engine=other)
    assert report.resumed >= len(before) > 0
    assert tree(tmp_path / "out") == tree(tmp_path / "right")
    assert before.items() <= {file.name: file.stat().st_ino for file in (tmp_path / "out/shards").iterdir()}.items()


def test_what_is_not_there_is_the_same_line(cluster, tmp_path):
    told = []
    for engine in ("local", "ray"):
        with pytest.raises(ValueError, match="does not exist") as error:
            run(partial(users, tmp_path / "gone.parquet", tmp_path / "out"), engine=engine)
        told.append(str(error.value))
    assert told[0] == told[1]
    assert not (tmp_path / "out").exists()


def test_a_job_that_cannot_be_sent_says_what_to_do(cluster, tmp_path):
    lock = threading.Lock()
    asked = at(3, lambda: lock.acquire(), job(write_input(tmp_path / "in.jsonl"), tmp_path / "out"))
    with pytest.raises(ValueError, match=r"the job cannot be sent to ray's workers .*: give `run` a function that builds it") as told:
        run(asked, engine="ray")
    assert len(str(told.value).splitlines()) == 1


def test_recommendations_are_those_of_the_local_engine(cluster, home, tmp_path):  # noqa: F811
    """A job with a model."""
    source = tmp_path / "users.parquet"
    write_customers(source, 60)
    one = {"shard_size": 100}  # and so one worker: jobs of several, without a model, are above
    right = run(partial(make_recommendation_job, asked(home, source, tmp_path / "right", **one)))
    report = run(partial(make_recommendation_job, asked(home, source, tmp_path / "out", **one)), engine="ray")
    assert tree(tmp_path / "out") == tree(tmp_path / "right")
    assert (report.outputs, report.measures["levels"]) == (right.outputs, right.measures["levels"])


def test_pictures_that_join_are_those_of_static_batches_of_the_local_engine(cluster, tmp_path):
    source, options = write_lines(tmp_path / "in.jsonl"), {"method": "jacobi", "window": 4, "shard_size": 7}  # one shard: one worker
    right = run(picture_job(source, tmp_path / "right", batching="static", **options))
    report = run(partial(picture_job, source, tmp_path / "out", batching="continuous", **options), engine="ray")
    assert tree(tmp_path / "out") == tree(tmp_path / "right")
    assert (report.outputs, report.measures["row_calls"]) == (right.outputs, right.measures["row_calls"])


def test_a_cluster_that_does_not_start_stops_the_job_in_one_line(tmp_path, monkeypatch):
    import ray

    def init(**named):
        raise Exception("The current node timed out during startup.\nThis could happen because ...")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(Stopped, match=r"^ray did not start: The current node timed out during startup\.; nothing is lost.*$"):
        run(job(write_input(tmp_path / "in.jsonl"), tmp_path / "out"), engine="ray")
    assert not (tmp_path / "out").exists()


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"needs Ray Data, which is not installed: pip install 'mmspec\[ray\]'"):
        run(job(write_input(tmp_path / "in.jsonl"), tmp_path / "out"), engine="ray")
    assert not (tmp_path / "out").exists()


def test_two_launchers_at_once_are_refused(tmp_path):
    with pytest.raises(ValueError, match="start it once, not under torchrun"):
        run(job(write_input(tmp_path / "in.jsonl"), tmp_path / "out"), engine="ray", processes=Processes(0, 2))


# --- its parts ----------------------------------------------------------------------------------------------------------


def test_a_shard_whose_worker_dies_over_it_is_given_up(tmp_path):
    folder = JobFolder(tmp_path)
    for _ in range(_TRIES):
        _try(folder, 3)
        _try(folder, 4 + _)
    with pytest.raises(Stopped, match=f"the worker of shard 3 died {_TRIES} times") as told:
        _try(folder, 3)
    assert len(str(told.value).splitlines()) == 1
    assert _tries(folder).name.startswith(".unfinished-")  # so that it goes with the rest


def test_rising_shards_take_one_pass_over_the_source(tmp_path):
    passes = []

    class Counted(Table):
        def read(self, wanted):
            passes.append(0)
            return super().read(wanted)

    going = _Pass(job(Counted(20), tmp_path, shard_size=3))
    for shard, length, count in [(0, 3, 1), (1, 3, 1), (4, 3, 1), (6, 2, 1), (2, 3, 2), (2, 3, 3), (5, 3, 3)]:
        found = list(going.records(shard, length))
        assert [index for index, _ in found] == list(range(3 * shard, 3 * shard + length))
        assert not [record for _, record in found if isinstance(record, Reject)]
        assert len(passes) == count
