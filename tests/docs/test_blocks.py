"""Every Python block of the README and of docs/ runs, page by page and in order, on stand-ins for checkpoints."""

import contextlib
import io

import pytest

from tests.docs.pages import GUIDES, ROOT, blocks, named
from tests.docs.standins import checkpoints

pytestmark = pytest.mark.filterwarnings("error:.* in 0.3:DeprecationWarning")  # names and calls of today
WITH_BLOCKS = [page for page in (ROOT / "README.md", *GUIDES) if blocks(page)]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=named)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with checkpoints(tmp_path) as names, contextlib.redirect_stdout(io.StringIO()):
        for number, block in enumerate(blocks(page), start=1):
            exec(compile(block, f"{named(page)}, block {number}", "exec"), names)


def test_there_are_blocks():
    assert len(WITH_BLOCKS) >= 15
