"""In CI no test is skipped but for the reasons of tests/skips.py, each of which a test still has."""

import ast
import os
import re
import subprocess
import sys

import pytest

from tests.commands import ROOT
from tests.skips import ALLOWED

SKIPPING = {
    "a mark": "import pytest\n\n@pytest.mark.skipif(True, reason='{reason}')\ndef test_it():\n    pass\n",
    "a call": "import pytest\n\ndef test_it():\n    pytest.skip('{reason}')\n",
    "a fixture": "import pytest\n\n@pytest.fixture\ndef it():\n    pytest.skip('{reason}')\n\ndef test_it(it):\n    pass\n",
    "a module": "import pytest\n\npytest.importorskip('nowhere', reason='{reason}')\n\ndef test_it():\n    pass\n",
}


def ran(folder, reason: str, ways=tuple(SKIPPING), **environment: str) -> subprocess.CompletedProcess:
    """Run a file with a test for every way to skip one."""
    for way in ways:
        (folder / f"test_{way.replace(' ', '_')}.py").write_text(SKIPPING[way].format(reason=reason))
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.skips",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        str(folder),
    ]
    env = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST")} | environment
    return subprocess.run(command, capture_output=True, text=True, env=env | {"PYTHONPATH": str(ROOT)}, cwd=folder, timeout=120)


@pytest.mark.parametrize("way", SKIPPING)
def test_a_skip_fails_where_ci_is_set(way, tmp_path):
    found = ran(tmp_path, "no chromium is installed", (way,), CI="true")
    assert found.returncode, found.stdout
    assert "skipped where CI is set: no chromium is installed." in found.stdout


def test_a_listed_skip_and_one_elsewhere_do_not_fail(tmp_path):
    for reason, environment in (("a CUDA device is there", {"CI": "true"}), ("no chromium is installed", {})):
        found = ran(tmp_path, reason, **environment)
        assert "4 skipped" in found.stdout, found.stdout


def reasons() -> set[str]:
    """The reasons in the tests, of which the part behind a value is cut."""
    found = set()
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name in ("test_skips.py", "skips.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("skip", "skipif", "importorskip"):
                text = next((word.value for word in node.keywords if word.arg == "reason"), node.args[0] if node.args else None)
                if text is None:
                    continue
                text = text.values[0] if isinstance(text, ast.JoinedStr) else text
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found.add(text.value)
    return found


@pytest.mark.parametrize("pattern", ALLOWED)
def test_a_listed_reason_is_one_of_a_test(pattern):
    assert any(re.match(pattern.removesuffix(".*"), reason) for reason in reasons())
