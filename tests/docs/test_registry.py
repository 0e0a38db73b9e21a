"""The tables of docs/drafters.md are the registry: what each name is, needs and refuses."""

from mmspec.run.registry import ACCEPT, RULES, SOURCES, build
from tests.docs.pages import ROOT


def table(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = (ROOT / "docs" / "drafters.md").read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")] for line in lines]


def test_drafters_are_the_registrys():
    assert table("Drafters by name") == [[f"`{name}`", entry.is_a, entry.needs, entry.refuses] for name, entry in SOURCES.items()]


def test_accept_rules_are_the_registrys():
    rows = [
        [f"`{name}`", entry.is_a, build(name, ACCEPT, "accept rule").exactness, entry.needs, entry.refuses] for name, entry in RULES.items()
    ]
    assert table("Accept rules") == rows


def test_the_page_of_choices_names_registered_drafters():
    page = (ROOT / "docs" / "start" / "choosing.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in SOURCES:
        assert f'"{name}"' in page or name in ("none", "ngram", "jacobi", "lookahead", "early-exit", "similar-layers"), name
        assert f'"{name}"' in readme or name in ("none", "copy", "early-exit", "similar-layers"), name
