"""A bar on stderr, where that is a terminal; the first process shows it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmspec.jobs.processes import Processes


@contextmanager
def bar(title: str, total: int, processes: Processes) -> Iterator[Callable[[int], None]]:
    """Yields what to call with how many more are done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    screen = Console(stderr=True)
    share = f" of process 0 of {processes.world}" if processes.world > 1 else ""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = processes.rank > 0 or not screen.is_terminal
    with Progress(*columns, console=screen, transient=True, disable=hidden) as bars:
        task = bars.add_task(title + share, total=total)
        yield lambda amount: bars.update(task, advance=amount)
