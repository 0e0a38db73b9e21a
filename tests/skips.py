"""Where CI is set, a test that is skipped for another reason than these fails: a promise that is not tested there is not kept.

A plugin of pytest, which tests/conftest.py loads.
"""

import os
import re
from collections.abc import Generator
from typing import Any

import pytest

ALLOWED = {
    r"a CUDA device is there": "the line that a machine without one gets",
    r"transformers before 5\.24 takes one name": "of the version: .ci/next has it",
    r"(some families need|needs) transformers 5\.23": "of the version: .ci/run has it, .ci/oldest has not",
    r"transformers has (it|DFlash assistants) since 5\.23": "of the version: .ci/run has it, .ci/oldest has not",
    r"speculators pins other versions of transformers and torch.*": "it cannot stand beside the tested versions",
    r"no recordings: .*": "data sets are not shipped (MMSPEC_DATA)",
    r"does nothing elsewhere": "of the system: CI runs Linux",
}
"""Reason of a skip, as a pattern -> why CI cannot do without it."""


def allowed(reason: str) -> bool:
    """Whether a test may be skipped for a reason where CI is set."""
    return any(re.fullmatch(pattern, reason, re.S) for pattern in ALLOWED)


def _judge(report: Any) -> None:
    """Fail a report of a skip that is not allowed."""
    if not (os.environ.get("CI") and report.skipped) or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")
    if not allowed(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped where CI is set: {reason}. Install what the test needs in .ci/run, or list the reason in tests/skips.py"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    """Judge a test that is skipped."""
    report = yield
    _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: Any) -> Generator[None, Any, Any]:
    """Judge a module that is skipped."""
    report = yield
    _judge(report)
    return report
