"""Options and helpers of all commands: exit codes, output streams, prompts and progress bars."""

import errno
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from typer.core import TyperGroup

from mmspec.commands.options.settings import WORDS, check_counts, config_of, length_of, refuse_unread, tree_of, with_defaults
from mmspec.jobs import Stopped
from mmspec.utils import screen
from mmspec.utils.files import read_prompts
from mmspec.utils.screen import console

if TYPE_CHECKING:
    from mmspec.run.config import Config

__all__ = ["check_counts", "config_of", "console", "length_of", "refuse_unread", "tree_of", "with_defaults"]

WHAT, HOW, DRAWING, FILES, SHOW = "What runs", "Drafting", "Sampling", "Prompts and results", "Output"


def option(panel: str, words: str, *names: str, metavar: str | None = None) -> Any:
    """Return an option for a panel of the help page. Defaults are stated in the help text, as None means "as in the config"."""
    return typer.Option(*names, metavar=metavar, help=words, show_default=False, rich_help_panel=panel)


MODEL = Annotated[str | None, option(WHAT, "Target: the shipped mini (default), a folder, a GGUF file or a hub name.", metavar="PATH")]
DEVICE = Annotated[str | None, option(WHAT, "auto (default: CUDA if available), cpu, cuda or cuda:N.", metavar="NAME")]
DTYPE = Annotated[str | None, option(WHAT, "float32 (default), bfloat16, float16 or auto.", metavar="NAME")]
CONFIG = Annotated[str | None, option(WHAT, "YAML settings; options on the command line override them.", metavar="FILE")]
SET = Annotated[list[str] | None, option(WHAT, "Change an entry of the config: section.key=value.", "--set", metavar="ENTRY")]
ALLOW_CODE = Annotated[bool, option(WHAT, "Let a config name classes of your own as module:Class; this runs their code.", "--allow-code")]
DRAFTER = Annotated[
    str | None,
    option(
        HOW,
        "none, model (the mini's own, default there), lookup (default elsewhere), suffix, ... (mmspec models lists them), "
        "a model's path, a trained drafter's, a datastore (*.npy) or pools (*.npz).",
        metavar="NAME",
    ),
]
ACCEPT_RULE = Annotated[
    str | None, option(HOW, "exact (default), coupled, block, typical, ... (mmspec models lists them).", "--accept", metavar="RULE")
]
LENGTH = Annotated[str | None, option(HOW, "Draft tokens a round: a number, auto (default) for what is fastest, or thompson.", metavar="N")]
TREE = Annotated[
    str | None,
    option(
        HOW,
        "comb, cape, expand, opt, dynamic, beams, best-first, children per level (4,2,1), a template (*.json), or none (the default).",
        metavar="TREE",
    ),
]
STOP_BELOW = Annotated[
    str | None,
    option(
        HOW,
        "End a chain where the drafter's best probability falls below P; adaptive; or the folder of an acceptance head "
        "(mmspec recipe text/train_acceptance_head.py).",
        metavar="P",
    ),
]
REFERENCES = Annotated[
    str | None, option(HOW, "With --drafter lookup: a text that outputs may quote, or JSON lines of them.", metavar="FILE")
]
TEMPERATURE = Annotated[float | None, option(DRAWING, "0 (default) is greedy decoding.", metavar="T")]
TOP_K = Annotated[int | None, option(DRAWING, "Draw from the K most likely tokens only.", metavar="K")]
TOP_P = Annotated[float | None, option(DRAWING, "Draw from the smallest set of tokens with total probability P.", metavar="P")]
VIEW = Annotated[
    str | None,
    option(
        HOW,
        "What a drafter's model reads of pictures: drop, newline, caption, own, pooled or pruned; several joined by +. "
        "By default own pixels if its vision encoder is like the target's, else drop.",
        metavar="NAME",
    ),
]
PENALTY = Annotated[float | None, option(DRAWING, "Above 1 makes repeats less likely.", metavar="X")]
SEED = Annotated[int | None, option(DRAWING, "Row r draws with SEED + r; 0 by default.", metavar="SEED")]
MAX_NEW = Annotated[int | None, option(DRAWING, "Largest number of new tokens per prompt; 128 by default.", metavar="N")]
PROMPTS = Annotated[str | None, option(FILES, "One prompt a line, or JSON lines; the mini's examples by default.", metavar="FILE")]
LIMIT = Annotated[int | None, option(FILES, "Use the first N prompts; 8 by default.", metavar="N")]
JSON = Annotated[bool, option(SHOW, "One JSON object on stdout, everything else on stderr.", "--json")]
VERBOSE = Annotated[bool, option(SHOW, "Show messages of libraries, and the traceback of an error.", "--verbose")]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_BAD_INPUT = (ValueError, FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


class Commands(TyperGroup):
    """The group of commands. Every error becomes one line on stderr and an exit code: 2 for invalid input, 1 for other failures."""

    def main(self, args: Any = None, prog_name: str | None = None, **extra: Any) -> Any:
        """Run a command and exit with its code: 0 for success, 2 for invalid input, 1 for other failures.

        Args:
            args: the command line without the program's name; `sys.argv` by default.
            prog_name: the program's name in usage lines.
            extra: further options of `TyperGroup.main`.
        """
        given = list(sys.argv[1:] if args is None else args)
        extra.pop("standalone_mode", None)
        words = WORDS.set(tuple(given))
        try:
            code = super().main(args=given, prog_name=prog_name or "mmspec", standalone_mode=False, **extra)
        except BrokenPipeError:  # the reader of stdout has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 1
        except (Exception, KeyboardInterrupt) as error:
            code = _report(error, "--verbose" in given)
        finally:
            WORDS.reset(words)
        sys.exit(code if isinstance(code, int) else 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that a line names. A step of a command has a name of two words, and `recommend run` is `recommend`.

        Args:
            ctx: the group's context.
            args: words of the line from the command's name on.

        Returns:
            Name, command and the words behind it.
        """
        if len(args) > 1 and (step := " ".join(args[:2])) in (*self.commands, "recommend run"):
            args = [step if step in self.commands else args[0], *args[2:]]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a command's name. Steps, whose names are two words, are left to the help page of their command.

        Args:
            ctx: the group's context.
            incomplete: what was typed so far.

        Returns:
            The completions.
        """
        return [found for found in super().shell_complete(ctx, incomplete) if " " not in found.value]


def _report(error: BaseException, verbose: bool) -> int:
    """Print one line about an error and return the exit code."""
    if verbose and not hasattr(error, "format_message"):
        console(stderr=True).print_exception()
    code, line = _verdict(error)
    if line:
        print(f"mmspec: {_LONG.sub(_shortened, ' '.join(line.split()))}", file=sys.stderr)
    return code


_LONG = re.compile(r"\S{260,}")


def _shortened(word: re.Match[str]) -> str:
    return f"{word[0][:60]}...{word[0][-20:]}"


def _verdict(error: BaseException) -> tuple[int, str]:
    usage = getattr(error, "format_message", None)  # typer's own errors, whichever click it was built with
    if usage is not None:
        return 2, f"{usage()} (see --help)" if usage() else ""  # without arguments the help page was printed
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        return 1, "stopped"
    if isinstance(error, OSError) and error.errno in _FULL:
        return 1, "the disk is full: nothing was written, and what was there is as it was; free some space and run this again"
    if isinstance(error, FloatingPointError | ImportError | Stopped):
        return 1, str(error)
    if isinstance(error, _BAD_INPUT):
        return 2, str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return 2, f"{error.filename}: {error.strerror}"
    return 1, f"{type(error).__name__}: {error} (--verbose shows where)"


def prompts_for(pair: Any, given: dict[str, Any]) -> list[Any]:
    """Return the first `--limit` prompts of `--prompts`, or of the mini's examples; with `--picture`, prompts about these pictures."""
    if given["limit"] is not None and given["limit"] < 1:
        raise ValueError(f"--limit is {given['limit']}: use at least 1 prompt")
    if given["prompts"] is not None or given.get("pictures"):
        found = _asked(pair, given["prompts"], given.get("pictures") or ())
    elif pair.examples:
        found = list(pair.examples)
    else:
        raise ValueError(f"no prompts: {pair.name} has no examples, so give --prompts FILE")
    return found[: given["limit"]]


def _asked(pair: Any, prompts: str | None, pictures: Sequence[str]) -> list[Any]:
    """Return the prompts of a file. With pictures each prompt is about all of them; without a file the pictures are described."""
    from mmspec.text.inputs.vision_inputs import DESCRIBE, default_prompt, read_seen

    texts = (
        [default_prompt(pictures) if pictures else DESCRIBE] if prompts is None else [record["prompt"] for record in read_prompts(prompts)]
    )
    if not pictures:
        return texts
    if not pair.sees:
        raise ValueError(f"{pair.name} reads no pictures: leave --picture out, or give a model that sees")
    seen = read_seen(None, pictures)
    return [replace(seen, prompt=text) for text in texts]


def begin(verbose: bool) -> None:
    """Prepare for heavy imports: report a broken torchaudio in one line, and silence libraries."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from mmspec.utils.torchaudio_check import check_torchaudio

    check_torchaudio()
    if verbose:
        return
    warnings.simplefilter("ignore")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    getLogger("huggingface_hub").setLevel("ERROR")  # retries for a name that the hub does not have; the error names it


def load(config: "Config") -> Any:
    """Load the pair of `config`."""
    from mmspec.loading.text import load_pair

    return waiting(config, partial(load_pair, config))


def waiting(config: "Config", loading: Callable[[], Any]) -> Any:
    """Return the result of `loading`, with a spinner on a terminal."""
    with screen.spinner(f"loading {config.target.path}"):
        return loading()


def some_output(report: Any, records: str, place: str) -> None:
    """Raise ValueError, with the first reason, for a job that rejected all of its `records`; `place` is "row" or "line"."""
    if not report.outputs:
        with (report.out / "rejects.jsonl").open(encoding="utf-8") as file:
            first = json.loads(next(file))
        raise ValueError(f"all {report.records} {records} were rejected, such as {place} {first[place]}: {first['reason']}")


def emit(data: Any) -> None:
    """Print the command's one JSON object to stdout."""
    json.dump(data, sys.stdout)
    sys.stdout.write("\n")


def note(message: str) -> None:
    """Print a line to stderr."""
    console(stderr=True).print(message, soft_wrap=True)


def note_cut(reasons: Sequence[str | None], what: str, limit: str) -> None:
    """Print a line to stderr if outputs were cut at their limit.

    Args:
        reasons: the finish reason of each output.
        what: what an output is, in the singular.
        limit: what they were cut at.
    """
    cut = sum(reason == "length" for reason in reasons)
    if cut:
        note(f"{cut} of {len(reasons)} {what}s cut at {limit}" if len(reasons) > 1 else f"the {what} was cut at {limit}")


@contextmanager
def progress(title: str, total: int) -> Iterator[Any]:
    """Show a progress bar on stderr if that is a terminal. Call the yielded function with the amount done."""
    show = console(stderr=True)
    columns = (
        screen.text_column(),
        BarColumn(),
        MofNCompleteColumn(),
        screen.text_column("{task.fields[extra]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=show, transient=True, disable=not show.is_terminal) as bars:
        task = bars.add_task(title, total=total, extra="")

        def done(amount: float = 1, extra: str = "") -> None:
            bars.update(task, advance=amount, extra=extra)

        yield done
