"""Recommendations in bulk: those of the public call row by row, bad rows with their reasons, the same bytes however the job goes."""

import json
import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mmspec.jobs import Reject, run
from mmspec.jobs.recommendation_identity import recommendation_job_identity
from mmspec.jobs.recommendations import Recommend
from mmspec.jobs.recommendations_job import RecommendationJobSpec, make_recommendation_job, read_allowed_items
from mmspec.loading.recsys import Recommender, load_recommender
from mmspec.recsys import Catalogue, recommend
from mmspec.recsys.cost import _Call
from tests.jobs.folders import tree
from tests.recsys import shops

SIZES = {"k": 5, "rows": 7, "batch_size": 20, "shard_size": 30, "draft_length": 2, "device": "cpu"}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return shops.write(tmp_path_factory.mktemp("shop"))


def histories(count: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(100, 160) for _ in range(draw.randint(1, 9))] for _ in range(count)]


BAD = {
    "no id": (None, [100], "user_id is null"),
    "null": ("a", None, "history is null"),
    "empty": ("b", [], "history is empty"),
    "unknown": ("c", [100, 7], "item 7 is not in the catalogue of 60 items"),
    "a null inside": ("d", [100, None, 101], "item 2 of the history, None, is null"),
}


def write_users(path: Path, count: int = 100, bad: bool = True) -> dict[int, str]:
    """A file of users with one bad row of every kind among them; the rows that are bad (from 1), and why."""
    users = [(f"u{number}", history) for number, history in enumerate(histories(count))]
    reasons = {}
    for place, (user, history, reason) in enumerate(BAD.values() if bad else ()):
        users.insert(11 * place, (user, history))
        reasons[11 * place + 1] = reason
    ids, lists = zip(*users, strict=True)
    pq.write_table(pa.table({"user_id": pa.array(ids, pa.string()), "history": pa.array(lists, pa.list_(pa.int64()))}), path)
    return reasons


def rejected(folder: Path) -> dict[int, str]:
    return {row["index"] + 1: row["reason"] for row in map(json.loads, (folder / "rejects.jsonl").read_text().splitlines())}


def rows(folder: Path) -> list[dict]:
    return [row for part in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(part).to_pylist()]


def asked(home: Path, users: Path, out: Path, **changes) -> RecommendationJobSpec:
    return RecommendationJobSpec(model=str(home), users=users, out=out, **(SIZES | changes))


# --- what comes out -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"mode": "plain"}, {}, {"unseen": True, "k": 58}, {"draft_length": "auto", "rows": 64}], ids=str)
def test_rows_are_those_of_the_public_call(home, tmp_path, changes):
    write_users(tmp_path / "users.parquet", 40)
    report = run(partial(make_recommendation_job, asked(home, tmp_path / "users.parquet", tmp_path / "out", **changes)))
    assert (report.outputs, report.rejects, report.records) == (40, 5, 45)
    model, catalogue = load_recommender(str(home)).model, shops.catalogue()
    found, k = rows(tmp_path / "out"), changes.get("k", 5)
    place = 0
    for number, history in enumerate(histories(40)):
        alone = recommend(model, [history], k=k, catalogue=catalogue, method="plain", unseen=changes.get("unseen", False))
        mine = found[place : place + len(alone.items[0])]
        assert [row["user_id"] for row in mine] == [f"u{number}"] * len(mine)
        assert [row["rank"] for row in mine] == list(range(1, len(mine) + 1))
        assert [row["item"] for row in mine] == alone.items[0]
        assert [row["score"] for row in mine] == pytest.approx(alone.scores[0], abs=1.1e-4)
        assert all(row["score"] == round(row["score"], 4) for row in mine)
        place += len(mine)
    assert place == len(found) == report.measures["recommendations"]
    assert report.measures["users"] == 40
    calls = 3 if changes.get("mode") == "plain" else 1
    assert calls * 40 <= report.measures["row_calls"] <= 3 * 40
    assert report.measures["levels"] == 3 * 40


def test_parts_hold_histories_of_about_one_length_and_answers_keep_their_order():
    told = Recommender("tiny", shops.llama(), shops.catalogue())
    work = Recommend(told, {"k": 3}, rows=4)
    users = [(number, history) for number, history in enumerate(histories(30))]
    lengths = [[min(6, len(users[place][1])) for place in part] for part in work.parts(users)]
    assert [len(part) for part in lengths] == [4] * 7 + [2]
    flat = [length for part in lengths for length in part]
    assert flat == sorted(flat)
    found = work([(9 + place, user) for place, user in enumerate(users)])
    assert [columns["user_id"] for columns in found] == [[number] * 3 for number, _ in users]
    for (_, history), columns in zip(users, found, strict=True):
        assert columns["item"] == recommend(told.model, [history], k=3, catalogue=told.catalogue).items[0]


def test_items_may_be_words_and_targets_encoder_decoders(tmp_path):
    shops.write(tmp_path / "shop", words=True, drafter=False, target=shops.t5())
    users = pa.table({"id": [5, 6, 7], "bought": [["i100", "i101"], ["i7"], ["i159"] * 40]})
    (tmp_path / "users").mkdir()
    pq.write_table(users, tmp_path / "users" / "a.parquet")
    names = {"user_column": "id", "history_column": "bought"}
    run(make_recommendation_job(asked(tmp_path / "shop", tmp_path / "users", tmp_path / "out", **names)))
    found = rows(tmp_path / "out")
    assert [row["user_id"] for row in found] == [5] * 5 + [7] * 5
    alone = recommend(shops.t5(), [["i100", "i101"]], k=5, catalogue=shops.catalogue(words=True))
    assert [row["item"] for row in found[:5]] == alone.items[0]
    assert rejected(tmp_path / "out") == {2: "item 'i7' is not in the catalogue of 60 items"}


def test_a_user_for_whom_nothing_is_left_is_told():
    told = Recommender("tiny", shops.llama(), shops.catalogue())
    work = Recommend(told, {"k": 3, "unseen": True, "allowed": told.catalogue.mask([100, 101])})
    full, half = work([(0, ("a", [100, 101])), (1, ("b", [100]))])
    assert isinstance(full, Reject)
    assert "nothing is left" in full.reason
    assert half["item"] == [101]


# --- bad rows -----------------------------------------------------------------------------------------------------------


def test_every_kind_of_bad_row_is_told_and_the_job_goes_on(home, tmp_path):
    folder = tmp_path / "users"
    folder.mkdir()
    reasons = write_users(folder / "a.parquet", 44)
    odd = {
        "b": ([["i100"]], "item 1 of the history, 'i100', is text: the catalogue's items are whole numbers"),
        "c": (["100,101"], "history '100,101' is text: give a list of items"),
        "d": ([[100.0, 101.5]], "101.5, is a number with a fraction"),
        "e": ([[True]], "True, is true or false"),
        "f": ([[[100]]], "[100], is a list"),
        "g": ([{"a": 1}], "is a dict"),
    }
    for name, (column, reason) in odd.items():
        pq.write_table(pa.table({"user_id": ["x"], "history": column}), folder / f"{name}.parquet")
        reasons[49 + 1 + list(odd).index(name)] = reason
    pq.write_table(pa.table({"user_id": [3, 4], "history": [[100], [101]]}), folder / "h.parquet")
    reasons |= dict.fromkeys((56, 57), "is a whole number, and those of the first file are text")
    pq.write_table(pa.table({"user_id": ["last"], "history": [[100]]}), folder / "i.parquet")
    report = run(make_recommendation_job(asked(home, folder, tmp_path / "out")))
    found = rejected(tmp_path / "out")
    assert (report.outputs, report.rejects) == (45, len(reasons))
    assert found.keys() == reasons.keys()
    for row, reason in reasons.items():
        assert reason in found[row]
    assert rows(tmp_path / "out")[-1]["user_id"] == "last"


def test_one_in_a_hundred_is_bad_and_all_are_found(home, tmp_path):
    draw, bad, lists = random.Random(3), {}, histories(1500)
    for row in draw.sample(range(1500), 15):
        lists[row] = bad[row + 1] = draw.choice([None, [], [7], [None], [100, 160]])
    users = pa.table({"user_id": range(1500), "history": pa.array(lists, pa.list_(pa.int64()))})
    pq.write_table(users, tmp_path / "u.parquet", row_group_size=64)
    sizes = {"k": 1, "mode": "plain", "rows": 256, "batch_size": 512, "shard_size": 512}
    report = run(make_recommendation_job(asked(home, tmp_path / "u.parquet", tmp_path / "out", **sizes)))
    assert rejected(tmp_path / "out").keys() == bad.keys()
    assert {row["user_id"] + 1 for row in rows(tmp_path / "out")} == set(range(1, 1501)) - bad.keys()
    assert (report.outputs, report.rejects) == (1485, 15)


def test_a_history_that_the_model_has_no_room_for(tmp_path):
    told = Recommender("short", shops.llama(positions=16), shops.catalogue())
    work = Recommend(told, {"k": 2})
    assert work.check({"user_id": 1, "history": [100] * 4}) == (1, [100] * 4)
    with pytest.raises(ValueError, match="history takes 16 tokens, and the model has room for 13"):
        work.check({"user_id": 1, "history": [100] * 5})


# --- what is refused before anything is written -------------------------------------------------------------------------

MISTAKES = {
    "no k": ({"k": 0}, "k is 0"),
    "a narrow width": ({"width": 2}, "width is 2 and k 5"),
    "an unknown mode": ({"mode": "magic"}, "unknown method 'magic'"),
    "a missing catalogue": ({"catalogue": "gone.parquet"}, "gone.parquet does not exist"),
    "a missing model": ({"model": "./gone"}, "./gone does not exist"),
    "a missing drafter": ({"drafter": "./gone"}, "./gone does not exist"),
    "an unknown dtype": ({"dtype": "float7"}, "unknown dtype 'float7'"),
    "an unknown device": ({"device": "abacus"}, "unknown device 'abacus'"),
    "a missing input": ({"users": Path("gone.parquet")}, "gone.parquet does not exist"),
    "a missing column": ({"history_column": "bought"}, "no column 'bought'"),
    "no rows": ({"rows": 0}, "rows is 0"),
    "a missing list": ({"only": "gone.txt"}, "gone.txt cannot be read"),
    "a negative length": ({"draft_length": -1}, "draft_length is -1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_no_folder(home, tmp_path, mistake):
    changes, words = MISTAKES[mistake]
    write_users(tmp_path / "users.parquet", 10)
    with pytest.raises((ValueError, FileNotFoundError)) as told:
        make_recommendation_job(
            RecommendationJobSpec(**({"model": str(home), "users": tmp_path / "users.parquet", "out": tmp_path / "out"} | SIZES | changes))
        )
    assert words in str(told.value)
    assert len(str(told.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_models_that_do_not_go_together(home, tmp_path):
    write_users(tmp_path / "users.parquet", 10)
    make = partial(asked, users=tmp_path / "users.parquet", out=tmp_path / "out")
    shops.llama().save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match=r"no catalogue: "):
        make_recommendation_job(make(tmp_path / "bare"))
    shops.catalogue().write(tmp_path / "c.parquet")
    assert make_recommendation_job(make(tmp_path / "bare", catalogue=str(tmp_path / "c.parquet"))).options["mode"] == "plain"
    with pytest.raises(ValueError, match=r"drafter 'model' is the one in the model's own folder"):
        make_recommendation_job(make(tmp_path / "bare", catalogue=str(tmp_path / "c.parquet"), drafter="model"))
    Catalogue.of({1: [200]}).write(tmp_path / "big.parquet")
    with pytest.raises(ValueError, match=r"use token 200, but the model has 26"):
        make_recommendation_job(make(tmp_path / "bare", catalogue=str(tmp_path / "big.parquet")))
    shops.t5().save_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match="both be decoder-only"):
        make_recommendation_job(make(home, drafter=str(tmp_path / "t5")))
    pq.write_table(pa.table({"user_id": [1.5], "history": [[100]]}), tmp_path / "users.parquet")
    with pytest.raises(ValueError, match=r"user_id of .* holds double: user ids must be whole numbers or text"):
        make_recommendation_job(make(home))


def test_what_is_in_stock_comes_from_a_file(home, tmp_path):
    catalogue = shops.catalogue()
    (tmp_path / "stock.txt").write_text("100\n\n 105 \n159\n")
    assert read_allowed_items(str(tmp_path / "stock.txt"), catalogue).nonzero().flatten().tolist() == [0, 5, 59]
    pq.write_table(pa.table({"item": [100, 159]}), tmp_path / "stock.parquet")
    assert int(read_allowed_items(str(tmp_path / "stock.parquet"), catalogue).sum()) == 2
    for text, words in {"100\n7\nx\n": "names 2 items that are not in the catalogue of 60, such as 7", "\n": "names no item"}.items():
        (tmp_path / "bad.txt").write_text(text)
        with pytest.raises(ValueError, match=words):
            read_allowed_items(str(tmp_path / "bad.txt"), catalogue)
    write_users(tmp_path / "users.parquet", 20)
    make = partial(asked, home, tmp_path / "users.parquet", tmp_path / "out")
    run(make_recommendation_job(make(only=str(tmp_path / "stock.txt"))))
    assert {row["item"] for row in rows(tmp_path / "out")} <= {100, 105, 159}
    with pytest.raises(ValueError, match=r"holds another job: options.only"):
        run(make_recommendation_job(make(only=str(tmp_path / "stock.parquet"))))


# --- one job is not another ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "word"), [({"k": 6}, "options.k is 5 there and 6 here"), ({"rows": 8}, "rows"), ({"batch_size": 21}, "batch_size")], ids=str
)
def test_another_job_is_refused(home, tmp_path, change, word):
    write_users(tmp_path / "users.parquet", 10)
    run(make_recommendation_job(asked(home, tmp_path / "users.parquet", tmp_path / "out")))
    with pytest.raises(ValueError, match=f"holds another job: .*{word}"):
        run(make_recommendation_job(asked(home, tmp_path / "users.parquet", tmp_path / "out", **change)))


def test_what_tells_recommenders_apart(home):
    told = load_recommender(str(home))
    base = recommendation_job_identity(told)
    assert base == recommendation_job_identity(load_recommender(str(home)))
    assert base.keys() == {"target", "config", "generation config", "catalogue", "drafter"}
    assert recommendation_job_identity(load_recommender(str(home), drafter="none")) == {
        key: base[key] for key in ("target", "config", "generation config", "catalogue")
    }
    model = shops.llama(seed=5)
    model.generation_config.repetition_penalty = 1.05
    other = recommendation_job_identity(Recommender("other", model, shops.catalogue(most=7), shops.llama(seed=6)))
    assert all(base[name] != other[name] for name in base)


@pytest.mark.parametrize(("round_", "level", "wanted"), [(1.0, 0.01, 2), (0.01, 1.0, 0)])
def test_auto_drafts_where_rounds_are_dear_and_not_where_drafts_are(home, tmp_path, monkeypatch, round_, level, wanted):
    """With made-up seconds in the clock's place: a round costs so much, and each level drafted."""
    write_users(tmp_path / "users.parquet", 20)
    told = load_recommender(str(home), drafter=str(home / "target"))  # drafts what it would itself choose
    seen = _Call.observe
    monkeypatch.setattr(_Call, "observe", lambda self, length, committed, _: seen(self, length, committed, round_ + level * length))
    job = make_recommendation_job(asked(home, tmp_path / "users.parquet", tmp_path / "out", draft_length="auto"), told)
    assert job.options["draft_length"] == wanted
    assert job.measures()["users"] == 0  # trials are not counted


def test_auto_is_committed_once_for_a_job(home, tmp_path, monkeypatch):
    """Then the manifest says it: a job that goes on never changes its mind."""
    write_users(tmp_path / "users.parquet", 20)
    make = partial(make_recommendation_job, asked(home, tmp_path / "users.parquet", tmp_path / "out", draft_length="auto"))
    monkeypatch.setattr("mmspec.jobs.recommendations_job._fastest", lambda *given: 2)
    run(make)
    monkeypatch.setattr("mmspec.jobs.recommendations_job._fastest", lambda *given: 0)
    assert make().options["draft_length"] == 2
    assert run(make).resumed == 1


# --- the same bytes -----------------------------------------------------------------------------------------------------


def begun(asked: RecommendationJobSpec, rank: int = 0, world: int = 1) -> int:
    """The job in a process of its own, as torchrun starts it; the process's number."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
        try:
            run(partial(make_recommendation_job, asked))
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child


def test_killed_at_five_moments_and_resumed_it_ends_with_the_same_bytes(home, tmp_path):
    users, out, moments = tmp_path / "users.parquet", tmp_path / "out", random.Random(5)
    write_users(users, 300)
    assert os.waitpid(begun(asked(home, users, tmp_path / "right")), 0)[1] == 0
    shards = len(list((tmp_path / "right" / "shards").iterdir()))
    for _ in range(5):
        child, before = begun(asked(home, users, out)), len(list(out.glob("shards/*")))
        while len(list(out.glob("shards/*"))) == before:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.06))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert 5 <= len(list(out.glob("shards/*"))) < shards
    assert json.loads((out / "manifest.json").read_text())["state"] == "unfinished"
    assert os.waitpid(begun(asked(home, users, out)), 0)[1] == 0
    assert tree(out) == tree(tmp_path / "right")


def test_two_processes_leave_the_bytes_of_one(home, tmp_path):
    users = tmp_path / "users.parquet"
    write_users(users, 100)
    assert os.waitpid(begun(asked(home, users, tmp_path / "right")), 0)[1] == 0
    children = [begun(asked(home, users, tmp_path / "out", draft_length=length), rank, 2) for rank, length in enumerate((2, "auto"))]
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert tree(tmp_path / "out") == tree(tmp_path / "right")


def test_threads_and_batches_change_no_item(home):
    """What may differ is the last bit of a sum: items and their order are the same in any company."""
    told, users = load_recommender(str(home)), [("u", history) for history in histories(60)]
    found = [Recommend(told, {"k": 5}, rows=rows)(list(enumerate(users))) for rows in (1, 7, 64)]
    items = [[columns["item"] for columns in each] for each in found]
    scores = [torch.tensor([columns["score"] for columns in each]) for each in found]
    assert items[0] == items[1] == items[2]
    assert all((each - scores[0]).abs().max() <= 1.1e-4 for each in scores)
