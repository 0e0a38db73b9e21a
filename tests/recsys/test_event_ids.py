"""Semantic ids from events alone: no held-out event is read, and items of which only the ids are known go the whole way."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mmspec.recsys import Catalogue
from mmspec.recsys.preparation.event_embeddings import event_embeddings
from mmspec.recsys.preparation.history_rows import training_lengths
from tests.recsys.test_preparation import TRAIN, events, mmspec, things, vectors  # noqa: F401  (mmspec is a fixture)

IDS = ("--from", "events", "--core", 1, "--size", 8, "--levels", 3, "--event-width", 6)


def walks(users=60, items=24, seed=0):
    """Histories in two halves of the catalogue, so that events say which items belong together."""
    draw = np.random.default_rng(seed)
    return [(draw.integers(items // 2, size=draw.integers(1, 9)) + items // 2 * (user % 2)).tolist() for user in range(users)]


def write(path, histories):
    rows = [(user, item, time) for user, history in enumerate(histories) for time, item in enumerate(history)]
    pq.write_table(pa.table(dict(zip(("user", "item", "time"), zip(*rows, strict=True), strict=True))), path)
    return path


def test_embeddings_are_a_truncated_svd_of_positive_mutual_information():
    histories = walks()
    lengths = np.array([len(history) for history in histories])
    found = event_embeddings(np.concatenate(histories), lengths, 25, width=5, within=3)
    counts = np.zeros((25, 25))
    for history in histories:
        for place, item in enumerate(history):
            for gap in (1, 2, 3):
                for other in history[place + gap : place + gap + 1]:
                    if other != item:
                        counts[item, other] += 1 / gap
                        counts[other, item] += 1 / gap
    total = counts.sum(1)
    context = total**0.75 / (total**0.75).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.nan_to_num(np.maximum(np.log(counts / (total[:, None] * context)), 0))
    left, values, _ = np.linalg.svd(information)
    wanted = left[:, :5] * values[:5] ** 0.5
    wanted /= np.maximum(np.linalg.norm(wanted, axis=1, keepdims=True), 1e-9)
    assert np.abs(found.numpy() @ found.numpy().T - wanted @ wanted.T).max() < 1e-4
    assert not found[24].any()  # beside no other
    assert (found[:12] @ found[:12].T).mean() > (found[:12] @ found[12:24].T).mean() + 0.1


def test_no_held_out_event_is_read(mmspec, tmp_path):  # noqa: F811
    histories, draw = walks(), np.random.default_rng(1)
    cuts = training_lengths(np.array([len(history) for history in histories]))
    others = [[*history[:cut], *draw.integers(24, size=len(history) - cut).tolist()] for history, cut in zip(histories, cuts, strict=True)]
    assert others != histories
    moved = [history[::-1] for history in histories]
    things(tmp_path / "i.parquet", 24)
    told = {}
    for name, some in {"own": histories, "others": others, "moved": moved}.items():
        write(tmp_path / f"{name}.parquet", some)
        assert mmspec("recommend", "prepare", tmp_path / f"{name}.parquet", tmp_path / "i.parquet", tmp_path / name, *IDS)[0] == 0
        told[name] = Catalogue.read(tmp_path / name / "catalogue.parquet").paths, (tmp_path / name / "quantiser.safetensors").read_bytes()
    assert torch.equal(told["own"][0], told["others"][0])
    assert told["own"][1] == told["others"][1]
    assert not torch.equal(told["own"][0], told["moved"][0])  # training events do count


def test_items_of_which_only_the_ids_are_known_go_from_tables_to_recommendations(mmspec, tmp_path):  # noqa: F811
    events(tmp_path / "e.parquet", items=24)
    things(tmp_path / "i.parquet", 27)  # the last three have no event
    things(tmp_path / "new.parquet", 2, first=27)
    home = tmp_path / "shop"
    code, _, err = mmspec("recommend", "prepare", tmp_path / "e.parquet", tmp_path / "i.parquet", home, "--core", 1)
    assert (code, "or give --from events" in err) == (2, True)
    prepare = ("recommend", "prepare", tmp_path / "e.parquet", tmp_path / "i.parquet", home, *IDS)
    code, out, _ = mmspec(*prepare)
    assert code == 0
    assert "3 items are beside no other in the training events" in out
    before = (home / "catalogue.parquet").read_bytes()
    (home / "catalogue.parquet").unlink()
    (home / "prepared.json").write_text(json.dumps({"settings": json.loads((home / "prepared.json").read_text())["settings"]}))
    assert mmspec(*prepare)[0] == 0  # as after a kill
    assert (home / "catalogue.parquet").read_bytes() == before
    assert mmspec("recommend", "train", home, *TRAIN, "--drafter", "none")[0] == 0
    code, out, _ = mmspec("recommend", "evaluate", home, "--sasrec-steps", 2, "--held", 5, "--device", "cpu", "--json")
    assert (code, list(json.loads(out)["table"])) == (0, ["target", "sasrec", "co-occurrence", "popularity"])
    assert mmspec("recommend", "run", home / "histories.parquet", tmp_path / "out", "--model", home, "--k", 3, "--device", "cpu")[0] == 0
    assert len(pq.read_table(tmp_path / "out" / "part-00000.parquet")) == 40 * 3
    code, out, _ = mmspec("recommend", "append", home, tmp_path / "new.parquet")
    assert code == 0
    assert "they get those of items beside no other until a new prepare" in out
    paths = Catalogue.read(home / "catalogue.parquet").paths
    assert len(paths[24:, :2].unique(dim=0)) == 1  # without events: one beginning, told apart by the last code
    assert len(paths[24:].unique(dim=0)) == 5
    assert mmspec("recommend", "run", "--history", "1,2", "--model", home, "--k", 3, "--device", "cpu")[0] == 0


@pytest.mark.parametrize("column", ["text", "embedding"])
def test_beside_events_a_column_decides_for_items_without_any(mmspec, tmp_path, column):  # noqa: F811
    texts = [f"steel part {n % 3} of kind {'abcd'[n % 4] * 3}" for n in range(30)]
    values = texts if column == "text" else vectors(30)
    write(tmp_path / "e.parquet", walks())
    things(tmp_path / "i.parquet", 27, **{column: values[:27]})
    things(tmp_path / "new.parquet", 3, first=27, **{column: values[27:]})
    home, source = tmp_path / "shop", f"{column}+events"
    prepare = ("recommend", "prepare", tmp_path / "e.parquet", tmp_path / "i.parquet", home, *IDS[2:], "--from", source)
    assert mmspec(*prepare)[0] == 0
    summary = json.loads((home / "prepared.json").read_text())
    assert (summary["source"], summary["counts"]["items beside no other"]) == (source, 3)
    code, out, _ = mmspec("recommend", "assign", home, tmp_path / "new.parquet", tmp_path / "ids.parquet")
    assert code == 0
    assert f"the {column} alone decides" in out
    first = Catalogue.read(home / "catalogue.parquet").paths[24:27, :2]
    later = torch.tensor(pq.read_table(tmp_path / "ids.parquet")["path"].to_pylist())[:, :2]
    assert len(torch.cat([first, later]).unique(dim=0)) > 1
    things(tmp_path / "bare.parquet", 3, first=27)
    code, _, err = mmspec("recommend", "assign", home, tmp_path / "bare.parquet", tmp_path / "ids.parquet")
    assert (code, f"has no column {column}" in err) == (2, True)
