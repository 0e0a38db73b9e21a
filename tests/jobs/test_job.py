"""What a job gives: the same outputs in any split, reasons for what is missing, and a refusal where two jobs would mix."""

import errno
import json
import subprocess
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from mmspec.jobs import Facts, JsonLines, NumberedFiles, Processes, Reject, Stopped, run
from mmspec.jobs.engine import job as job_module
from tests.jobs.folders import merged, tree, write_input
from tests.jobs.worker import draw, job


@pytest.fixture
def source(tmp_path):
    return write_input(tmp_path / "in.jsonl")


def expected(source: Path, seed: int) -> list[dict]:
    """The outputs, without any runner: from each line and its number alone."""
    rows = []
    for index, line in enumerate(source.read_text().splitlines()):
        try:
            record = json.loads(line)
            text = draw(seed + index, record["prompt"]) if isinstance(record["prompt"], str) else "0"
        except (ValueError, TypeError):
            continue
        if text[0] != "0":
            rows.append({"index": index, **record, "text": text})
    return rows


# --- the contract -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shard_size", "batch_size"), [(1, 1), (3, 2), (8, 3), (8, 8), (10, 100), (34, 5), (1000, 7)])
def test_outputs_follow_from_index_and_record_alone(source, tmp_path, shard_size, batch_size):
    report = run(job(source, tmp_path / "out", seed=5, shard_size=shard_size, batch_size=batch_size))
    rows = [json.loads(line) for line in merged(tmp_path / "out").splitlines()]
    assert rows == expected(source, seed=5)
    assert report.outputs == len(rows)
    assert report.records == 34 == report.outputs + report.rejects
    assert report.shards == len(list((tmp_path / "out").glob("part-*"))) == -(-34 // shard_size)


def test_numbered_files_do_not_depend_on_the_split_either(source, tmp_path):
    for n, (shard_size, batch_size) in enumerate([(3, 2), (34, 5)]):
        run(job(source, tmp_path / f"out{n}", files=True, shard_size=shard_size, batch_size=batch_size))
    first, second = tmp_path / "out0", tmp_path / "out1"
    assert merged(first) == merged(second)
    assert tree(first / "files") == tree(second / "files")
    rows = [json.loads(line) for line in merged(first).splitlines()]
    assert [row["file"] for row in rows] == [f"files/{row['index']:06d}.bin" for row in rows]
    assert sorted(row["file"] for row in rows) == sorted(name for name in tree(first) if name.startswith("files/"))


def test_a_planted_seed_by_place_in_the_shard_is_seen(source, tmp_path, monkeypatch):
    right = job_module._checked
    monkeypatch.setattr(job_module, "_checked", lambda *args: ((n, r) for n, (_, r) in enumerate(right(*args))))
    run(job(source, tmp_path / "out", seed=5, shard_size=8))
    assert [json.loads(line) for line in merged(tmp_path / "out").splitlines()] != expected(source, seed=5)


def test_batches_hold_no_more_than_asked_and_no_rejects(source, tmp_path):
    seen = []
    asked = job(source, tmp_path / "out", shard_size=8, batch_size=3)
    run(replace(asked, work=lambda batch: seen.append(batch) or [{"n": index} for index, _ in batch]))
    assert max(map(len, seen)) == 3
    assert not [record for batch in seen for _, record in batch if isinstance(record, Reject)]


def test_a_worker_that_loses_a_record_is_named(source, tmp_path):
    with pytest.raises(RuntimeError, match="2 outputs for 3 records: it must give one each, or a Reject"):
        run(replace(job(source, tmp_path / "out", batch_size=3), work=lambda batch: [{} for _ in batch[1:]]))
    assert not list((tmp_path / "out").glob(".unfinished*"))


def test_an_index_of_the_record_itself_stays(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"prompt": "a", "index": "mine"}\n')
    run(job(tmp_path / "in.jsonl", tmp_path / "out"))
    assert json.loads(merged(tmp_path / "out"))["index"] == "mine"


# --- what is written ----------------------------------------------------------------------------------------------------


def test_rejects_have_line_and_reason_and_counts_add_up(source, tmp_path):
    report = run(job(source, tmp_path / "out", shard_size=5))
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    reasons = {reject["line"]: reject["reason"] for reject in rejects}
    assert [list(reject) for reject in rejects] == [["index", "file", "line", "reason"]] * len(rejects)
    assert all(reject["index"] == reject["line"] - 1 and reject["file"] == source.name for reject in rejects)
    assert list(reasons) == sorted(reasons)
    assert reasons[8].startswith("not JSON: Expecting value")
    assert reasons[16] == "empty"
    assert reasons[24] == "wrong type: a JSON list, not an object"
    assert reasons[32] == "unknown item 3: give a text"
    assert {reasons[line] for line in reasons if line not in (8, 16, 24, 32)} == {"came out empty"}
    assert f"{report.outputs} outputs, {len(rejects)} rejects" in str(report)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["state"] == "done"
    assert manifest["counts"] == {"records": 34, "outputs": report.outputs, "rejects": len(rejects), "shards": 7}


def test_timing_and_provenance_stand_apart(source, tmp_path):
    total = 0

    def work(batch):
        nonlocal total
        total += len(batch)
        return [{"n": index} for index, _ in batch]

    asked = replace(job(source, tmp_path / "out", shard_size=8), work=work, about={"device": "x"}, measures=lambda: {"tokens": total})
    report = run(asked)
    timing = json.loads((tmp_path / "out/timing.json").read_text())
    assert timing == {"seconds": report.seconds, "measures": {"tokens": total}, "about": [{"device": "x"}]}
    assert not [name for name, content in tree(tmp_path / "out").items() if b"seconds" in content or b"device" in content]
    assert run(asked).measures == {"tokens": total}  # also when nothing was left to do


def test_everything_may_be_rejected(tmp_path):
    (tmp_path / "in.jsonl").write_text("a\nb\n")
    report = run(job(tmp_path / "in.jsonl", tmp_path / "out"))
    assert (report.outputs, report.rejects) == (0, 2)
    assert merged(tmp_path / "out") == b""


# --- starting again -----------------------------------------------------------------------------------------------------


def test_a_finished_job_is_left_alone(source, tmp_path):
    run(job(source, tmp_path / "out"))
    before = tree(tmp_path / "out")
    work = lambda batch: pytest.fail("nothing is left to do")  # noqa: E731
    report = run(replace(job(source, tmp_path / "out"), work=work, batch_size=99))
    assert tree(tmp_path / "out") == before
    assert report.resumed == report.shards


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(b"cut"), lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("name", ["part-00001.jsonl", "files/000009.bin", "shards/00001.json", "rejects.jsonl"])
def test_what_was_lost_or_cut_is_done_again(source, tmp_path, name, harm):
    asked = job(source, tmp_path / "out", files=True, shard_size=8)
    run(asked)
    before = tree(tmp_path / "out")
    harm(tmp_path / "out" / name)
    assert tree(tmp_path / "out") != before
    report = run(asked)
    assert tree(tmp_path / "out") == before
    assert report.shards - report.resumed == (name != "rejects.jsonl")


REFUSED = {
    "seed": ({"seed": 1}, "options.seed is 0 there and 1 here"),
    "model": ({"model": "k"}, 'model.weights is "m" there and "k" here'),
    "shard size": ({"shard_size": 9}, "shard_size is 8 there and 9 here"),
    "sink": ({"files": True}, "sink is "),
}


@pytest.mark.parametrize("what", [*REFUSED, "input", "options"])
def test_another_job_is_refused_in_one_line_that_says_what_differs(source, tmp_path, what):
    asked = {"seed": 0, "shard_size": 8}
    run(job(source, tmp_path / "out", **asked))
    before = tree(tmp_path / "out")
    changes, words = REFUSED.get(what, ({}, ""))
    if what == "input":
        source.write_text(source.read_text().replace("p3", "q3"))
        words = "input.fingerprint is "
    other = job(source, tmp_path / "out", **(asked | changes))
    if what == "options":
        other, words = replace(other, options={"seed": 0, "top_k": 3}), "options.top_k is null there and 3 here"
    with pytest.raises(ValueError, match="holds another job") as refused:
        run(other)
    message = str(refused.value)
    assert words in message
    assert "Give what it was begun with, or a new output folder" in message
    assert len(message.splitlines()) == 1
    assert tree(tmp_path / "out") == before


def test_places_that_cannot_be_a_jobs(source, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(ValueError, match=r"holds mine\.txt and no manifest\.json: give a new or an empty folder"):
        run(job(source, tmp_path / "full"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read: remove"):
        run(job(source, tmp_path / "broken"))
    for file in (source, source / "deeper"):
        with pytest.raises(ValueError, match="cannot write to"):
            run(job(source, file))


def test_bad_settings(source, tmp_path):
    with pytest.raises(ValueError, match="shard size is 0: give at least 1"):
        job(source, tmp_path / "out", shard_size=0)
    with pytest.raises(ValueError, match="batch size is -1"):
        job(source, tmp_path / "out", batch_size=-1)
    with pytest.raises(ValueError, match="unknown engine 'spark'; valid: local, ray"):
        run(job(source, tmp_path / "out"), engine="spark")
    source.write_text("")
    with pytest.raises(ValueError, match="holds no record"):
        run(job(source, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


# --- other sources, other sinks -----------------------------------------------------------------------------------------


class Table:
    """A source that is no file, as a Parquet table would be: so many rows of 10 kB."""

    unit = "row"

    def __init__(self, rows: int, told: int | None = None) -> None:
        self.rows, self.told = rows, rows if told is None else told

    def facts(self):
        return Facts(self.told, str(self.told))

    def read(self, wanted):
        return ((n, {"prompt": str(n) * 2500}) for n in range(self.rows) if wanted(n))


def test_memory_does_not_grow_with_the_number_of_records(tmp_path):
    asked = job(Table(1000), tmp_path / "warm", shard_size=50)
    run(asked)
    peaks = []
    for rows in (200, 2000):
        tracemalloc.start()
        run(job(Table(rows), tmp_path / f"{rows}", shard_size=50))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1e6  # 18e6 more went through


@pytest.mark.parametrize("rows", [0, 9, 10, 16, 18, 19, 25])
def test_an_input_that_changes_while_it_is_read_stops_the_job(tmp_path, rows):
    with pytest.raises(Stopped, match=r"the input change"):
        run(job(Table(rows, told=20), tmp_path / "out", shard_size=8))
    assert json.loads((tmp_path / "out/manifest.json").read_text())["state"] == "unfinished"


# --- a full disk --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A folder where 64 kB can be written: a file system of its own where that may be made, else writes that fail."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True).returncode == 0
    if not mounted:
        right, budget = Path.write_bytes, [64_000]

        def write_bytes(path, content):
            budget[0] -= len(content)
            if budget[0] < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return right(path, content)

        monkeypatch.setattr(Path, "write_bytes", write_bytes)
    yield folder
    if mounted:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_told_in_one_line_and_earlier_shards_stay(tmp_path, small_disk):
    source, whole = write_input(tmp_path / "in.jsonl", good=60), tmp_path / "whole"
    run(job(source, whole, files=True, shard_size=4))
    with pytest.raises(Stopped, match=r"no space left on the disk of .*: free some and start the same command again") as stopped:
        run(job(source, small_disk / "out", files=True, shard_size=4))
    assert len(str(stopped.value).splitlines()) == 1
    found, right = tree(small_disk / "out"), tree(whole)
    manifest = found.pop("manifest.json")
    assert b"unfinished" in manifest
    assert found.items() <= right.items()  # what is there is whole
    assert len([name for name in found if name.startswith("shards/")]) >= 2
    assert not list((small_disk / "out").glob(".unfinished*"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_full_at_any_rename_or_sync(source, tmp_path, monkeypatch, number):
    import mmspec.jobs.engine.folder as folder

    run(job(source, tmp_path / "whole", shard_size=16))
    right, moment = tree(tmp_path / "whole"), 0
    steps = {name: getattr(folder.os, name) for name in ("replace", "fsync")}
    while True:
        moment, passed, out = moment + 1, 0, tmp_path / f"out{moment}"

        def failing(name):
            def step(*args):
                nonlocal passed
                passed += 1
                if passed == moment:  # noqa: B023
                    raise OSError(number, "full")
                return steps[name](*args)

            return step

        with monkeypatch.context() as patch:
            for name in steps:
                patch.setattr(folder.os, name, failing(name))
            try:
                run(job(source, out, shard_size=16))
                break
            except Stopped:
                pass
        assert not list(out.glob(".unfinished*"))
        assert all(right[name] == content for name, content in tree(out).items() if name != "manifest.json")
        run(job(source, out, shard_size=16))
        assert tree(out) == right
    assert moment > 15


def test_other_errors_pass_through(source, tmp_path, monkeypatch):
    def broken(batch):
        raise OSError(errno.EIO, "the worker's own")

    with pytest.raises(OSError, match="the worker's own"):
        run(replace(job(source, tmp_path / "out"), work=broken))


def test_sinks_are_told_apart_by_their_settings():
    assert repr(NumberedFiles(".png")) != repr(NumberedFiles(".jpg"))
    assert repr(JsonLines()) == "JsonLines()"
    assert Processes() == Processes.here()
