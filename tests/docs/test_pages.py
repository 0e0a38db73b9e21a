"""Links, anchors and the form of the pages."""

import re

import pytest

from tests.docs.pages import DECISIONS, GUIDES, PAGES, ROOT, TOP, anchors, links, named, prose
from tests.structure import ROOMS

FORMER = ("law-exact", "guess", "guesses", "settled", "frontier", "whoever", "nobody")
"""Words of our own that the field has better ones for; code may still use them."""


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_and_headings(page):
    for target in links(page):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        where, _, anchor = target.partition("#")
        path = (page.parent / where).resolve() if where else page
        assert path.is_relative_to(ROOT), f"{target} leaves the repository"
        assert path.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(path), f"{target}: {named(path)} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_headings_have_anchors_of_their_own(page):
    found = anchors(page)
    if page not in TOP:  # the change log repeats headings from release to release
        assert len(found) == len(set(found))


@pytest.mark.parametrize("page", GUIDES, ids=named)
def test_a_page_begins_with_what_the_reader_can_do(page):
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line]
    assert lines[0].startswith("# ")
    assert lines[1].startswith("After this page you ")


@pytest.mark.parametrize("page", [*GUIDES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=named)
def test_pages_use_the_words_of_the_field(page):
    text = prose(page).lower()
    assert not [word for word in FORMER if re.search(rf"\b{word}\b", text)]


def test_the_map_names_every_room():
    text = (ROOT / "docs" / "module-map.md").read_text(encoding="utf-8")
    named_here = re.findall(r"^\| `mmspec/(\w+)` \|.*\|(.*)\|$", text, re.M)
    assert [room for room, _ in named_here] == [room for line in ROOMS for room in line if room != "cli"]
    assert {room for room, _ in named_here} == {path.parent.name for path in (ROOT / "mmspec").glob("*/__init__.py")}
    for room, folders in named_here:
        there = sorted(path.parent.name for path in (ROOT / "mmspec" / room).glob("*/__init__.py"))
        assert sorted(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", folders))) == there, room


def test_every_decision_is_listed():
    listed = links(ROOT / "docs" / "decisions" / "README.md")
    assert listed == [page.name for page in DECISIONS]
