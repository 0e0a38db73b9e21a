"""A mapped catalogue, and one kept in columns, is the catalogue it was written from: items, paths, trie, fingerprint and lists."""

import hashlib
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.recsys import Catalogue, recommend
from mmspec.recsys.preparation.mapped_folder import read_catalogue, write_mapped_copy
from mmspec.recsys.storage import table
from mmspec.recsys.storage.column import Column
from mmspec.utils.private_copy import kept_version
from tests.recsys import shops

KINDS = {
    "numbers": lambda n: [3 * number for number in range(n)],
    "numbers in another order": lambda n: [(7 * number) % (n + 1) + 5 for number in range(n)],
    "beyond int64": lambda n: [2**63 + (11 * number) % 101 for number in range(n)],
    "words": lambda n: [f"ä{(7 * number) % (n + 1)}" for number in range(n)],
}


def made(kind: str, names: bool = True) -> Catalogue:
    plain = shops.catalogue()
    told = {"before": (1,), "most": 6, "names": tuple(f"thing {number}" for number in range(60)) if names else None}
    return Catalogue(tuple(KINDS[kind](60)), plain.paths, **told)


def same(found: Catalogue, wanted: Catalogue) -> None:
    assert found.items == wanted.items
    assert torch.equal(found.paths.long(), wanted.paths)
    assert torch.equal(found.distinct, wanted.distinct)
    for name in ("token", "child", "span"):
        assert torch.equal(getattr(found.trie, name), getattr(wanted.trie, name))
    for name in ("before", "after", "most", "names", "digest", "largest_token", "kinds", "levels"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert [found.row(item) for item in wanted.items] == list(range(60))
    assert [found.shelf(leaf) for leaf in range(found.trie.size)] == [wanted.shelf(leaf) for leaf in range(wanted.trie.size)]
    for stranger in (-1, 4.0, True, "none", None, [1]):
        assert stranger not in found
        assert stranger not in wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [True, False])
def test_a_mapped_file_is_the_catalogue(tmp_path, kind, names):
    wanted = made(kind, names)
    wanted.write(tmp_path / "shop.safetensors")
    found = Catalogue.read(tmp_path / "shop.safetensors")
    same(found, wanted)
    assert found.paths.dtype == found.trie.child.dtype == torch.int32
    with open("/proc/self/maps", encoding="utf-8") as maps:
        assert str(kept_version(tmp_path / "shop.safetensors", "mapped")) in maps.read()
    found.write(tmp_path / "again.safetensors")
    found.write(tmp_path / "back.parquet")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "shop.safetensors").read_bytes()
    same(Catalogue.read(tmp_path / "back.parquet"), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_the_catalogue(tmp_path, monkeypatch, kind):
    """What a table of many items is read as."""
    wanted = made(kind)
    wanted.write(tmp_path / "shop.parquet")
    monkeypatch.setattr(table, "COLUMNAR", 1)
    found = Catalogue.read(tmp_path / "shop.parquet")
    assert isinstance(found.items, Column)
    same(found, wanted)


def test_the_fingerprint_of_jobs_that_were_begun_before():
    """SHA-256 over the JSON of the items, the dtype, shape and bytes of the paths, and the JSON of the other fields."""
    found = shops.catalogue()
    old = hashlib.sha256(json.dumps(list(found.items), sort_keys=True, default=str).encode())
    old.update(f"{found.paths.dtype} {tuple(found.paths.shape)}\n".encode())
    old.update(found.paths.numpy().tobytes())
    old.update(json.dumps([found.before, found.after, found.most], sort_keys=True, default=str).encode())
    assert found.digest == old.hexdigest()


@pytest.mark.parametrize("kind", ["numbers", "words"])
def test_lists_are_the_same(tmp_path, kind):
    wanted, model = made(kind), shops.llama(layers=2)
    wanted.write(tmp_path / "shop.safetensors")
    found = Catalogue.read(tmp_path / "shop.safetensors")
    histories = [[wanted.items[row] for row in rows] for rows in ([3], [5, 9, 2], list(range(20)))]
    some = wanted.mask(wanted.items[::2])
    for options in ({}, {"unseen": True}, {"deny": [[wanted.items[1]], None, None], "allowed": some}, {"drafter": shops.llama(seed=1)}):
        mine, theirs = (recommend(model, histories, k=5, catalogue=one, **options) for one in (found, wanted))
        assert (mine.items, mine.scores) == (theirs.items, theirs.scores)
        assert torch.equal(mine.tokens, theirs.tokens)


def test_a_folder_and_its_mapped_copy(tmp_path):
    folder = shops.write(tmp_path / "shop")
    assert CliRunner().invoke(app, ["recommend", "index", str(folder), "--json"]).exit_code == 0
    assert isinstance(read_catalogue(folder).items, Column)
    shops.catalogue(seed=5).write(folder / "catalogue.parquet")
    with pytest.raises(ValueError, match=re.escape("mmspec recommend index")):
        read_catalogue(folder)
    write_mapped_copy(folder / "catalogue.parquet", folder / "catalogue.safetensors")
    assert read_catalogue(folder).digest == shops.catalogue(seed=5).digest


def test_files_that_are_no_mapped_catalogues(tmp_path):
    for content in (b"", b"nothing", b"\x08\0\0\0\0\0\0\0{}      "):
        (tmp_path / "odd.safetensors").write_bytes(content)
        with pytest.raises(ValueError, match="is no mapped catalogue"):
            Catalogue.read(tmp_path / "odd.safetensors")
    with pytest.raises(ValueError, match="does not exist"):
        Catalogue.read(tmp_path / "none.safetensors")
    asked = CliRunner().invoke(app, ["recommend", "index", str(shops.write(tmp_path / "shop")), str(tmp_path / "a.parquet")])
    assert asked.exit_code == 2


def test_repeated_items_of_a_column():
    for items in (["a", "b", "a"], [4, 2, 4]):
        with pytest.raises(ValueError, match="twice"):
            Column.of(pa.array(items))


def test_a_table_with_a_repeated_or_missing_item(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "COLUMNAR", 1)
    for items, word in ((["x", "x"], "twice"), (["x", None], "null")):
        pq.write_table(pa.table({"item": items, "path": [[1, 2], [1, 3]]}), tmp_path / "odd.parquet")
        with pytest.raises(ValueError, match=word):
            Catalogue.read(tmp_path / "odd.parquet")
