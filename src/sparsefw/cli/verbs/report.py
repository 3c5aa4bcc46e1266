"""sparsefw report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsefw.cli import options
from sparsefw.cli.output import print_outcome, verb


@verb
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Run folders, or folders that contain some.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write.")] = Path("report.html"),
    json: options.JsonOption = False,
) -> None:
    """Write one self-contained page about any number of runs, with figures, tables and configurations.

    The page opens offline. A folder beside it holds every figure as PNG and SVG, and every table as CSV, LaTeX and Markdown.

    Example:

        sparsefw report runs -o report.html
    """
    from sparsefw.cli.report_page import write_report

    print_outcome(write_report(runs, out), json)
