"""The recipe: simulated users with bad ones of every kind among them, and a job whose memory does not grow with its input."""

import importlib.util
import json
import os
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mmspec.jobs.recommendations import Recommend

ROOT = Path(__file__).parents[2]
MEBI = 2**20


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("batch_job", ROOT / "recsys" / "batch_job.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def home(recipe, tmp_path_factory) -> Path:
    return recipe.tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def main(recipe, capsys, monkeypatch):
    """Run the recipe: (exit code, stdout, stderr)."""

    def run(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["batch_job.py", *map(str, args)])
        capsys.readouterr()
        try:
            recipe.main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code
        return (code, *capsys.readouterr())

    return run


def users(folder: Path) -> list[dict]:
    return [row for file in sorted(folder.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def test_simulated_users_are_the_shops_and_bad_ones_are_of_every_kind(recipe, tmp_path, monkeypatch):
    from mmspec.minis.shop import Shop

    monkeypatch.setattr(recipe, "GROUP", 50)
    assert recipe.simulate(tmp_path / "users", 700, 0.1) == 70
    rows, histories = users(tmp_path / "users"), Shop.of().histories(680, seed=2)
    assert len(rows) == 700
    good = [row for row in rows if row["user_id"] and row["user_id"].startswith("u") and row["user_id"] != "unknown"]
    assert len(good) == 630
    assert all(row["history"] == histories[int(row["user_id"][1:])] for row in good)
    assert set(Counter(row["user_id"] for row in rows if row not in good).values()) == {10}
    assert recipe.simulate(tmp_path / "users", 100, 0) == 0
    assert [row["user_id"] for row in users(tmp_path / "users")] == [f"u{number}" for number in range(100)]
    pq.write_table(pq.read_table(tmp_path / "users" / "users.parquet").replace_schema_metadata(None), tmp_path / "users" / "users.parquet")
    before = (tmp_path / "users" / "users.parquet").read_bytes()
    with pytest.raises(ValueError, match="--simulate writes users into a new folder"):
        recipe.simulate(tmp_path / "users", 100, 0)
    assert (tmp_path / "users" / "users.parquet").read_bytes() == before


def test_counts_and_peak_memory_are_told(main, home, tmp_path):
    given = (tmp_path / "users", "--out", tmp_path / "out", "--model", home, "--k", 2, "--draft-length", 2, "--device", "cpu")
    code, out, _ = main(*given, "--simulate", 210, "--bad", 0.1)
    assert code == 0
    assert "210 simulated users, 21 of them bad; peak memory" in out
    assert "210 users: 189 outputs, 21 rejects" in out
    assert "users/s, peak memory" in out
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_text().splitlines()]
    assert len({row["reason"].split(" is ")[-1] for row in rejects}) == 7
    code, out, _ = main(*given)  # again: nothing is left to do
    assert (code, "1 of them from before" in out) == (0, True)


def test_mistakes_are_told_in_one_line(main, home, tmp_path):
    for args, words in (
        ((), "give a file or folder of users"),
        (("gone.parquet", "--out", tmp_path / "out", "--model", home), "gone.parquet does not exist"),
        ((tmp_path, "--out", tmp_path / "out", "--model", home), "holds no *.parquet file"),
    ):
        code, _, err = main(*args)
        assert code == 2
        assert words in err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_memory_does_not_grow_with_the_input(recipe, main, home, tmp_path, monkeypatch):
    """Twenty thousand users; what the process holds is looked at in every batch."""
    held, call = [], Recommend.__call__

    def looked(self, batch):
        held.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        return call(self, batch)

    monkeypatch.setattr(Recommend, "__call__", looked)
    sizes = ("--k", 1, "--mode", "plain", "--rows", 256, "--batch-size", 512, "--device", "cpu")
    code, out, _ = main(tmp_path / "users", "--out", tmp_path / "out", "--model", home, "--simulate", 20_000, "--bad", 0.01, *sizes)
    assert code == 0
    assert "20000 users: 19797 outputs, 203 rejects" in out
    assert len(held) >= 39
    assert max(held) - max(held[:8]) < 48 * MEBI
