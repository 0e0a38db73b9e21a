"""`mmspec recommend`: a job, or a few histories at once; one line for every mistake, one JSON object where it is asked for."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmspec.cli import app
from mmspec.loading.recsys import load_recommender
from mmspec.recsys import recommend as public
from tests.recsys import shops


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return shops.write(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return shops.write(tmp_path_factory.mktemp("words"), words=True, drafter=False)


@pytest.fixture
def users(tmp_path):
    path = tmp_path / "users.parquet"
    lists = pa.array([[100, 101], None, [7], [159] * 9, []], pa.list_(pa.int64()))
    pq.write_table(pa.table({"user_id": [1, 2, 3, 4, 5], "history": lists}), path)
    return path


@pytest.fixture
def recommend(capsys, home):
    """Run the command: (exit code, stdout, stderr)."""

    def run(*args: object, model=home) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            app([str(arg) for arg in ("recommend", *args, "--model", model, "--device", "cpu")])
        return (stopped.value.code, *capsys.readouterr())

    return run


def refused(result: tuple, *words: str) -> None:
    """Exit 2, nothing on stdout, one line on stderr with all of `words`."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("mmspec: ")
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


# --- a few histories ----------------------------------------------------------------------------------------------------


def test_the_items_are_those_of_the_public_call(recommend, home):
    code, out, _ = recommend("--history", "100,101", "--history", "150", "--k", 4, "--compare", "--json")
    found, told = json.loads(out), load_recommender(str(home))
    wanted = public(told.model, [[100, 101], [150]], k=4, catalogue=told.catalogue, method="plain")
    assert code == 0
    assert [row["items"] for row in found["results"]] == wanted.items == found["compare"]["items"]
    assert found["results"][0]["scores"] == pytest.approx(wanted.scores[0], abs=1e-4)
    assert found["results"][0]["names"] == [f"thing {item - 100}" for item in wanted.items[0]]
    assert (found["mode"], found["drafter"], found["exactness"]) == ("strict", "model", "token-exact")
    assert 1 <= found["calls"] <= 3 == found["compare"]["calls"]
    assert found["compare"]["same_users"] == 2


def test_the_table_has_names_beside_scores(recommend):
    code, out, _ = recommend("--history", "100,101,102,103", "--k", 3, "--compare", "--unseen")
    assert code == 0
    for word in ("after ... thing 1; thing 2; thing 3", "thing", "score", "strict", "plain", "target calls a user", "for 1 of 1 users"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 80


def test_items_that_are_words(recommend, words, tmp_path):
    stock = tmp_path / "stock.txt"
    stock.write_text("i100\ni120\n")
    found = json.loads(recommend("--history", "i100, i159", "--only", stock, "--unseen", "--json", model=words)[1])
    assert found["results"][0]["items"] == ["i120"]
    assert (found["mode"], found["drafter"], found["calls"]) == ("plain", "none", 3)


MISTAKES = {
    "nobody": ((), ("no user", "--history")),
    "no folder": (("users.parquet",), ("no folder for the recommendations of users.parquet",)),
    "a file and a history": (("a", "b", "--history", "100"), ("do not go together",)),
    "an unknown item": (("--history", "100,7"), ("item 7 is not in the catalogue of 60 items",)),
    "an item of words": (("--history", "100,x"), ("'x'", "whole numbers, such as 100")),
    "no item": (("--history", ","), ("history is empty",)),
    "no k": (("--history", "100", "--k", 0), ("k is 0",)),
    "an unknown mode": (("--history", "100", "--mode", "magic"), ("'magic'", "strict")),
    "a missing drafter": (("--history", "100", "--drafter", "./gone"), ("./gone does not exist",)),
    "a missing list": (("--history", "100", "--only", "gone.txt"), ("gone.txt cannot be read",)),
    "a length of words": (("--history", "100", "--draft-length", "long"), ("'long'", "auto")),
    "an unknown engine": (("a", "b", "--engine", "spark"), ("'spark'", "local, ray")),
    "a simulated user of another model": (("--user", 3), ("--user is for the mini",)),
    "nothing to compare": (("--history", "100", "--compare", "--drafter", "none"), ("--compare", "give a drafter")),
    "a missing file": (("gone.parquet", "out"), ("gone.parquet does not exist",)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_one_line(recommend, mistake):
    args, words = MISTAKES[mistake]
    refused(recommend(*args), *words)


def test_models_that_cannot_serve(recommend, tmp_path):
    refused(recommend("--history", "100", model="./nowhere"), "./nowhere does not exist")
    (tmp_path / "bare").mkdir()
    refused(recommend("--history", "100", model=tmp_path / "bare"), "no catalogue")
    shops.catalogue().write(tmp_path / "bare" / "catalogue.parquet")
    refused(recommend("--history", "100", model=tmp_path / "bare"), "cannot be loaded")


# --- a job --------------------------------------------------------------------------------------------------------------


def test_a_job_tells_counts_and_where_the_reasons_are(recommend, users, tmp_path):
    code, out, _ = recommend(users, tmp_path / "out", "--k", 3, "--draft-length", 2)
    assert code == 0
    assert f"5 users: 2 got 6 recommendations; 3 rejects, reasons in {tmp_path / 'out' / 'rejects.jsonl'}" in out
    assert "strict, 2 levels drafted a round" in out
    assert "users/s" in out
    table = pq.read_table(tmp_path / "out" / "part-00000.parquet")
    assert table.column_names == ["user_id", "rank", "item", "score"]
    assert table["user_id"].to_pylist() == [1, 1, 1, 4, 4, 4]
    assert len((tmp_path / "out" / "rejects.jsonl").read_text().splitlines()) == 3
    code, out, _ = recommend(users, tmp_path / "out", "--k", 3, "--draft-length", 2, "--json")
    found = json.loads(out)
    assert (found["records"], found["outputs"], found["rejects"], found["resumed"]) == (5, 2, 3, 1)
    assert found["options"]["draft_length"] == 2
    refused(recommend(users, tmp_path / "out", "--k", 4, "--draft-length", 2), "holds another job", "options.k is 3 there and 4 here")


def test_a_file_in_which_all_is_bad(recommend, tmp_path):
    pq.write_table(pa.table({"id": ["a"], "bought": ["100,101"]}), tmp_path / "u.parquet")
    columns = ("--user-column", "id", "--history-column", "bought")
    refused(recommend(tmp_path / "u.parquet", tmp_path / "out", *columns), "all 1 users were rejected", "row 1", "give a list of items")
    refused(recommend(tmp_path / "u.parquet", tmp_path / "new"), "no column 'user_id', 'history'", "it has id, bought")
