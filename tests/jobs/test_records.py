"""Lines of any kind become records or reasons, each under the index of its line."""

import json
import tracemalloc

import pytest

from mmspec.jobs import Lines, Reject
from mmspec.jobs.engine import records as module


def read(path, wanted=lambda index: True):
    return list(Lines(path).read(wanted))


LINES = {
    b'{"prompt": "a", "id": 1}': {"prompt": "a", "id": 1},
    '{"prompt": "\u2028 is no line end"}'.encode(): {"prompt": "\u2028 is no line end"},
    b'{"prompt": "\\ud83d\\ude00"}': {"prompt": "\U0001f600"},
    b"": "empty",
    b"  ": "empty",
    b"oops": "not JSON",
    b'{"prompt": ': "not JSON",
    b'{"x": NaN}': "NaN is no number",
    b"[1, 2]": "a JSON list, not an object",
    b'"text"': "a JSON string, not an object",
    b"null": "a JSON null, not an object",
    b"\xff\xfe": "not UTF-8: byte 1 is 0xff",
    b'{"prompt": "\\ud83d"}': "half a surrogate pair",
    b"[" * 100_000: "nested too deeply",
    b"9" * 5000: "not JSON",
}


def test_every_line_is_a_record_or_a_reason_under_its_own_index(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(LINES))
    found = read(path)
    assert Lines(path).facts().records == len(LINES)
    assert [index for index, _ in found] == list(range(len(LINES)))
    for (_, record), expected in zip(found, LINES.values(), strict=True):
        if isinstance(expected, dict):
            assert record == expected
        else:
            assert isinstance(record, Reject)
            assert expected in record.reason


def test_text_lines_keep_their_spaces_and_lose_their_ends(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes("\ufeffone \r\n\n{two}\n".encode())
    assert read(path) == [(0, {"prompt": "one "}), (1, Reject("empty")), (2, {"prompt": "{two}"})]
    assert next(Lines(path, key="caption").read(lambda index: True)) == (0, {"caption": "one "})


@pytest.mark.parametrize(("text", "records"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"\n\n", 2)])
def test_counting_agrees_with_reading(tmp_path, text, records):
    path = tmp_path / "in.txt"
    path.write_bytes(text)
    assert Lines(path).facts().records == records == len(read(path))


@pytest.mark.parametrize("length", range(5, 14))
def test_a_line_too_long_is_rejected_and_its_neighbours_are_not(tmp_path, monkeypatch, length):
    monkeypatch.setattr(module, "_LONGEST", 8)
    monkeypatch.setattr(module, "_CHUNK", 3)
    path = tmp_path / "in.txt"
    for end in (b"\nzz\n", b"\n", b""):
        path.write_bytes(b"a\n" + b"b" * length + end)
        found = read(path)
        line = {"prompt": "b" * length} if length + len(end[:1]) <= 8 and length < 8 else Reject("longer than 0 MiB")
        assert found == [(0, {"prompt": "a"}), (1, line)] + [(2, {"prompt": "zz"})] * (end == b"\nzz\n")
        assert len(found) == Lines(path).facts().records


def test_only_what_is_wanted_is_parsed(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": str(n)}) for n in range(9)))
    assert read(path, lambda index: index % 4 == 1) == [(1, {"prompt": "1"}), (5, {"prompt": "5"})]


def test_the_fingerprint_tells_inputs_apart_and_not_places(tmp_path):
    contents = {"a.txt": "x\n", "b.txt": "x\n", "c.txt": "y\n", "d.jsonl": "x\n"}
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    a, b, c, d = (Lines(tmp_path / name).facts().fingerprint for name in contents)
    assert a == b
    assert len({a, c, d, Lines(tmp_path / "a.txt", key="caption").facts().fingerprint}) == 4


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "in.txt"
    with path.open("w") as file:
        for _ in range(3000):
            file.write("x" * 10_000 + "\n")
    tracemalloc.start()
    lines = Lines(path)
    assert lines.facts().records == sum(1 for _ in lines.read(lambda index: True)) == 3000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6  # of 30e6


def test_files_that_cannot_be_read_are_told_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.txt does not exist: give"):
        Lines(tmp_path / "nowhere.txt")
    with pytest.raises(ValueError, match="it is a folder or a pipe"):
        Lines(tmp_path)
