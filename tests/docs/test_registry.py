"""The pages name drafters and rules as the registry has them."""

from mmspec.run.registry import SOURCES
from tests.docs.pages import ROOT
from tests.docs.registry import PAGE, tables, written


def test_the_tables_of_drafters_and_rules_are_the_registrys():
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run: python -m tests.docs.registry"
    assert all(table in page for table in tables().values())


def test_the_page_of_choices_names_registered_drafters():
    page = (ROOT / "docs" / "start" / "choosing.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in SOURCES:
        assert f'"{name}"' in page or name in ("none", "ngram", "jacobi", "lookahead", "early-exit", "similar-layers"), name
        assert f'"{name}"' in readme or name in ("none", "copy", "early-exit", "similar-layers"), name
