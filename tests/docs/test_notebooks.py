"""The notebooks run from start to end, as they are stored, and show that outputs are those of plain decoding."""

import nbformat
import pytest

from tests.docs.notebooks import NOTEBOOKS, executed, kinds, printed

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_as_stored(path):
    stored = nbformat.read(path, as_version=4)
    found = executed(path)  # raises where a cell does
    assert kinds(found) == kinds(stored), "run: python -m tests.docs.notebooks"
    same = [line for line in printed(stored) if "same" in line]
    assert [line.endswith("True") for line in printed(found) if "same" in line] == [line.endswith("True") for line in same]
    assert any(line.endswith("True") for line in same)
    assert not any(name == "stderr" for cell in kinds(stored) for name in cell)


def test_notebooks_are_small():
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        assert path.stat().st_size < 150_000, f"{path.name}: {path.stat().st_size} bytes"
