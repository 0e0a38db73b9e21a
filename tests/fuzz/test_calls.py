"""Public calls with wrong arguments end in one clear line, every one of them."""

import pytest
import torch

import mmspec
from tests.fuzz.calls import cases
from tests.fuzz.files import broken_files
from tests.fuzz.harness import Report, bounded_memory, call


@pytest.fixture(scope="module")
def minis():
    return {name: mmspec.load(name) for name in ("text", "vision", "continuous", "speech", "recsys")}


def test_no_call_ends_unclearly(minis, tmp_path):
    report = Report()
    torch.manual_seed(0)
    with bounded_memory():
        for name, words, function in cases(minis, broken_files(tmp_path)):
            outcome, detail = call(function, words, wrong=True)
            report.add(outcome, name, detail)
    print(report.table("calls"))
    assert report.counts.total() >= 250
    assert report.clear, report.table("calls")
