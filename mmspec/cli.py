"""The `mmspec` command. Heavy libraries load inside commands: help is quick."""

from typing import Annotated

import typer

from mmspec.commands import bench, caption, check, demo, image, models, recommend, speech, text
from mmspec.commands.common import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command(epilog=demo.EXAMPLES)(demo.demo)
app.command(epilog=text.EXAMPLES)(text.text)
app.command(epilog=image.EXAMPLES)(image.image)
app.command(epilog=speech.EXAMPLES)(speech.speech)
app.command(epilog=caption.EXAMPLES)(caption.caption)
app.command(epilog=recommend.EXAMPLES)(recommend.recommend)
app.command(epilog=bench.EXAMPLES)(bench.bench)
app.command(epilog=check.EXAMPLES)(check.check)
app.command(epilog=models.EXAMPLES)(models.models)


def _version(asked: bool) -> None:
    if asked:
        import mmspec

        typer.echo(mmspec.__version__)
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
