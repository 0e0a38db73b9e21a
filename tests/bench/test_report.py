"""The demo's report: one file that needs no other, whose badges come from comparisons that were made."""

import json
from html.parser import HTMLParser

import pytest

from mmspec.bench.demo import run as whole_demo
from mmspec.bench.demo import text as demo_text
from mmspec.bench.report.charts import lines, ratios, split
from mmspec.bench.report.page import badge, table
from mmspec.cli import app


class Page(HTMLParser):
    """Everything a page would fetch, and whether its tags close."""

    VOID = {"meta", "input", "img", "br"}

    def __init__(self, text):
        super().__init__()
        self.fetched, self.open, self.tags = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href", "data", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def demo(path, capsys=None, *args):
    with pytest.raises(SystemExit) as stopped:
        app(["demo", "--quick", "--out", str(path), *args])
    return stopped.value.code


@pytest.fixture(scope="module", autouse=True)
def texts_only():
    """The pictures have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_demo, "SECTIONS", {"text": whole_demo.SECTIONS["text"]})
        yield


@pytest.fixture(scope="module")
def found(texts_only, tmp_path_factory):
    """(exit code, page, JSON) of one quick demo."""
    import contextlib
    import io

    path, out = tmp_path_factory.mktemp("demo") / "report.html", io.StringIO()
    with contextlib.redirect_stdout(out):
        code = demo(path, None, "--json")
    return code, path.read_text(encoding="utf-8"), json.loads(out.getvalue())


def test_the_page_needs_nothing_else(found):
    page = Page(found[1])
    assert page.fetched == []
    assert page.open == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "http" not in found[1]
    assert "url(" not in found[1]


def test_the_page_shows_every_way_and_both_plots(found):
    code, page, data = found
    assert code == 0
    ways = [row["way"] for row in data["sections"]["text"]["ways"]]
    assert ways == [way.name for way in demo_text.CONTINUOUS_METHODS]
    for way in ways:
        assert f">{way}<" in page
    assert page.count("<svg") == 1
    assert 'class="bars"' in page
    assert "prefers-color-scheme: dark" in page
    assert 'title="round 1:' in page


def test_badges_count_what_was_compared(found):
    _, page, data = found
    same = data["sections"]["text"]["same"]
    assert same["same"] == same["of"] == 14
    assert page.count("same text: yes") == 12  # six ways that draft, two examples
    assert "same text: no" not in page
    assert "14 of 14" in page


def test_figures_are_counts_that_fit_together(found):
    rows = {row["way"]: row for row in found[2]["sections"]["text"]["ways"]}
    assert rows["generate"]["tokens"] == rows["plain"]["tokens"] == rows["model"]["tokens"]
    assert rows["plain"]["tokens_per_call"] == 1
    for row in rows.values():
        assert row["tokens_per_call"] == pytest.approx(row["tokens"] / row["target_calls"])
    assert rows["coupled sampling"]["tokens"] == rows["plain sampling"]["tokens"]


def test_a_difference_is_shown_and_fails(tmp_path, capsys, monkeypatch):
    once = demo_text._once

    def wrong(pair, way, prompt, total):
        run = once(pair, way, prompt, total)
        if way.name == "lookup":
            run.tokens, run.text = [*run.tokens[:-1], run.tokens[-1] + 1], run.text[:-1] + "!"
        return run

    monkeypatch.setattr(demo_text, "_once", wrong)
    monkeypatch.setattr(demo_text, "_examples", lambda request: 1)
    path = tmp_path / "report.html"
    assert demo(path) == 1
    page = path.read_text(encoding="utf-8")
    assert page.count("same text: no") == 1
    assert 'class="diff"' in page
    assert "some outputs differ" in capsys.readouterr().err


def test_parts_escape_what_they_are_given():
    assert "<b>" not in lines({"<b>": [(1, 2)]}, "x") + split({"<b>": {"draft": 1.0}}, ("draft",)) + ratios([("<b>x", 1, 1, 1)])
    assert badge(False) == '<span class="badge no">same text: no</span>'
    assert table(["a", "b"], [["1", "2"]]).count("<td") == 2
