"""The site builds without a warning, reads nothing from elsewhere, and shows the public calls."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mmspec
from tests.docs.pages import ROOT

LOADED = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(https?:[^\s\">]+)|<link[^>]*\shref=\"?(https?:[^\s\">]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site. Warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", "docs/mkdocs.yml", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300)
    assert built.returncode == 0, built.stderr
    return folder


def test_nothing_is_loaded_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        assert not LOADED.findall(page.read_text(encoding="utf-8")), page.name
    assert not re.findall(r"@import|url\(\"?https?:", "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css")))


@pytest.mark.parametrize("room", ["text", "vision", "speech", "recsys"])
def test_the_reference_shows_what_a_room_exports(site, room):
    page = (site / "reference" / f"mmspec.{room}.html").read_text(encoding="utf-8")
    for name in getattr(mmspec, room).__all__:
        if name.islower():
            assert page.count(f'id="mmspec.{room}.{name}"') + page.count(f'id="mmspec.{room}.{name}.{name}"') == 1, name


def test_no_page_shows_markup_that_was_not_translated(site):
    for page in (*site.glob("*.html"), *site.glob("start/*.html")):
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.S)
        assert "](" not in re.sub(r"<script\b.*?</script>", "", text, flags=re.S), page.name
        assert ":::" not in text, page.name
