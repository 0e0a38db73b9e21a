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
from rich.status import Status
from rich.text import Text

T = TypeVar("T")

_spinners: list[Status] = []  # that are shown now: two things cannot move on one terminal


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
        _spinners.append(status)
        try:
            yield lambda words: status.update(Text(words))
        finally:
            _spinners.remove(status)


def text_column(template: str = "{task.description}") -> progress.TextColumn:
    """Return a column of a progress bar that shows a task's text."""
    return progress.TextColumn(template, markup=False)


def track(values: Iterable[T], description: str = "", *args: Any, **options: Any) -> Iterator[T]:
    """Iterate over `values` with a progress bar, in place of a spinner; further arguments as in `rich.progress.track`."""
    paused = list(_spinners)
    for status in paused:
        status.stop()
    try:
        yield from progress.track(values, escape(description), *args, **options)  # type: ignore[arg-type]
    finally:
        for status in paused:
            status.start()


def track_waiting(values: Iterable[T], description: str) -> Iterator[T]:
    """Iterate over `values` with a progress bar on stderr, if that is a terminal."""
    screen = console(stderr=True)
    return track(values, description, console=screen, disable=not screen.is_terminal)
