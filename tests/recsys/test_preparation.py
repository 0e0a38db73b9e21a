"""From tables to a served recommender: reading, k-core, split, semantic ids, new items, and the commands after one another."""

import json
import shutil
from datetime import date
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mmspec.cli import app
from mmspec.loading.recsys import load_recommender
from mmspec.recsys import Catalogue, recommend
from mmspec.recsys.preparation.interactions import LeftOut, read_interactions
from mmspec.recsys.preparation.prepared import PreparedShop
from mmspec.recsys.semantic_ids import RqVae
from mmspec.recsys.storage.parquet_columns import id_values

BIG = 2**63
NUMBERS = pa.int64()


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch):
    """Of quantisers: test_semantic_ids.py has what they learn."""
    monkeypatch.setattr(RqVae, "trained", partial(RqVae.trained, steps=100))


@pytest.fixture
def mmspec(capsys):
    def run(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            app([str(arg) for arg in args])
        return (stopped.value.code, *capsys.readouterr())

    return run


def events(path, users=40, items=30, kind=NUMBERS, ids=None, **names):
    draw, rows = np.random.default_rng(0), []
    for user in range(users):
        start = int(draw.integers(items))
        rows += [(f"u{user}", (start + step) % items, 100 - step) for step in range(5 + user % 4)]
    draw.shuffle(rows)
    columns = zip(*rows, strict=True)
    told = {"user": "user", "item": "item", "time": "time"} | names
    user, item, time = columns
    item = pa.array([each if ids is None else ids[int(each)] for each in item], kind)
    pq.write_table(pa.table({told["user"]: user, told["item"]: item, told["time"]: [int(t) for t in time]}), path)
    return path


def things(path, items=30, kind=NUMBERS, ids=None, first=0, **columns):
    told = [each if ids is None else ids[each] for each in range(first, first + items)]
    pq.write_table(pa.table({"item": pa.array(told, kind), **columns}), path)
    return path


def vectors(count, first=0):
    draw = np.random.default_rng(1).normal(size=(first + count, 8))
    return [row.tolist() for row in draw[first:]]


def test_events_are_in_the_order_of_time_without_nulls_and_repetitions(tmp_path):
    table = {"user": ["b", "a", "b", "b", None, "a", "a"], "item": [1.0, 2, 3, 3, 4, None, 5], "time": [3, 1, 2, 2, 1, 1, 1]}
    pq.write_table(pa.table(table), tmp_path / "e.parquet")
    found = read_interactions(tmp_path / "e.parquet")
    assert found.users.to_pylist() == ["b", "a"]
    assert [found.items[int(item)].as_py() for item in found.item] == [3, 1, 2, 5]  # of a: both at time 1, as in the table
    assert found.user.tolist() == [0, 0, 1, 1]
    assert found.left_out == {"with a null": LeftOut(2, items=1), "repeated at the same time": LeftOut(1)}


def test_a_core_is_that_of_removal_one_by_one(tmp_path):
    draw = np.random.default_rng(2)
    pairs = sorted({(int(a), int(b)) for a, b in draw.integers(0, 25, (220, 2))})
    user, item = zip(*pairs, strict=True)
    days = [date(2024, 1, 1 + place % 28) for place in range(len(pairs))]
    pq.write_table(pa.table({"user": user, "item": item, "time": days}), tmp_path / "e.parquet")
    left = set(pairs)
    while weak := {pair for pair in left for side in (0, 1) if sum(other[side] == pair[side] for other in left) < 5}:
        left -= {sorted(weak)[0]}
    found = read_interactions(tmp_path / "e.parquet").core(5)
    ids = [(found.users[int(u)].as_py(), found.items[int(i)].as_py()) for u, i in zip(found.user, found.item, strict=True)]
    assert sorted(ids) == sorted(left)
    assert left
    users, items = ({pair[side] for pair in pairs} - {pair[side] for pair in left} for side in (0, 1))
    assert users
    assert found.left_out == {"outside the 5-core": LeftOut(len(pairs) - len(left), len(users), len(items), "--core 1 keeps them")}
    with pytest.raises(ValueError, match=r"core .* is empty"):
        found.core(100)


@pytest.mark.parametrize(("values", "kind"), [([1.0, None], "int64"), ([BIG + 1], "uint64"), (["a"], "large_string"), ([3], "int64")])
def test_ids_keep_their_values(values, kind):
    column = pa.chunked_array([pa.array(values, pa.uint64() if values == [BIG + 1] else None)])
    assert (id_values(column, "x").to_pylist(), str(id_values(column, "x").type)) == (values, kind)


@pytest.mark.parametrize("values", [[1.5], [True], [2.0**60]])
def test_other_ids_are_refused(values):
    with pytest.raises(ValueError, match=r"x holds .*: ids are whole numbers or text"):
        id_values(pa.chunked_array([values]), "x")


def test_the_last_item_is_for_the_test_and_the_one_before_for_validation(mmspec, tmp_path):
    events(tmp_path / "e.parquet")
    things(tmp_path / "i.parquet", codes=[[n // 8, n % 8] for n in range(30)])
    assert (
        mmspec("recommend", "prepare", tmp_path / "e.parquet", tmp_path / "i.parquet", tmp_path / "shop", "--core", 1, "--size", 8)[0] == 0
    )
    shop = PreparedShop.read(tmp_path / "shop")
    data, full = shop.data(held=100), shop.histories
    assert list(data.test) == list(full)
    assert list(data.past) == [items[:-2] for items in full]
    assert sorted(map(tuple, data.held)) == sorted(tuple(items[:-1]) for items in full)
    assert all((a - 1) % 30 == b for items in full for a, b in pairwise(items))  # the oldest first
    assert sorted(map(tuple, data.users(40, 80))) == sorted(map(tuple, data.past))
    assert data.users(40, 80) != data.users(0, 40)
    table = pq.read_table(tmp_path / "shop" / "histories.parquet")  # what a job reads
    assert table["history"].to_pylist() == list(full)


def test_what_is_left_out_is_told_with_the_setting_and_what_keeps_it(mmspec, tmp_path):
    """Of 8 users 5 buy once, which the default drops: they get no list."""
    rows = [(f"u{user}", (user + step) % 3, step) for user in range(8) for step in range(6 if user < 3 else 1)]
    rows += [("u0", 99, 50), ("u9", 99, 51)]  # an item that the items lack
    columns = dict(zip(("user", "item", "time"), zip(*rows, strict=True), strict=True))
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    things(tmp_path / "i.parquet", 3, codes=[[n, n] for n in range(3)])
    prepare = ("recommend", "prepare", tmp_path / "e.parquet", tmp_path / "i.parquet")
    code, out, _ = mmspec(*prepare, tmp_path / "shop", "--size", 4)
    told = " ".join(out.split())
    assert code == 0
    assert "left out: 5 events outside the 5-core; 5 of 9 users (56%) have no event left, so these users get no list" in told
    assert "--core 1 keeps them" in told
    assert "left out: 2 events with an item that the items lack; 1 of 9 users (11%) and 1 of 4 items (25%)" in told
    assert "add it to " in told
    full = json.loads((tmp_path / "shop" / "prepared.json").read_text())["left out in full"]
    assert full["outside the 5-core"] == {"events": 5, "users": 5, "items": 0, "remedy": "--core 1 keeps them"}
    assert mmspec(*prepare, tmp_path / "all", "--size", 4, "--core", 1)[1].count("get no list") == 1  # of the unknown item's
    assert len(PreparedShop.read(tmp_path / "all").histories) == 8


SOURCES = {
    "embedding": ({"embedding": lambda n, first: vectors(n, first)}, ("--method", "rqvae")),
    "nearest": ({"embedding": lambda n, first: vectors(n, first)}, ("--last", "nearest")),
    "text": (
        {"title": lambda n, first: [f"steel part {k % 7} of kind {k % 4}" for k in range(first, first + n)]},
        ("--text-column", "title"),
    ),
    "codes": ({"codes": lambda n, first: [[k % 4, k // 4, 0] for k in range(first, first + n)]}, ()),
}


@pytest.mark.parametrize("source", SOURCES)
def test_new_items_get_ids_by_the_saved_quantiser(mmspec, tmp_path, source):
    columns, options = SOURCES[source]
    build = {name: make(24, 0) for name, make in columns.items()}
    later = {name: make(6, 24) for name, make in columns.items()}
    events(tmp_path / "e.parquet", items=24)
    things(tmp_path / "i.parquet", 24, **build)
    things(tmp_path / "new.parquet", 6, first=24, **later)
    home = tmp_path / "shop"
    prepared = ("recommend", "prepare", tmp_path / "e.parquet", tmp_path / "i.parquet", home, "--core", 1, "--size", 8)
    levels = () if source == "codes" else ("--levels", 3)
    assert mmspec(*prepared, *levels, *options)[0] == 0
    first = Catalogue.read(home / "catalogue.parquet")
    assert first.levels == 3
    assert mmspec("recommend", "assign", home, tmp_path / "new.parquet", tmp_path / "ids.parquet")[0] == 0
    assert (home / "catalogue.parquet").exists()
    given = pq.read_table(tmp_path / "ids.parquet").to_pydict()
    code, out, _ = mmspec("recommend", "append", home, tmp_path / "new.parquet", "--json")
    assert code == 0
    found = Catalogue.read(home / "catalogue.parquet")
    assert torch.equal(found.paths[:24], first.paths)  # the model's items keep their paths
    assert list(found.items[24:]) == given["item"] == list(range(24, 30))
    assert found.paths[24:].tolist() == given["path"]
    assert (found.before, found.most) == (first.before, first.most)
    kept = Catalogue.read(json.loads(out)["earlier"])
    assert torch.equal(kept.paths, first.paths)
    code, _, err = mmspec("recommend", "append", home, tmp_path / "new.parquet")
    assert (code, "in the catalogue already" in err) == (2, True)


def test_items_of_the_fit_get_their_own_ids_again(tmp_path):
    from mmspec.recsys.preparation.items import ItemTable
    from mmspec.recsys.preparation.quantiser import ItemQuantiser, QuantiserSettings
    from mmspec.recsys.semantic_ids import make

    points = torch.tensor(vectors(50))
    for method in ("kmeans", "rqvae"):
        fitted = ItemQuantiser.fit(ItemTable(tuple(range(50)), "embedding", embedding=points), QuantiserSettings(method=method, size=8))
        fitted.save(tmp_path / "q.safetensors")
        again = ItemQuantiser.load(tmp_path / "q.safetensors").codes(ItemTable(tuple(range(50)), "embedding", embedding=points))
        assert torch.equal(again, make(points, method, 4, 8))


MISTAKES = {
    "a missing file": (("gone.parquet", "i", "shop"), "gone.parquet does not exist"),
    "no such column": (("e", "i", "shop", "--user", "customer"), "no column 'customer'; it has user, item, time"),
    "no source": (("e", "bare", "shop"), "has no column codes, embedding, text"),
    "an unknown source": (("e", "i", "shop", "--from", "magic"), "'magic'"),
    "ids of another type": (("e", "words", "shop"), "must have the same type"),
    "an empty core": (("e", "i", "shop", "--core", "50"), "50-core"),
    "an unknown method": (("e", "vectors", "shop", "--method", "magic"), "'magic'"),
    "a folder of something else": (("e", "i", "."), "was not made by prepare"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line(mmspec, tmp_path, monkeypatch, mistake):
    monkeypatch.chdir(tmp_path)
    events(tmp_path / "e")
    things(tmp_path / "i", codes=[[n] for n in range(30)])
    things(tmp_path / "bare")
    things(tmp_path / "vectors", embedding=vectors(30))
    things(tmp_path / "words", kind=pa.string(), ids=[f"i{n}" for n in range(30)], codes=[[n] for n in range(30)])
    args, words = MISTAKES[mistake]
    code, out, err = mmspec("recommend", "prepare", *args)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err


TRAIN = ("--steps", 2, "--rows", 4, "--hidden-size", 16, "--layers", 1, "--heads", 2, "--held", 5, "--device", "cpu")


def test_from_tables_to_recommendations_by_commands_alone(mmspec, tmp_path):
    ids = [BIG + n for n in range(30)]  # as hashes are
    events(tmp_path / "e.parquet", kind=pa.uint64(), ids=ids, user="customer")
    things(
        tmp_path / "i.parquet",
        kind=pa.uint64(),
        ids=ids,
        codes=[[n % 4, n // 4] for n in range(30)],
        name=[f"thing {n}" for n in range(30)],
    )
    home = tmp_path / "shop"
    prepared = (
        "recommend",
        "prepare",
        tmp_path / "e.parquet",
        tmp_path / "i.parquet",
        home,
        "--core",
        2,
        "--user",
        "customer",
        "--size",
        8,
    )
    assert mmspec(*prepared)[0] == 0
    before = (home / "catalogue.parquet").read_bytes()
    assert mmspec(*prepared)[0] == 0  # again: nothing to do
    assert (home / "catalogue.parquet").read_bytes() == before
    code, _, err = mmspec(*prepared[:-1], 9)
    assert (code, "was prepared with ids" in err) == (2, True)
    train = ("recommend", "train", home, *TRAIN, "--drafter-steps", 2, "--drafter-users", 40)
    assert mmspec(*train)[0] == 0
    weights = {path: (home / path).read_bytes() for path in ("target/model.safetensors", "drafter/model.safetensors")}
    shutil.rmtree(home / "target")  # as if killed before it was written
    assert mmspec(*train)[0] == 0
    assert all((home / path).read_bytes() == found for path, found in weights.items())
    code, _, err = mmspec(*train, "--lr", 1)
    assert (code, "delete it or choose another folder" in err) == (2, True)
    code, out, _ = mmspec("recommend", "evaluate", home, "--sasrec-steps", 2, "--held", 5, "--device", "cpu", "--json")
    report = json.loads(out)
    assert code == 0
    assert list(report["table"]) == ["target", "sasrec", "co-occurrence", "popularity"]
    assert {f"{name}@{k}" for name in ("recall", "NDCG", "coverage") for k in (5, 10, 20)} == set(report["table"]["target"])
    assert "| target | " in (home / "report.md").read_text()
    again = json.loads(mmspec("recommend", "evaluate", home, "--sasrec-steps", 2, "--held", 5, "--device", "cpu", "--json")[1])
    assert again["table"] == report["table"]
    loaded = load_recommender(str(home))
    shop = PreparedShop.read(home)
    test = shop.data().test
    wanted = recommend(loaded.model, [items[:-1] for items in test], k=20, catalogue=loaded.catalogue, method="plain", unseen=True).items
    hits = [items[-1] in row[:10] for items, row in zip(test, wanted, strict=True)]
    assert report["table"]["target"]["recall@10"] == pytest.approx(sum(hits) / len(hits))
    history = ",".join(map(str, test[0][:-1]))
    code, out, _ = mmspec("recommend", "run", "--history", history, "--model", home, "--k", 3, "--unseen", "--json", "--device", "cpu")
    assert code == 0
    assert json.loads(out)["results"][0]["items"] == wanted[0][:3]


def test_a_job_begun_before_items_were_appended_goes_on_with_its_catalogue(mmspec, tmp_path):
    events(tmp_path / "e.parquet", items=24)
    things(tmp_path / "i.parquet", 24, codes=[[n % 4, n // 4] for n in range(24)])
    things(tmp_path / "new.parquet", 6, first=24, codes=[[n % 4, 6 + n // 4] for n in range(6)])
    home = tmp_path / "shop"
    assert mmspec("recommend", "prepare", tmp_path / "e.parquet", tmp_path / "i.parquet", home, "--core", 1, "--size", 8)[0] == 0
    assert mmspec("recommend", "train", home, *TRAIN, "--drafter", "none")[0] == 0
    for drafter in ("none", "retriever"):
        job = ("recommend", "run", home / "histories.parquet", tmp_path / drafter, "--model", home, "--k", 3, "--shard-size", 16)
        job += ("--drafter", drafter, "--draft-length", 1, "--device", "cpu")
        assert mmspec(*job)[0] == 0
    wanted = {path: path.read_bytes() for name in ("none", "retriever") for path in (tmp_path / name).glob("part-*")}
    assert len(wanted) == 6
    assert mmspec("recommend", "append", home, tmp_path / "new.parquet")[0] == 0
    for drafter in ("none", "retriever"):
        job = ("recommend", "run", home / "histories.parquet", tmp_path / drafter, "--model", home, "--k", 3, "--shard-size", 16)
        code, out, err = mmspec(*job, "--drafter", drafter, "--draft-length", 1, "--device", "cpu")  # finished: not the earlier lists again
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "holds another job: model.catalogue is" in err
        assert {path: path.read_bytes() for path in wanted} == wanted
        manifest = json.loads((tmp_path / drafter / "manifest.json").read_text())
        (tmp_path / drafter / "manifest.json").write_text(json.dumps(manifest | {"state": "unfinished"}))
        (tmp_path / drafter / "part-00001.parquet").unlink()  # as if killed before it
        (tmp_path / drafter / "shards" / "00001.json").unlink()
        job = ("recommend", "run", home / "histories.parquet", tmp_path / drafter, "--model", home, "--k", 3, "--shard-size", 16)
        job += ("--drafter", drafter, "--draft-length", 1, "--device", "cpu")
        assert mmspec(*job)[::2] == (0, "")
        fresh = mmspec(*job[:3], tmp_path / f"new-{drafter}", *job[4:], "--json")
        assert fresh[0] == 0
    assert {path: path.read_bytes() for path in wanted} == wanted
    assert load_recommender(str(home), drafter="retriever").catalogue.items[24:] == tuple(range(24, 30))
