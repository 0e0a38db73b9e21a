"""Progress bar on stderr, if that is a terminal; shown by the first process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmspec.jobs.engine.processes import Processes


@contextmanager
def bar(unit: str, total: int, processes: Processes) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances the bar by a number of `unit`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
    from rich.text import Text

    from mmspec.utils.screen import console, text_column

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(rate(task.finished_speed or task.speed, unit))

    screen = console(stderr=True)
    share = f" of process 0 of {processes.world}" if processes.world > 1 else ""
    columns = (text_column(), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    hidden = processes.rank > 0 or not screen.is_terminal
    with Progress(*columns, console=screen, transient=True, disable=hidden) as bars:
        task = bars.add_task(unit + share, total=total)
        yield lambda amount: bars.update(task, advance=amount)


def rate(speed: float | None, unit: str) -> str:
    """Return a rate as text, such as "123 users/s"; a dash if it is unknown."""
    if speed is None:
        return f"- {unit}/s"
    return f"{speed:.0f} {unit}/s" if speed >= 100 else f"{speed:.3g} {unit}/s"
