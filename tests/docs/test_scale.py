"""The tables of docs/at-scale.md are those that its functions compute."""

from tests.docs import scale


def test_the_tables_are_computed():
    text = scale.PAGE.read_text(encoding="utf-8")
    assert scale.written(text) == text, "run python -m tests.docs.scale"


def test_a_changed_figure_is_found():
    text = scale.PAGE.read_text(encoding="utf-8")
    assert scale.written(text.replace("| 60 |", "| 61 |")) == text
