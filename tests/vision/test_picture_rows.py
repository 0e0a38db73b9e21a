"""Picture jobs with continuous batching: the bytes of static batches in fewer forwards, killed and resumed."""

import os
import signal
from functools import partial

import pytest

from mmspec.jobs import run
from mmspec.jobs.pictures import Draw
from mmspec.jobs.rows import BATCHING
from tests.jobs.folders import tree
from tests.jobs.one_thread import one_thread  # noqa: F401
from tests.jobs.worker import killed
from tests.vision.small_jobs import LINES, assisted, picture_job, recipe, write_lines

MANY = [{"prompt": ("cat", "dog", "owl")[n % 3], "id": n} for n in range(8)]


@pytest.mark.parametrize("guidance", [None, 2.0])
@pytest.mark.parametrize("method", ["plain", "jacobi", "assisted", "assisted-jacobi"])
def test_pictures_that_join_write_the_bytes_of_static_batches(tmp_path, method, guidance):
    prompts, found = write_lines(tmp_path / "in.jsonl", [*LINES, *MANY]), {}
    options = {"method": method, "guidance": guidance, "batch_size": 4, "shard_size": 12, "window": None if method == "plain" else 4}
    for way in BATCHING:
        found[way] = run(picture_job(prompts, tmp_path / way, assisted(), batching=way, **options)).measures
    assert tree(tmp_path / "continuous") == tree(tmp_path / "static")
    names = ("pictures", "tokens", "row_calls", "drafted", "accepted", "drift")
    assert [found["continuous"][name] for name in names] == [found["static"][name] for name in names]
    if method == "jacobi":  # pictures take different numbers of forwards
        assert found["continuous"]["target_calls"] < found["static"]["target_calls"]


@pytest.mark.parametrize(("method", "joins"), [("jacobi", True), ("assisted", True), ("scd", False), ("plain", False)])
def test_pictures_of_token_exact_methods_that_draft_join_by_default(tmp_path, method, joins):
    job = picture_job(write_lines(tmp_path / "in.jsonl"), tmp_path / "out", assisted(), method=method, window=None)
    assert job.work.joins == joins
    assert job.about["batching"] == ("continuous" if joins else "static")
    assert job.options.get("window") == {"jacobi": 32, "assisted": 6, "scd": 32, "plain": None}[method]


@pytest.mark.parametrize("method", ["scd", "gsd", "eagle", "zipar"])
def test_methods_whose_pictures_cannot_join_run_in_static_batches(method):
    """Those that are not token-exact, for an engine accepts by a rule of its own, and those that write rows side by side."""
    work = Draw(assisted(), {"method": method} | ({} if method == "zipar" else {"window": 4}), rows=2)
    records = list(enumerate(MANY[:3]))
    assert not work.joins
    assert list(work(records)) == list(Draw(assisted(), work.options, rows=2, continuous=False)(records))
    assert work.measures()["pictures"] == 3


def die_at(picture: int) -> None:
    """Kill this process when its picture of that number is encoded."""
    from mmspec.jobs import pictures

    encode, left = pictures.picture_bytes, [picture]

    def dying(*given):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return encode(*given)

    pictures.picture_bytes = dying


@pytest.mark.parametrize("method", ["jacobi", "plain"])
def test_a_job_that_is_killed_while_it_draws_goes_on_with_either(tmp_path, method):
    prompts = write_lines(tmp_path / "in.jsonl")
    options = {"method": method, "window": None if method == "plain" else 4}
    run(picture_job(prompts, tmp_path / "right", batching="static", **options))
    for way, picture in (("continuous", 1), ("static", 1), ("continuous", 3)):
        job = picture_job(prompts, tmp_path / "out", batching=way, **options)
        assert killed(partial(die_at, picture), job)
    report = run(picture_job(prompts, tmp_path / "out", batching="continuous", batch_size=3, **options))
    assert report.resumed == 1
    assert tree(tmp_path / "out") == tree(tmp_path / "right")


@pytest.mark.parametrize(
    ("options", "settings", "words"),
    [
        ({}, {"rows": 0}, "batch size is 0: give at least 1"),
        ({"method": "plain", "window": 4}, {}, "window is 4, but it is for methods that draft"),
        ({"method": "none"}, {}, "unknown method 'none'"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_drawn(options, settings, words):
    with pytest.raises(ValueError, match=words):
        Draw(recipe().tiny(), options, **settings)
