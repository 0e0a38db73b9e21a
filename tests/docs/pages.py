"""The pages that the tests of the docs read: their paths, headings, links and Python blocks."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
CARDS = sorted((ROOT / "mmspec" / "minis").glob("*/card.md"))
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
GUIDES = sorted({*(ROOT / "docs").rglob("*.md")} - {*DECISIONS})
PAGES = [*TOP, *GUIDES, *DECISIONS, *CARDS]

_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.S | re.M)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.M)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    """A page without its code."""
    return re.sub(r"`[^`]+`", "`code`", _FENCE.sub("", path.read_text(encoding="utf-8")))


def links(path: Path) -> list[str]:
    """The targets of a page's links and images."""
    return _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))


def slug(heading: str) -> str:
    """The anchor of a heading, the same on the site (Python-Markdown) and in the repository for the characters used here."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def anchors(path: Path) -> list[str]:
    """The anchors of a page's headings."""
    return [slug(heading) for heading in _HEADING.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))]


def blocks(path: Path) -> list[str]:
    """The Python blocks of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M)
