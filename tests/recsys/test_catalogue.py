"""Catalogues: items to paths and back, histories as prompts, and files that are read back or refused in one line."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mmspec.recsys import Catalogue
from tests.beam_world import shop

PATHS = {"b": [3, 7], "a": [3, 5], "twin": [3, 7], "c": [2, 9]}


def one_line(caught, *words) -> None:
    said = str(caught.value)
    assert "\n" not in said
    for word in words:
        assert word in said


def test_items_and_paths():
    catalogue = Catalogue.of(PATHS)
    assert catalogue.items == ("b", "a", "twin", "c")
    assert (len(catalogue), catalogue.levels) == (4, 2)
    assert catalogue.distinct.tolist() == [[2, 9], [3, 5], [3, 7]]
    assert catalogue.leaf.tolist() == [2, 1, 2, 0]
    assert [catalogue.shelf(leaf) for leaf in range(3)] == [(3,), (1,), (0, 2)]
    assert catalogue.row("twin") == 2
    assert catalogue.trie.size == 3


def test_every_item_stands_on_its_shelf():
    catalogue = shop(200, twins=40)
    for row, leaf in enumerate(catalogue.leaf.tolist()):
        assert torch.equal(catalogue.distinct[leaf], catalogue.paths[row])
        assert row in catalogue.shelf(leaf)
    assert sorted(row for leaf in range(len(catalogue.distinct)) for row in catalogue.shelf(leaf)) == list(range(200))


def test_codes_are_offset_by_level():
    catalogue = Catalogue.of_codes(["x", "y"], torch.tensor([[0, 1, 2], [3, 0, 1]]), size=4, offset=10)
    assert catalogue.paths.tolist() == [[10, 15, 20], [13, 14, 19]]
    assert Catalogue.of_codes(["x"], torch.tensor([[1, 0]])).paths.tolist() == [[1, 2]]


def test_masks():
    catalogue = Catalogue.of(PATHS)
    mask = catalogue.mask(["twin", "c"])
    assert mask.tolist() == [False, False, True, True]
    assert catalogue.only(mask).tolist() == [True, False, True]
    both = torch.stack([mask, ~mask])
    assert catalogue.only(both).tolist() == [[True, False, True], [False, True, True]]
    assert not catalogue.mask([]).any()


def test_histories_are_written_for_the_model():
    catalogue = Catalogue.of(PATHS, before=(1, 1), after=(4,), most=2)
    assert catalogue.tokens(["c"]) == [1, 1, 2, 9, 4]
    assert catalogue.tokens(["c", "a", "b"]) == [1, 1, 3, 5, 3, 7, 4]  # the newest two, oldest first
    inputs = catalogue.inputs([["c"], ["a", "b"]])
    assert inputs["input_ids"].tolist() == [[0, 0, 1, 1, 2, 9, 4], [1, 1, 3, 5, 3, 7, 4]]
    assert inputs["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 1], [1] * 7]


@pytest.mark.parametrize("items", [tuple("abc"), (5, 7, 9)], ids=["names", "numbers"])
@pytest.mark.parametrize("names", [None, ("A", "B", "C")])
def test_files_are_read_back(items, names, tmp_path):
    catalogue = Catalogue(items, torch.tensor([[1, 2], [1, 3], [1, 2]]), (9,), (8, 7), 3, names)
    catalogue.write(tmp_path / "shop.parquet")
    found = Catalogue.read(tmp_path / "shop.parquet")
    assert torch.equal(found.paths, catalogue.paths)
    for name in ("items", "before", "after", "most", "names"):
        assert getattr(found, name) == getattr(catalogue, name)
    assert [found.name(item) for item in items] == list(names or map(str, items))
    assert [entry.name for entry in tmp_path.iterdir()] == ["shop.parquet"]


def test_a_table_without_metadata_has_the_defaults(tmp_path):
    pq.write_table(pa.table({"item": [1, 2], "path": [[4, 5], [4, 6]]}), tmp_path / "bare.parquet")
    found = Catalogue.read(tmp_path / "bare.parquet")
    assert (found.items, found.before, found.after, found.most, found.names) == ((1, 2), (), (), 20, None)


ITEMS, GOOD = ["x", "y"], [[1, 2], [1, 3]]


@pytest.mark.parametrize(
    ("columns", "metadata", "word"),
    [
        ({"item": ITEMS}, None, "no column path; it has item"),
        ({"path": GOOD}, None, "no column item"),
        ({"item": ITEMS, "path": [[1, 2], [1]]}, None, "lengths 1, 2"),
        ({"item": ["x", "x"], "path": GOOD}, None, "1 items are in it twice"),
        ({"item": ITEMS, "path": [[1.5, 2.0], [1.0, 3.0]]}, None, "a path is a list of whole numbers"),
        ({"item": ITEMS, "path": ["12", "13"]}, None, "a path is a list of whole numbers"),
        ({"item": ITEMS, "path": [[1, 2], None]}, None, "NoneType"),
        ({"item": ITEMS, "path": [[1, -2], [1, 3]]}, None, "no token ids"),
        ({"item": ITEMS, "path": GOOD}, b"{", "Expecting"),
        ({"item": ITEMS, "path": GOOD}, b"[1]", "its metadata is [1]"),
        ({"item": ITEMS, "path": GOOD}, b'{"most": "20"}', "most is '20'"),
        ({"item": ITEMS, "path": GOOD}, b'{"before": ["a"]}', "before is ('a',)"),
        ({"item": ITEMS, "path": GOOD}, b'{"after": 3}', "int"),
    ],
)
def test_files_that_are_no_catalogues(columns, metadata, word, tmp_path):
    table = pa.table(columns)
    if metadata is not None:
        table = table.replace_schema_metadata({b"mmspec.catalogue": metadata})
    pq.write_table(table, tmp_path / "odd.parquet")
    with pytest.raises(ValueError, match=re.escape("odd.parquet")) as caught:
        Catalogue.read(tmp_path / "odd.parquet")
    one_line(caught, word)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="does not exist") as caught:
        Catalogue.read(tmp_path / "none.parquet")
    one_line(caught)
    shop(20).write(tmp_path / "whole.parquet")
    torn = tmp_path / "torn.parquet"
    for content in ((tmp_path / "whole.parquet").read_bytes()[:-9], b"", json.dumps(PATHS).encode()):
        torn.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read as Parquet") as caught:
            Catalogue.read(torn)
        one_line(caught)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Catalogue.of({}), "at least one token for every item"),
        (lambda: Catalogue.of({"a": []}), "at least one token for every item"),
        (lambda: Catalogue.of({"a": [1], "b": [1, 2]}), "lengths 1, 2: all must be equally long"),
        (lambda: Catalogue.of({"a": [1.5]}), "give a list of token ids for each item"),
        (lambda: Catalogue.of({"a": [-1]}), "no token ids"),
        (lambda: Catalogue(("a",), torch.ones(2, 3).long()), "1 items and 2 paths"),
        (lambda: Catalogue(("a", "a"), torch.ones(2, 3).long()), "item 'a' is in the catalogue twice"),
        (lambda: Catalogue.of(PATHS, most=0), "most is 0"),
        (lambda: Catalogue.of(PATHS, names=("one",)), "1 names and 4 items"),
        (lambda: Catalogue.of_codes(["a"], torch.tensor([[5]]), size=4), "codes run from 5 to 5: they must be in 0..3"),
        (lambda: Catalogue.of_codes(["a"], torch.tensor([[-1]]), size=4), "codes run from -1"),
        (lambda: Catalogue.of(PATHS).row("z"), "item 'z' is not in the catalogue of 4 items"),
        (lambda: Catalogue.of(PATHS).row([]), "item [] is not in the catalogue of 4 items"),
        (lambda: Catalogue.of(PATHS).mask(["a", "z"]), "item 'z' is not in the catalogue"),
        (lambda: Catalogue.of(PATHS).tokens([]), "history is empty"),
        (lambda: Catalogue.of(PATHS).inputs([]), "histories is []: give at least one"),
        (lambda: Catalogue.of(PATHS).inputs([["a"], []]), "history 1: history is empty"),
        (lambda: Catalogue.of(PATHS).inputs([["a"], ["z"]]), "history 1: item 'z' is not in the catalogue"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(make, word):
    with pytest.raises(ValueError, match=re.escape(word)) as caught:
        make()
    one_line(caught)
