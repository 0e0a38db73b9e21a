"""Tables as other systems write them: partitioned folders in every step, and Delta tables, of which only the present version counts."""

import re
import sys
import types
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.jobs import ParquetRows
from mmspec.recsys.preparation.interactions import read_interactions
from mmspec.recsys.storage.parquet_columns import read_columns
from mmspec.utils.files import parquet_files
from tests.recsys import shops

EVENTS = {"ds=2": [("b", 1, 3), ("a", 2, 4)], "ds=1": [("a", 1, 1), ("b", 2, 2)]}


def partitioned(folder: Path) -> Path:
    for name, rows in EVENTS.items():
        (folder / name).mkdir(parents=True)
        user, item, time = zip(*rows, strict=True)
        pq.write_table(pa.table({"user": user, "item": item, "time": time}), folder / name / "part.parquet")
    return folder


def delta(monkeypatch: pytest.MonkeyPatch, files: list[Path], features: tuple[str, ...] = ()) -> None:
    """Stands for the package: a table whose present version has `files`."""
    protocol = types.SimpleNamespace(reader_features=list(features))
    table = types.SimpleNamespace(protocol=lambda: protocol, file_uris=lambda: [f"file://{file.absolute()}" for file in files])
    package, errors = types.ModuleType("deltalake"), types.ModuleType("deltalake.exceptions")
    vars(package)["DeltaTable"], vars(errors)["DeltaError"] = lambda path: table, RuntimeError
    monkeypatch.setitem(sys.modules, "deltalake", package)
    monkeypatch.setitem(sys.modules, "deltalake.exceptions", errors)


def test_events_in_partitions(tmp_path):
    found = read_interactions(partitioned(tmp_path / "events"))
    assert found.users.to_pylist() == ["a", "b"]
    assert found.items.take(found.item).to_pylist() == [1, 2, 2, 1]
    days = read_columns(tmp_path / "events", ("ds", "item"))
    assert days.to_pylist() == [{"ds": "1", "item": 1}, {"ds": "1", "item": 2}, {"ds": "2", "item": 1}, {"ds": "2", "item": 2}]
    with pytest.raises(ValueError, match="it has user, item, time, ds"):
        read_columns(tmp_path / "events", ("customer",))


def test_the_present_version_of_a_delta_table(tmp_path, monkeypatch):
    folder = partitioned(tmp_path / "events")
    (folder / "_delta_log").mkdir()
    delta(monkeypatch, [folder / "ds=1" / "part.parquet"])
    assert [row for _, row in ParquetRows(folder, ("user", "ds")).read(lambda index: True)] == [
        {"user": "a", "ds": "1"},
        {"user": "b", "ds": "1"},
    ]
    assert len(read_interactions(folder)) == 2


def test_delta_tables_that_are_refused_in_one_line(tmp_path, monkeypatch):
    folder = partitioned(tmp_path / "events")
    (folder / "_delta_log").mkdir()
    delta(monkeypatch, [folder / "ds=1" / "part.parquet"], ("deletionVectors",))
    with pytest.raises(ValueError, match="uses deletionVectors, which is not read here"):
        parquet_files(folder)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    asked = CliRunner().invoke(app, ["recommend", str(folder), str(tmp_path / "out"), "--model", str(shops.write(tmp_path / "shop"))])
    assert asked.exit_code == 2
    assert re.search(r"is a Delta table, and deltalake is not installed: pip install\s+'mmspec\[delta\]'", asked.output)
