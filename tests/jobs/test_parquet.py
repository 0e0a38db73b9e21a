"""Tables in and out: the same records in any layout, the same bytes in any split, one line for what cannot be read, bounded memory."""

import json
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmspec.jobs import ParquetRows, ParquetTable, Stopped, run
from mmspec.jobs.engine import parquet as parquet_module
from mmspec.jobs.engine.columns import ContentDigest
from mmspec.jobs.engine.folder import JobFolder
from tests.jobs.folders import tree, user_table, write_users
from tests.jobs.test_kill import ENVIRONMENT, ROOT
from tests.jobs.worker import users

COLUMNS = ("user_id", "history")
TABLE = ParquetTable({"item": "int64", "note": "string"})


def folder_of(table: pa.Table, path: Path, cuts: list[int], **how) -> Path:
    """A table as the files of a folder, cut at these rows."""
    path.mkdir()
    (path / "README.txt").touch()
    for n, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(table)], strict=True)):
        pq.write_table(table.slice(first, last - first), path / f"{n}.parquet", **how)
    return path


# --- in -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, 7, 64, 1000])
def test_records_are_the_rows_whatever_the_layout(tmp_path, group):
    table = user_table(150)
    right = [{name: row[name] for name in COLUMNS} for row in table.to_pylist()]
    one, many = tmp_path / "one.parquet", folder_of(table, tmp_path / "many", [0, 40, 41, 99], row_group_size=group)
    pq.write_table(table, one, row_group_size=group)
    for source in (ParquetRows(one, COLUMNS), ParquetRows(many, COLUMNS)):
        assert list(source.read(lambda index: True)) == list(enumerate(right))
        assert list(source.read(lambda index: index % 50 == 45)) == [(n, right[n]) for n in (45, 95, 145)]
        assert source.facts().records == 150
        assert source.types == {"user_id": "string", "history": "list<element: int64>"}


def test_all_columns_where_none_are_named(tmp_path):
    assert ParquetRows(write_users(tmp_path / "in.parquet")).columns == ("user_id", "note", "history")


def test_wanted_may_change_its_mind_while_a_row_group_is_open(tmp_path):
    """As workers ask that go through a source once, for shards that they learn of one by one."""
    at = 3
    stream = ParquetRows(write_users(tmp_path / "in.parquet"), COLUMNS).read(lambda index: index == at)
    assert next(stream)[0] == 3
    for at in (5, 63, 64, 190):
        assert next(stream)[0] == at


def test_row_groups_without_a_wanted_row_are_not_read(tmp_path, monkeypatch):
    seen, right = [], ParquetRows._batches
    monkeypatch.setattr(ParquetRows, "_batches", lambda self, path, table, group: seen.append(group) or right(self, path, table, group))
    list(ParquetRows(write_users(tmp_path / "in.parquet", 200, 10), COLUMNS).read(lambda index: index in (35, 36, 120)))
    assert seen == [3, 12]


def test_the_fingerprint_is_of_content_alone(tmp_path):
    table = user_table(150)
    wide = pa.schema([("history", pa.large_list(pa.int32())), ("user_id", pa.large_string())])
    layouts = [
        ("a", {}, table, []),
        ("b", {"row_group_size": 7, "compression": "none"}, table, [1, 2, 149]),
        ("c", {"use_dictionary": False, "compression": "gzip"}, table.select(["history", "user_id"]).cast(wide), [75]),
        ("d", {"row_group_size": 3}, table.set_column(0, "user_id", table["user_id"].dictionary_encode()), [20]),
    ]
    found = {ParquetRows(folder_of(t, tmp_path / name, cuts, **how), COLUMNS).facts().fingerprint for name, how, t, cuts in layouts}
    assert len(found) == 1


def fingerprint(*batches: dict) -> str:
    digest = ContentDigest()
    for batch in batches:
        digest.add(pa.RecordBatch.from_pydict(batch))
    return digest.hexdigest()


def test_other_content_has_another_fingerprint():
    """Also where the same bytes are shared out otherwise."""
    moment = pa.array([1, 2], pa.timestamp("s"))
    tables = [
        *({"a": values} for values in ([1, 2], [2, 1], [1], [1, None], [1, 0], [1.0, 2.0], ["1", "2"], [True, False], ["12", ""])),
        *({"a": values} for values in (["", "12"], [None, "12"], [[1], [2]], [[1, 2], []], [[], [1, 2]], [[1, 2], None], [[1, None], []])),
        *({"a": values} for values in ([["1"], ["2"]], [["12"], [""]], [[[1]], [[2]]], [[[1], [2]], []], [{"x": 1}, {"x": 2}], moment)),
        *({"b": [1, 2]}, {"a": [1, 2], "b": [1, 2]}),
    ]
    assert len({fingerprint(table) for table in tables}) == len(tables)


def test_batches_do_not_show_in_the_fingerprint():
    cases = ([1, None, 3], [0.5, None, 2.0], ["x", None, "yz"], [[1, 2], None, [None, 3]], [["a"], [], None], [{"x": 1}, None, {"x": 2}])
    for values in cases:
        whole = pa.RecordBatch.from_pydict({"a": pa.array(values)})
        for cut in range(4):
            digest = ContentDigest()
            digest.add(whole.slice(0, cut))
            digest.add(whole.slice(cut))
            assert digest.hexdigest() == fingerprint({"a": pa.array(values)})


def test_what_cannot_be_read_is_one_line_before_anything_is_loaded(tmp_path):
    table, text, cut = write_users(tmp_path / "in.parquet"), tmp_path / "text.parquet", tmp_path / "cut.parquet"
    text.write_text("user_id,history\n" * 99)
    cut.write_bytes(table.read_bytes()[:-100])
    (tmp_path / "none").mkdir()
    mixed = folder_of(user_table(9), tmp_path / "mixed", [4])
    pq.write_table(user_table(9).drop_columns("history"), mixed / "2.parquet")
    cases = [
        (tmp_path / "gone.parquet", COLUMNS, "gone.parquet does not exist: give a Parquet file, or a folder of them"),
        (text, COLUMNS, "text.parquet cannot be read as Parquet: "),
        (cut, COLUMNS, "cut.parquet cannot be read as Parquet: "),
        (tmp_path / "none", COLUMNS, "none holds no *.parquet file: give a Parquet file"),
        (table, ("user", "history"), "in.parquet has no column 'user'; it has user_id, note, history: name one of those"),
        (mixed, COLUMNS, "2.parquet has no column 'history'; it has user_id, note"),
    ]
    for path, columns, words in cases:
        with pytest.raises(ValueError) as told:
            ParquetRows(path, columns)
        assert words in str(told.value)
        assert len(str(told.value).splitlines()) == 1


def test_a_file_that_is_broken_in_the_middle_stops_the_job_in_one_line(tmp_path):
    path = write_users(tmp_path / "in.parquet", 2000, 500)
    content = bytearray(path.read_bytes())
    middle = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
    content[middle : middle + 400] = bytes(400)
    path.write_bytes(content)
    source = ParquetRows(path, COLUMNS)
    for reading in (source.facts, lambda: list(source.read(lambda index: True))):
        with pytest.raises(ValueError, match=r"in\.parquet cannot be read as Parquet: .*; restore it or leave it out") as told:
            reading()
        assert len(str(told.value).splitlines()) == 1
    assert len(list(source.read(lambda index: index < 900))) == 900


def test_a_file_of_another_type_becomes_rejects_and_the_job_goes_on(tmp_path):
    source = folder_of(user_table(90), tmp_path / "in", [50])
    pq.write_table(pa.table({"user_id": ["a", "b"], "history": ["1 2", "3"]}), source / "2.parquet")
    report = run(users(source, tmp_path / "out"))
    rejects = [json.loads(line) for line in (tmp_path / "out/rejects.jsonl").read_text().splitlines()]
    assert [reject["index"] for reject in rejects] == [10, 20, 30, 40, 90, 91]
    assert [(reject["file"], reject["row"]) for reject in rejects[-2:]] == [("2.parquet", 1), ("2.parquet", 2)]
    assert [reject["reason"] for reject in rejects[:4]] == [
        "history is NoneType, not a list of items",
        "empty history",
        "unknown item 5000",
        "unknown item None",
    ]
    assert rejects[4]["reason"] == "history is str, not a list of items"
    assert str(report).startswith("92 users: 86 outputs, 6 rejects")


# --- out ----------------------------------------------------------------------------------------------------------------


def written(folder: Path, sink: ParquetTable, outputs) -> bytes:
    folder.mkdir(exist_ok=True)
    sink.write(iter(enumerate(outputs)), folder, "part-00000")
    return (folder / "part-00000.parquet").read_bytes()


def test_the_rows_are_the_outputs_in_order(tmp_path):
    run(users(write_users(tmp_path / "in.parquet"), tmp_path / "out", shard_size=64, batch_size=5))
    rows = [row for part in sorted(tmp_path.glob("out/part-*")) for row in pq.read_table(part).to_pylist()]
    kept = [user for user in range(200) if user % 100 not in (10, 20, 30, 40)]
    assert [(row["user_id"], row["rank"]) for row in rows] == [(f"u{user}", rank) for user in kept for rank in (1, 2, 3, 4)]
    schema = pa.schema([("user_id", pa.string()), ("rank", pa.int32()), ("item", pa.int64()), ("score", pa.float32())])
    assert pq.read_schema(tmp_path / "out/part-00000.parquet").equals(schema)


@pytest.mark.parametrize("batch_size", [1, 64, 1000])
def test_neither_batch_size_nor_layout_shows_in_the_folder(tmp_path, batch_size):
    run(users(write_users(tmp_path / "in.parquet"), tmp_path / "right", shard_size=30))
    many = folder_of(user_table(200), tmp_path / "in", [33, 120], row_group_size=9)
    run(users(many, tmp_path / "out", shard_size=30, batch_size=batch_size))
    out, right = tree(tmp_path / "out"), tree(tmp_path / "right")
    assert placeless(out.pop("rejects.jsonl")) == placeless(right.pop("rejects.jsonl"))
    assert out == right


def placeless(rejects: bytes) -> list[tuple[int, str]]:
    """Index and reason of every reject: the file and the row in it are the layout's."""
    return [(row["index"], row["reason"]) for row in map(json.loads, rejects.splitlines())]


def test_row_groups_are_of_one_size_however_outputs_come(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_module, "_GROUP_ROWS", 10)
    rows = [{"item": n, "note": str(n)} for n in range(37)]
    cuts = [0, 0, 1, 9, 10, 30, 37]
    grouped = [rows[first:last] for first, last in pairwise(cuts)]
    columns = [{"item": [row["item"]], "note": [row["note"]]} for row in rows]
    files = [written(tmp_path / str(n), TABLE, given) for n, given in enumerate((grouped, columns, [rows]))]
    assert files[0] == files[1] == files[2]
    found = pq.ParquetFile(tmp_path / "0/part-00000.parquet")
    assert [found.metadata.row_group(n).num_rows for n in range(found.num_row_groups)] == [10, 10, 10, 7]
    assert found.read().to_pylist() == rows


def test_a_shard_of_rejects_is_an_empty_table(tmp_path):
    pq.write_table(user_table(100).slice(10, 1), tmp_path / "in.parquet")
    report = run(users(tmp_path / "in.parquet", tmp_path / "out"))
    assert (report.outputs, report.rejects) == (0, 1)
    table = pq.read_table(tmp_path / "out/part-00000.parquet")
    assert (table.num_rows, table.column_names) == (0, ["user_id", "rank", "item", "score"])


def test_outputs_that_do_not_fit_are_named(tmp_path):
    for output in (
        {"item": [1]},
        {"item": [1], "note": []},
        [{"item": 1, "note": "a"}, {"item": 1}],
        {"item": [1], "note": ["a"], "x": [1]},
    ):
        with pytest.raises(ValueError, match=r"record 0 came out with columns .*; the table has item, note: give each of these"):
            written(tmp_path / "x", TABLE, [output])
    for item in ("many", 1.5, 1 << 70):
        with pytest.raises(ValueError, match="an output does not fit column item of type int64") as told:
            written(tmp_path / "x", TABLE, [{"item": [item], "note": ["a"]}])
        assert len(str(told.value).splitlines()) == 1
    with pytest.raises(ValueError, match="column item has the unknown type 'number': give one such as int64"):
        ParquetTable({"item": "number"})
    with pytest.raises(ValueError, match="a table has no columns"):
        ParquetTable({})


def test_types_of_the_input_are_types_of_the_output(tmp_path):
    kinds = {
        "a": pa.int64(),
        "b": pa.large_string(),
        "c": pa.list_(pa.int32()),
        "d": pa.list_(pa.list_(pa.string())),
        "e": pa.timestamp("us"),
    }
    pq.write_table(pa.schema(list(kinds.items())).empty_table(), tmp_path / "in.parquet")
    sink = ParquetTable(ParquetRows(tmp_path / "in.parquet").types)
    written(tmp_path, sink, [])
    assert pq.read_schema(tmp_path / "part-00000.parquet").types == list(kinds.values())
    assert repr(sink).startswith("ParquetTable(columns={'a': 'int64', 'b': 'large_string', ")


def test_a_full_disk_is_told_in_one_line(tmp_path):
    """On the device that is always full."""

    def write():
        with JobFolder(tmp_path).place() as place:
            (place / "part-00000.parquet").symlink_to("/dev/full")
            TABLE.write(iter([(0, {"item": list(range(9999)), "note": [""] * 9999})]), place, "part-00000")

    with pytest.raises(Stopped, match=r"no space left on the disk of .*: free some and start the same command again"):
        write()


# --- killed, and large --------------------------------------------------------------------------------------------------


def test_killed_at_five_random_moments_the_folder_is_byte_equal(tmp_path):
    source = write_users(tmp_path / "in.parquet", 400)
    command = [sys.executable, "-m", "tests.jobs.worker", str(source)]
    sizes = ["--users", "--shard-size", "10", "--batch-size", "4", "--delay", "0.01"]
    run(users(source, tmp_path / "right", shard_size=10, batch_size=7))
    moments, kills, out = random.Random(5), 0, tmp_path / "out"
    while kills < 5:
        process = subprocess.Popen([*command, out, *sizes], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, env=ENVIRONMENT)
        before = len(list(out.glob("shards/*")))
        while process.poll() is None and len(list(out.glob("shards/*"))) <= before + kills % 2:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.06))
        process.send_signal(signal.SIGKILL)
        said = process.communicate(timeout=60)[0].decode()
        assert process.returncode == -signal.SIGKILL, said
        assert tree(out) != tree(tmp_path / "right")
        kills += 1
    done = subprocess.run([*command, out, *sizes], capture_output=True, cwd=ROOT, env=ENVIRONMENT, text=True)
    assert done.returncode == 0, done.stderr
    assert "400 users: 384 outputs, 16 rejects" in done.stdout
    assert "40 shards, 0 of them" not in done.stdout
    assert tree(out) == tree(tmp_path / "right")


LARGE = r"""
import re, shutil, sys
from pathlib import Path
from dataclasses import replace
from mmspec.jobs import run
from mmspec.jobs.engine import parquet
from tests.jobs.worker import users
def peak():
    # not getrusage: its peak begins with that of the process which started this one
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
def trivial(batch):
    return [{"user_id": [r["user_id"]], "rank": [1], "item": [r["history"][0]], "score": [0.0]} for _, r in batch]
def done(name):
    job = users(f"{sys.argv[1]}/{name}.parquet", f"{sys.argv[1]}/{name}", shard_size=20_000, batch_size=256)
    return run(replace(job, work=trivial))
if sys.argv[2] == "whole":
    parquet._BATCH_BYTES, parquet._BATCH_ROWS = 1 << 60, 1 << 60
shutil.rmtree(f"{sys.argv[1]}/small", ignore_errors=True)
done("small")
before = peak()
shutil.rmtree(f"{sys.argv[1]}/large", ignore_errors=True)
report = done("large")
print(report.records, report.rejects, peak() - before)
"""


def test_memory_does_not_grow_with_the_table(tmp_path):
    """100,000 users of 1 to 180 items in one row group, 70 MB as a table: less than 60 MB more than 7,000 of them take.

    A reader that takes row groups whole is seen.
    """
    large = 100_000
    lengths = 1 + np.arange(large) % 180
    items = pa.array(np.arange(lengths.sum()) % 1000)
    offsets = pa.array([0, *lengths.cumsum()], pa.int32())
    table = pa.table({"user_id": [f"u{n}" for n in range(large)], "history": pa.ListArray.from_arrays(offsets, items)})
    assert table.nbytes > 70e6
    pq.write_table(table, tmp_path / "large.parquet", row_group_size=large)
    pq.write_table(table.slice(0, 7_000), tmp_path / "small.parquet")
    del table, items, offsets, lengths
    assert grown(tmp_path, "batches") < 60
    assert grown(tmp_path, "whole") > 120


def grown(folder: Path, how: str) -> float:
    """MB of peak memory that the large table takes beyond the small one."""
    done = subprocess.run([sys.executable, "-c", LARGE, folder, how], capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    records, rejects, megabytes = done.stdout.split()
    assert (int(records), int(rejects)) == (100_000, 0)
    return float(megabytes)
