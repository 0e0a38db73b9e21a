"""The tables of docs/drafters.md, from the registry: what each name is, needs and refuses. As a command it writes them there.

python -m tests.docs.registry
"""

import re

from mmspec.run.registry import ACCEPT, RULES, SOURCES, build
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "drafters.md"


def line(cells: list[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def tables() -> dict[str, str]:
    """Heading -> the table below it."""
    drafters = [["name", "what it is", "needs", "refuses"], ["---"] * 4]
    drafters += [[f"`{name}`", entry.is_a, entry.needs, entry.refuses] for name, entry in SOURCES.items()]
    rules = [["name", "what it is", "exactness", "needs", "refuses"], ["---"] * 5]
    for name, entry in RULES.items():
        rules.append([f"`{name}`", entry.is_a, build(name, ACCEPT, "accept rule").exactness, entry.needs, entry.refuses])
    found = {"Drafters by name": drafters, "Accept rules": rules}
    return {heading: "\n".join(map(line, rows)).replace("| --- ", "|---") for heading, rows in found.items()}


def written(text: str) -> str:
    """The page with its tables as they should be."""
    for heading, table in tables().items():
        head, found, rest = text.partition(f"## {heading}\n")
        text = head + found + re.sub(r"(?:^\|.*\n)+", lambda _, table=table: table + "\n", rest, count=1, flags=re.M)
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
