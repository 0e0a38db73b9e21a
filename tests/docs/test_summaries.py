"""Summaries say what the pages that they summarise say: figures word for word, claims by what they are drawn from."""

import re

import pytest

from tests.docs.summaries import _NO_FIGURE, CLAIMS, FIGURE, ROWS, row_of, table_rows, text_of


@pytest.mark.parametrize("page", ROWS)
def test_the_figures_of_a_summary_stand_in_the_page_that_it_summarises(page):
    used, missing = set(), {}
    for first, cells in table_rows(page):
        row = row_of(page, first)
        if row is None:
            assert not re.search(r"\d+\.\d", _NO_FIGURE.sub("", cells)), f"{page}: {first} has figures and no source in summaries.py"
            continue
        used.add(id(row))
        if lost := row.missing(cells):
            missing[first] = lost
    assert not missing
    assert len(used) == len(ROWS[page])


@pytest.mark.parametrize(("page", "claim", "holds"), CLAIMS, ids=[f"{page}: {claim[:50]}" for page, claim, _ in CLAIMS])
def test_a_claim_holds(page, claim, holds):
    found = list(re.finditer(claim, text_of(page), re.S))
    assert found, "the sentence has changed: change the claim, too"
    assert all(map(holds, found))


def test_a_changed_figure_is_found():
    row = ROWS["README.md"]["text, greedy, prompt lookup"]
    assert not row.missing("2.51 | 1.79 (1.29-2.17) x")
    assert row.missing("2.52 | 1.79 (1.29-2.17) x") == ["2.52"]
    assert row.missing("2.51 | 1.79 (1.29-2.18) x") == ["1.79 (1.29-2.18)"]
    assert FIGURE.findall("5.16 and 4.38 (1.00-2.00)") == ["5.16", "4.38 (1.00-2.00)"]
