"""Tables as shops have them: lists per user, unknown items, users without a history, other number types; the same bytes after kills."""

import json
import math
import os
import random
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmspec.jobs import run
from mmspec.jobs.recommendations_job import RecommendationJobSpec, make_recommendation_job
from mmspec.loading.recsys import load_recommender
from mmspec.recsys import Catalogue, rank_candidates, recommend
from tests.jobs.folders import tree
from tests.recsys import shops
from tests.recsys.test_bulk import begun, histories, rejected, rows

SIZES = {"k": 5, "rows": 7, "batch_size": 20, "shard_size": 30, "draft_length": 2, "device": "cpu"}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return shops.write(tmp_path_factory.mktemp("shop"))


def make(home: Path, folder: Path, columns: dict, out: str = "out", **changes) -> RecommendationJobSpec:
    pq.write_table(pa.table(columns), folder / "users.parquet")
    return RecommendationJobSpec(model=str(home), users=folder / "users.parquet", out=folder / out, **(SIZES | changes))


def by_user(folder: Path) -> dict:
    found: dict = {}
    for row in rows(folder):
        found.setdefault(row["user_id"], []).append(row)
    return found


def lists_of(count: int, seed: int) -> list:
    draw = random.Random(seed)
    return [None if draw.random() < 0.3 else [draw.randrange(100, 160) for _ in range(draw.randint(0, 30))] for _ in range(count)]


def test_lists_of_the_table_are_those_of_the_public_call(home, tmp_path):
    """`seen` and `deny` may name items that the catalogue lacks: they could not be recommended anyway."""
    users, seen, deny, allow = histories(30), lists_of(30, 1), lists_of(30, 2), lists_of(30, 3)
    seen[4] = [100, 7, 8]
    columns = {"user_id": range(30), "history": users, "s": seen, "d": deny, "a": allow}
    names = {"seen_column": "s", "deny_column": "d", "allow_column": "a"}
    report = run(make_recommendation_job(make(home, tmp_path, columns, unseen=True, **names)))
    model, catalogue, found = load_recommender(str(home)).model, shops.catalogue(), by_user(tmp_path / "out")
    for user in range(30):
        gone = [item for item in [*(seen[user] or []), *(deny[user] or [])] if item in catalogue]
        alone = recommend(model, [users[user]], k=5, catalogue=catalogue, method="plain", deny=[gone], allow=[allow[user]], unseen=True)
        assert [row["item"] for row in found.get(user, [])] == alone.items[0]
    assert report.outputs == len(found)
    assert len(rejected(tmp_path / "out")) == 30 - len(found) > 0


def test_candidates_of_the_table_are_ranked(home, tmp_path):
    users, deny = histories(20), lists_of(20, 6)
    some = [list(dict.fromkeys(line or [])) for line in lists_of(20, 5)]
    some[3], some[4] = None, [100, 7]
    columns = {"user_id": range(20), "history": users, "c": pa.array(some, pa.list_(pa.int64())), "d": deny}
    report = run(make_recommendation_job(make(home, tmp_path, columns, candidates_column="c", deny_column="d")))
    model, catalogue, found = load_recommender(str(home)).model, shops.catalogue(), by_user(tmp_path / "out")
    assert rejected(tmp_path / "out")[5] == "item 7 is not in the catalogue of 60 items"
    for user in set(range(20)) - {3, 4}:
        alone = rank_candidates(model, [users[user]], [some[user]], catalogue=catalogue, deny=[deny[user] or []], k=5)
        assert [row["item"] for row in found.get(user, [])] == alone.items[0]
    assert report.measures["row_calls"] == 19  # one call a user
    assert 3 not in found


def test_unknown_items_are_skipped(home, tmp_path):
    users = [[100, 7, 101], [7], [8, 102]]
    run(make_recommendation_job(make(home, tmp_path, {"user_id": [1, 2, 3], "history": users}, unknown="skip")))
    model, found = load_recommender(str(home)).model, by_user(tmp_path / "out")
    alone = recommend(model, [[100, 101], [102]], k=5, catalogue=shops.catalogue())
    assert [[row["item"] for row in found[user]] for user in (1, 3)] == alone.items
    assert rejected(tmp_path / "out") == {2: "history holds no item of the catalogue of 60 items"}
    run(make_recommendation_job(make(home, tmp_path, {"user_id": [1, 2, 3], "history": users[::-1]}, out="strict", fallback="none")))
    assert len(rejected(tmp_path / "strict")) == 3
    for given, words in (({"unknown": "drop"}, "unknown unknown 'drop'"), ({"fallback": "random"}, "unknown fallback 'random'")):
        with pytest.raises(ValueError, match=words):
            make_recommendation_job(make(home, tmp_path, {"user_id": [1], "history": [[100]]}, out="x", **given))


@pytest.mark.parametrize("fallback", ["popularity", "co-occurrence"])
def test_fallbacks_for_empty_and_cold_users(home, tmp_path, fallback):
    """What the counts say, by counting again; lists hold for these users too."""
    users = [[100, 7], [100, 101, 7], [102, 101, 7, 7], [101], [7], [8], [], None, [7, 8]]
    columns = {"user_id": range(9), "history": pa.array(users, pa.list_(pa.int64())), "s": [None] * 8 + [[101, 100]]}
    job = make(home, tmp_path, columns, unknown="skip", fallback=fallback, seen_column="s", k=4)
    run(make_recommendation_job(job))
    assert rejected(tmp_path / "out") == {}
    found = by_user(tmp_path / "out")
    assert {row["source"] for user in range(4) for row in found[user]} == {"model"}
    popular = [101, 100, 102, 103]  # in 3, 2 and 1 histories; then the catalogue's order
    beside = [100, 101, 102, 103]  # with item 7: 2, 2, 1; then popularity
    cold = popular if fallback == "popularity" else beside
    for user, wanted in {4: cold, 5: popular, 6: popular, 7: popular, 8: [102, 103, 104, 105]}.items():
        assert [row["item"] for row in found[user]] == wanted, user
        assert [row["rank"] for row in found[user]] == [1, 2, 3, 4]
    sources = [row["source"] for row in found[4]]
    assert sources == (["popularity"] * 4 if fallback == "popularity" else ["co-occurrence"] * 3 + ["popularity"])
    assert found[6][0]["score"] == round(math.log(4 / 5), 4)


@pytest.mark.parametrize("kind", [pa.uint64(), pa.float64(), pa.float32(), pa.uint16(), pa.int32()], ids=str)
def test_number_types_of_items_do_not_matter(home, tmp_path, kind):
    users = [[100, 101], [159]]
    columns = {"user_id": pa.array([1, 2], pa.uint64()), "history": pa.array(users, pa.list_(kind))}
    run(make_recommendation_job(make(home, tmp_path, columns)))
    found = by_user(tmp_path / "out")
    alone = recommend(load_recommender(str(home)).model, users, k=5, catalogue=shops.catalogue())
    assert [[row["item"] for row in found[user]] for user in (1, 2)] == alone.items
    assert pq.read_schema(tmp_path / "out" / "part-00000.parquet").field("user_id").type == pa.uint64()


def test_items_above_an_int64(tmp_path):
    big = 2**63
    catalogue = Catalogue(tuple(big + number for number in range(60)), shops.catalogue().paths, (1,), (), 6)
    shops.llama(layers=2).save_pretrained(tmp_path / "target")
    catalogue.write(tmp_path / "catalogue.parquet")
    columns = {"user_id": [1], "history": pa.array([[big + 3]], pa.list_(pa.uint64()))}
    run(make_recommendation_job(make(tmp_path, tmp_path, columns)))
    assert all(row["item"] >= big for row in rows(tmp_path / "out"))


def test_fractions_are_not_items(home, tmp_path):
    columns = {"user_id": [1, 2, 3], "history": [[100.5], [float("nan")], [101.0]]}
    run(make_recommendation_job(make(home, tmp_path, columns)))
    found = rejected(tmp_path / "out")
    assert found.keys() == {1, 2}
    assert "100.5, is a number with a fraction" in found[1]


def test_killed_at_random_with_lists_and_fallbacks(home, tmp_path):
    draw, users = random.Random(7), histories(200)
    for place in draw.sample(range(200), 40):
        users[place] = draw.choice([None, [], [7], [100, 7]])
    columns = {"user_id": range(200), "history": pa.array(users, pa.list_(pa.int64())), "s": lists_of(200, 8)}
    options = {"unknown": "skip", "fallback": "co-occurrence", "seen_column": "s"}
    assert os.waitpid(begun(make(home, tmp_path, columns, out="right", **options)), 0)[1] == 0
    out = tmp_path / "out"
    for turn in range(4):
        child, before = begun(make(home, tmp_path, columns, **options)), len(list(out.glob("shards/*")))
        while len(list(out.glob("shards/*"))) == before:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.06))
        os.kill(child, signal.SIGTERM if turn % 2 else signal.SIGKILL)
        os.waitpid(child, 0)
    assert os.waitpid(begun(make(home, tmp_path, columns, **options)), 0)[1] == 0
    assert tree(out) == tree(tmp_path / "right")
    assert json.loads((out / "manifest.json").read_text())["options"]["fallback"] == "co-occurrence"
