"""The GPU suite, on the CPU: every line runs, the budget ends it, a line that fails leaves the others, and no GPU is one line."""

import json

import pytest
import torch

from mmspec.bench.suites import gpu


@pytest.fixture(scope="module")
def found():
    compiled = torch.compile
    with pytest.MonkeyPatch.context() as patch:  # inductor takes minutes
        patch.setattr(torch, "compile", lambda model, **_: compiled(model, backend="eager", fullgraph=True, dynamic=False))
        return gpu.measure(device="cpu", repeats=2)


def test_every_line_is_measured(found):
    assert not found["failed"]
    assert not found["skipped"]
    assert {row["line"] for row in found["rows"]} == set(gpu.LINES) - {"verify step, second dtype"}  # the CPU has one dtype
    assert all(row["low"] <= row["ms"] <= row["high"] and row["ratio"] > 0 for row in found["rows"])
    runs = {row["run"] for row in found["rows"]}
    assert {"plain, captured", "captured, 16 tokens", "floor", "transformers generate", "untruncated"} <= runs
    assert json.loads(json.dumps(found)) == found


def test_the_table_holds_every_row_and_its_provenance(found):
    page = gpu.render(found)
    assert page.count("\n| ") == len(found["rows"]) + 1
    assert found["provenance"]["date"] in page
    spent = gpu.render(found | {"skipped": ["items"], "failed": {"text": "out of memory"}})
    assert "the budget of 600 s was spent: items." in spent
    assert "text failed: out of memory" in spent


def test_no_line_begins_after_the_budget():
    found = gpu.measure(budget_seconds=-1, device="cpu", repeats=2)
    assert found["skipped"] == list(gpu.LINES)
    assert not found["rows"]


def test_a_line_that_fails_leaves_the_others(monkeypatch):
    def fails(*parts):
        raise RuntimeError("CUDA out of memory.\nmore")

    monkeypatch.setattr(
        gpu, "LINES", {"one": fails, "two": lambda *parts: [{"run": "x", "ms": 1.0, "low": 1.0, "high": 1.0, "ratio": 1.0}]}
    )
    seen = []
    found = gpu.measure(device="cpu", note=seen.append)
    assert found["failed"] == {"one": "CUDA out of memory."}
    assert [row["line"] for row in found["rows"]] == ["two"]
    assert seen == ["one", "two"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_without_a_gpu_it_says_so_in_one_line():
    with pytest.raises(ValueError, match="needs a CUDA device and torch sees none") as caught:
        gpu.measure()
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="repeats is 1"):
        gpu.measure(device="cpu", repeats=1)
