"""The command line: the app and its verbs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sparsefw.cli.output import INTERRUPTED
from sparsefw.cli.verbs.bench import bench
from sparsefw.cli.verbs.compress import compress
from sparsefw.cli.verbs.curve import curve
from sparsefw.cli.verbs.demo import demo
from sparsefw.cli.verbs.finetune import finetune
from sparsefw.cli.verbs.list import list_
from sparsefw.cli.verbs.report import report
from sparsefw.cli.verbs.reproduce import reproduce
from sparsefw.cli.verbs.retrain import retrain
from sparsefw.cli.verbs.sweep import sweep
from sparsefw.cli.verbs.train import train
from sparsefw.text import print_status

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train a neural network once, then compress it to any size without retraining. Start with `sparsefw demo`.",
)
for verb in (demo, train, finetune, retrain, curve, compress, report, sweep, reproduce):
    app.command()(verb)
app.command("list")(list_)
app.add_typer(bench, name="bench")


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version, and stop.", is_eager=True)] = False,
) -> None:
    if show:
        from sparsefw import __version__

        print(__version__)
        raise typer.Exit


def run(*arguments: Any, **settings: Any) -> None:
    """Run the command line; an interrupt that comes before a verb begins ends in one line, too."""
    try:
        app(*arguments, **settings)
    except KeyboardInterrupt:
        print_status("interrupted")
        raise SystemExit(INTERRUPTED) from None
