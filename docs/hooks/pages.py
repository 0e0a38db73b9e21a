"""MkDocs hook: adds the pages of docs/, the model cards and the notebooks to the site, and translates links between them."""

import json
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_NUMBER = re.compile(r"<td>([-+<> \d.,()\xb1\xd7*/%e]{1,26})</td>")


def pages() -> dict[str, str]:
    """Every file that the site shows: path in the repository -> address in the site."""
    found = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    for path in sorted((*DOCS.rglob("*.md"), *DOCS.rglob("*.svg"), *DOCS.rglob("*.ipynb"))):
        inside = path.relative_to(DOCS).as_posix()
        if not inside.startswith((".", "assets/", "hooks/")) and ".ipynb_checkpoints" not in inside:
            found[f"docs/{inside}"] = inside.replace(".ipynb", ".md")
    for card in sorted((ROOT / "mmspec" / "minis").glob("*/card.md")):
        found[card.relative_to(ROOT).as_posix()] = f"cards/{card.parent.name}.md"
    return found


def text_of(path: Path) -> str:
    """A file's Markdown; of a notebook its cells and their outputs."""
    text = path.read_text(encoding="utf-8")
    return notebook(json.loads(text)) if path.suffix == ".ipynb" else text


def notebook(cells: dict) -> str:
    parts = []
    for cell in cells["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                image = "".join(data["image/png"]).replace("\n", "")
                parts.append(f"![{alt_text(cell)}](data:image/png;base64,{image})")
            elif said := "".join(output.get("text") or data.get("text/plain", "")):
                parts.append(f"```text\n{said.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def alt_text(cell: dict) -> str:
    return cell.get("metadata", {}).get("alt", "output of the cell above")


def translated(text: str, path: str, known: dict[str, str]) -> str:
    """`text` of the repository file `path`, with its relative links turned into links of the site.

    A link to a file that the site does not show (a test, a folder of configs) becomes a link to nothing and is left as its text.
    """
    here, folder = posixpath.dirname(known[path]), posixpath.dirname(path)

    def link(match: re.Match) -> str:
        target, anchor = match[1], match[2] or ""
        if "://" in target or target.startswith(("data:", "mailto:")):
            return match[0]
        wanted = posixpath.normpath(posixpath.join(folder, target))
        address = known.get(wanted) or ("reference/index.md" if wanted == "docs/reference" else None)
        return match[0] if address is None else posixpath.relpath(address, here or ".") + anchor

    return _LINK.sub(link, text)


def on_files(files, config):
    known = pages()
    for path, address in known.items():
        if path.endswith(".svg"):
            files.append(File.generated(config, address, content=(ROOT / path).read_bytes()))
        else:
            files.append(File.generated(config, address, content=translated(text_of(ROOT / path), path, known)))
    return files


def on_page_content(html, page, config, files):
    """Numbers with their spread stay on one line in tables."""
    return _NUMBER.sub(r'<td class="number">\1</td>', html)


def on_serve(server, config, builder):
    server.watch(str(DOCS))
    return server
