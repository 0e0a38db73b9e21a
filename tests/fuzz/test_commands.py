"""Wrong command lines end in one clear line and leave nothing half-written: a part here, and all by `python -m tests.fuzz.commands`."""

from tests.fuzz.commands import run


def test_no_command_line_ends_unclearly(tmp_path):
    report = run(tmp_path, share=0.065)
    assert report.counts.total() >= 500
    assert report.clear, report.table("command lines")
