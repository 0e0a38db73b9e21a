"""Public calls with wrong arguments end in one clear line: a part of them here, and all by `python -m tests.fuzz.calls`."""

from tests.fuzz.calls import run


def test_no_call_ends_unclearly(tmp_path):
    report = run(tmp_path, share=0.07)
    assert report.counts.total() >= 800
    assert report.clear, report.table("calls")
