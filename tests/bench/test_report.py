"""The demo's report: one file that needs no other, whose badges come from comparisons that were made."""

import json
from html.parser import HTMLParser

import pytest
from jinja2 import UndefinedError

from mmspec.bench.compare.run import versus
from mmspec.bench.demo import run as whole_demo
from mmspec.bench.demo import text as demo_text
from mmspec.bench.report.page import compared, macros, render
from mmspec.cli import app


class Page(HTMLParser):
    """Everything a page would fetch, whether its tags close, and what keeps somebody from reading or operating it."""

    VOID = {"meta", "input", "img", "br"}

    def __init__(self, text):
        super().__init__()
        self.fetched, self.open, self.tags, self.problems = [], [], [], []
        self.ids, self.references, self.radios, self.levels = [], [], {}, []
        self.feed(text)
        self.problems += [f"id {name} is not unique" for name in set(self.ids) if self.ids.count(name) > 1]
        self.problems += [f"nothing has the id {name}" for name in self.references if name not in self.ids]
        self.problems += [f"radio {name} has no label" for name, labelled in self.radios.items() if not labelled]
        self.problems += [f"h{a} is followed by h{b}" for a, b in zip(self.levels, self.levels[1:], strict=False) if b > a + 1]
        if self.levels[:1] != [1] or self.levels.count(1) > 1:
            self.problems.append("the page needs one h1, first")

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.references += [given["href"][1:]] if given.get("href", "").startswith("#") else []
        self.fetched += [value for name, value in attrs if name in ("src", "href", "data", "srcset") and not value.startswith("#")]
        self._look(tag, given)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def _look(self, tag, given):
        """Collect ids and references, and what is missing from this element."""
        self.ids += [given["id"]] if "id" in given else []
        self.references += [given[name] for name in ("aria-labelledby", "for") if name in given]
        if tag in ("h1", "h2", "h3", "h4"):
            self.levels.append(int(tag[1]))
        if tag == "input":
            self.radios[given["id"]] = False
        if tag == "label":
            self.radios[given["for"]] = True
        lacks = {
            "img": len(given.get("alt", "").split()) < 3,  # a word or two describe no picture
            "th": given.get("scope") not in ("col", "row", "colgroup", "rowgroup"),
            "audio": not given.get("aria-label") or "controls" not in given,
            "html": given.get("lang") != "en",
            "nav": not given.get("aria-label"),
            "svg": given.get("role") != "img" or not given.get("aria-label"),
        }
        scrolls = "scroll" in given.get("class", "").split()
        if lacks.get(tag) or (given.get("role") == "img" and not given.get("aria-label")):
            self.problems.append(f"{tag} {given} says too little")
        if scrolls and (given.get("tabindex") != "0" or not given.get("aria-label") or given.get("role") != "region"):
            self.problems.append(f"{tag} {given} scrolls but not by keyboard")


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
    assert page.problems == []
    assert "http" not in found[1]
    assert "url(" not in found[1]


def test_the_page_shows_every_way_and_both_plots(found):
    code, page, data = found
    assert code == 0
    ways = [row["way"] for row in data["sections"]["text"]["ways"]]
    assert ways == [way.name for way in demo_text.METHODS]
    for way in ways:
        assert f">{way}<" in page
    assert page.count("<svg") == 1
    assert 'class="bars"' in page
    assert "prefers-color-scheme: dark" in page
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
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


def test_the_headline_is_the_tables_best_rows(found):
    """The fewest forwards and the fastest, each with its own seconds, exactness and comparison, and the machine."""
    _, page, data = found
    rows = [row for row in data["sections"]["text"]["ways"] if row["acceptance"] is not None and row["times_generate"] is not None]
    glance = " ".join(page[page.index('<section id="glance"') : page.index('<section id="text"')].split())
    fewest, fastest = (max(rows, key=key) for key in (lambda row: row["tokens_per_call"], lambda row: row["times_plain"]))
    for row in (fewest, fastest):
        line = glance[glance.index(f'<th scope="row">{row["way"]}<') :].split("</tr>")[0]
        assert f">{1 - row['target_calls'] / row['tokens']:.0%}<" in line
        for ratio, against in ((row["ratio_to_plain"], "plain"), (row["ratio_to_generate"], "generate")):
            assert f"<b>{ratio['median']:.2f}&times;</b> {against} <small>{ratio['low']:.2f} to {ratio['high']:.2f} of 2 " in line
        assert row["exactness"] in line
        assert '<span class="badge yes">2 of 2</span> identical to plain decoding' in line
    assert glance.count('<th scope="row">') == (1 if fewest is fastest else 2)
    assert data["provenance"]["cpu"] in glance
    assert 'href="#text"' in page


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ([1.2, 1.4, 1.3], "faster"),
        ([0.5, 0.8, 0.7], "slower"),
        ([0.8, 1.0, 1.3], "not clear"),
        ([1.4], "not clear"),
        ([0.5, 0.6], "not clear"),
    ],
)
def test_a_speed_is_called_faster_or_slower_where_both_quartiles_of_three_agree(ratios, words):
    cell = macros("parts.html").speed(versus("plain", ratios)["ratio_to_plain"], "plain")
    assert [word for word in ("faster", "slower", "not clear") if f">{word}<" in cell] == [words]


def test_parts_escape_what_they_are_given():
    charts, parts = macros("charts.html"), macros("parts.html")
    ratio = versus("plain", [1.0])["ratio_to_plain"]
    assert "<b>" not in charts.lines({"<b>": [(1, 2)]}, "<b>", "<b>") + charts.split({"<b>": {"draft": 1.0}})
    assert "<b>x" not in charts.ratios([("<b>x", ratio)])
    assert parts.badge(False) == '<span class="badge no">same text: no</span>'
    assert parts.tally({"same": 1, "of": 2}) == '<span class="badge no">1 of 2</span>'


def test_charts_give_their_figures_as_text_too():
    charts = macros("charts.html")
    assert "<small>3 of 4</small>" in charts.lines({"model": [(3, 4), (1, 2)]}, "Acceptance", "draft token")
    assert 'aria-label="draft 0.25 s, score 1.00 s"' in charts.split({"model": {"draft": 0.25, "score": 1.0}})
    assert charts.lines({}, "Acceptance", "draft token").count("<polyline") == 0


def test_a_value_that_a_template_misses_is_an_error():
    with pytest.raises(UndefinedError, match="title"):
        render("demo.html")


def test_counts_of_equal_outputs_are_found_by_any_of_their_names():
    assert compared({"same_items": None, "same_in_batch": {"same": 1, "of": 2}}) == {"same": 1, "of": 2}
    assert compared({"same_text": None}) is None
