"""A bar on stderr, where that is a terminal; the first process shows it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmspec.jobs.engine.processes import Processes


@contextmanager
def bar(unit: str, total: int, processes: Processes) -> Iterator[Callable[[int], None]]:
    """Yields what to call with how many more of the `unit` are done; their rate is shown beside them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(rate(task.finished_speed or task.speed, unit))

    screen = Console(stderr=True)
    share = f" of process 0 of {processes.world}" if processes.world > 1 else ""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    hidden = processes.rank > 0 or not screen.is_terminal
    with Progress(*columns, console=screen, transient=True, disable=hidden) as bars:
        task = bars.add_task(unit + share, total=total)
        yield lambda amount: bars.update(task, advance=amount)


def rate(speed: float | None, unit: str) -> str:
    """ "123 users/s", with digits where the number is small; a dash before there is one."""
    if speed is None:
        return f"- {unit}/s"
    return f"{speed:.0f} {unit}/s" if speed >= 100 else f"{speed:.3g} {unit}/s"
