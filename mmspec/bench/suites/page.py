"""The part of a Markdown page that a benchmark writes: what stands between two comments."""

from pathlib import Path

START, END = "<!-- figures -->", "<!-- end of figures -->"


def check_page(path: str | Path) -> None:
    """Check that `with_figures` can write a page, before the work begins.

    Raises:
        ValueError: for a page without the two comments, in order, and for one that cannot be read.
    """
    with_figures(path, "")


def with_figures(path: str | Path, figures: str) -> str:
    """Return the text of a page with other figures.

    Args:
        path: the page; one that does not exist has nothing but the figures.
        figures: Markdown.

    Raises:
        ValueError: for a page without the two comments, in order, and for one that cannot be read.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else f"{START}\n{END}\n"
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"page {path} cannot be read: {error}") from None
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"page {path} has no place for figures: put the lines {START} and {END} where they belong")
    return f"{before}{START}\n\n{figures.strip()}\n\n{END}{after}"
