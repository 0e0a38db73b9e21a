"""How a command runs: with completion of its options, and never over its own inputs."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, get_type_hints

from mmspec.commands.options.completion import with_completion
from mmspec.utils.places import Writes, declare, forget


def outputs_of(command: Callable[..., None]) -> dict[str, Writes]:
    """Return the parameters of a command that are marked with `Writes`."""
    hints = get_type_hints(command, include_extras=True)
    return {name: mark for name, hint in hints.items() for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Writes)}


def as_run(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` as the command line runs it.

    Args:
        command: a Typer command whose parameters are annotated with `typer.Option` or `typer.Argument`, and with `Writes` where they say
            where it writes.

    Returns:
        A function of the same signature, which raises a ValueError before anything is done if an output is an input.
    """
    outputs = outputs_of(command)
    shown = {name: _shown(name, hint) for name, hint in get_type_hints(command, include_extras=True).items()}

    @wraps(command)
    def run(*args: Any, **given: Any) -> None:
        tokens = declare(signature(command).bind_partial(*args, **given).arguments, outputs, shown)
        try:
            command(*args, **given)
        finally:
            forget(tokens)

    return with_completion(run)


def _shown(name: str, hint: Any) -> str:
    """What a parameter is called on the command line."""
    for mark in getattr(hint, "__metadata__", ()):
        if (names := getattr(mark, "param_decls", None)) is not None:
            option = type(mark).__name__ == "OptionInfo"
            return names[-1] if names else f"--{name.strip('_').replace('_', '-')}" if option else mark.metavar or name.upper()
    return name
