"""The `mmspec` command. Heavy libraries load inside commands: help is quick."""

from typing import Annotated

import typer

from mmspec.commands import bench, caption, demo, explain, image, models, plan, recipe, recommend, speech, text, transcribe
from mmspec.commands.checking import check
from mmspec.commands.common import Commands
from mmspec.commands.options.running import as_run
from mmspec.commands.recommendation import append, assign, evaluate, index, prepare, train
from mmspec.commands.services import serve, ui
from mmspec.utils.version import __version__

app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich")
for _module in (demo, text, image, speech, transcribe, caption, recommend, serve, ui, bench, check, explain, plan, models, recipe):
    _command = getattr(_module, _module.__name__.rpartition(".")[2])  # each module holds one command of its own name
    app.command(epilog=_module.EXAMPLES)(as_run(_command))
for _module in (prepare, train, evaluate, assign, append, index):  # steps of recommend: `mmspec recommend prepare`
    _name = _module.__name__.rpartition(".")[2]
    app.command(f"recommend {_name}", epilog=_module.EXAMPLES)(as_run(getattr(_module, _name)))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which version this is.")] = False,
) -> None:
    """Speculative decoding of text, images, speech and recommendations: the output of plain decoding, in fewer calls of the model."""


def main() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    main()
