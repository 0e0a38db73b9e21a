"""What was learnt about draft lengths is kept across calls and on disk, and damaged files are ignored."""

import json

import pytest

from mmspec.core.draft_length.by_match import MatchRecord
from mmspec.drafters.retrieval.lookup import Lookup
from mmspec.drafters.retrieval.suffix import Suffix
from mmspec.run import match_records
from mmspec.run.match_records import match_record, save_records
from mmspec.text import generate
from tests.drafters.runs import greedy, random_prompt


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(match_records, "_records", {})


def files(tmp_path):
    return list((tmp_path / "draft_length").glob("*.json"))


def test_kinds_of_requests_have_records_of_their_own(big, small):
    one = match_record(big, Lookup(), 1, False)
    assert match_record(big, Lookup(max_ngram=2), 1, False) is one
    others = [(small, Lookup(), 1, False), (big, Suffix(), 1, False), (big, Lookup(), 8, False), (big, Lookup(), 1, True)]
    assert all(match_record(*other) is not one for other in others)


def test_a_record_is_read_back_by_the_next_process(big, tmp_path, monkeypatch):
    record = match_record(big, Lookup(), 1, False)
    record.counts[3][1] = [2.0, 5.0]
    record.ratios[4] = [1.5, 1.25]
    save_records()
    assert len(files(tmp_path)) == 1
    monkeypatch.setattr(match_records, "_records", {})
    again = match_record(big, Lookup(), 1, False)
    assert again == record
    assert again is not record


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"counts": [[1]], "ratios": []}', '{"counts": 3, "ratios": [[1, [2]]]}', "\x00"])
def test_a_damaged_file_is_ignored_with_one_warning(big, tmp_path, monkeypatch, text):
    match_record(big, Lookup(), 1, False)
    save_records()
    (file,) = files(tmp_path)
    file.write_text(text)
    monkeypatch.setattr(match_records, "_records", {})
    with pytest.warns(UserWarning, match="is ignored") as seen:
        assert match_record(big, Lookup(), 1, False) == MatchRecord()
    assert len(seen) == 1


def test_the_disk_can_be_left_alone(big, tmp_path, monkeypatch):
    monkeypatch.setenv("MMSPEC_DRAFT_RECORDS", "0")
    match_record(big, Lookup(), 1, False)
    save_records()
    assert not files(tmp_path)


def test_a_folder_that_cannot_be_written_is_no_error(big, tmp_path, monkeypatch):
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="is ignored"):
        match_record(big, Lookup(), 1, False)
    save_records()


def test_no_token_depends_on_a_record(big, tmp_path):
    inputs = random_prompt(5, 9, 7, seed=1)
    expected = greedy(big, inputs, 24)
    for _ in range(3):
        assert generate(big, inputs, "lookup", max_new_tokens=24).sequences.tolist() == expected
    ((record, _),) = match_records._records.values()
    record.counts[:] = [[[9.0, 9.0] for _ in row] for row in record.counts]
    record.ratios[8] = [0.1]
    assert generate(big, inputs, "lookup", max_new_tokens=24).sequences.tolist() == expected
    save_records()
    assert json.loads(files(tmp_path)[0].read_text())["ratios"]
