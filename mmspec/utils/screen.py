"""Output for people: consoles, spinners and progress bars that show every text as it is.

rich reads "[red]" in a text as markup. Prompts, names and paths hold what users write, so markup is off here, and nothing else in mmspec
makes a console; words are styled by `rich.text.Text`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from rich import progress
from rich.console import Console
from rich.markup import escape
from rich.text import Text

T = TypeVar("T")


def console(stderr: bool = False) -> Console:
    """Return a console on stdout or stderr."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


@cache
def note_once(message: str) -> None:
    """Print a line to stderr, unless this process has printed it."""
    console(stderr=True).print(message, soft_wrap=True)


@contextmanager
def spinner(words: str) -> Iterator[Callable[[str], None]]:
    """Show `words` with a spinner on stderr, if that is a terminal; the yielded function changes them."""
    with console(stderr=True).status(Text(words)) as status:
        yield lambda words: status.update(Text(words))


def text_column(template: str = "{task.description}") -> progress.TextColumn:
    """Return a column of a progress bar that shows a task's text."""
    return progress.TextColumn(template, markup=False)


def track(values: Iterable[T], description: str = "", *args: Any, **options: Any) -> Iterable[T]:
    """Iterate over `values` with a progress bar; further arguments as in `rich.progress.track`."""
    return progress.track(values, escape(description), *args, **options)  # type: ignore[arg-type]
